"""Which listings the judge reads: strata by merchant, locale and category, drawn by a seeded hash.

Listings are drawn, not texts, so that the estimate is about listings; a text that several drawn listings share is judged
once and carries their weight. The draw keeps the listings of each stratum with the smallest keyed hashes (a bottom-k
sketch, Cohen and Kaplan 2007): it is uniform without replacement, needs no more memory than the sample, does not depend
on the order of the rows, and gives the same sample again for the same seed.
"""

from __future__ import annotations

import hashlib
import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Generic, TypeVar

Row = TypeVar("Row")
Stratum = tuple[str, str, str]  # merchant, locale, category; "*" stands for the rest

REST = "*"


def collapse(counts: Mapping[Stratum, int], size: int) -> dict[Stratum, Stratum]:
    """Maps every fine stratum to the one it is drawn in, so that each can expect two listings of a sample of `size`.

    Strata that are too small give up the category, then the locale, then the merchant.
    """
    least = 2 * sum(counts.values()) / max(1, size)
    target = {stratum: stratum for stratum in counts}
    for position in (2, 1, 0):
        totals: Counter[Stratum] = Counter()
        for stratum, chosen in target.items():
            totals[chosen] += counts[stratum]
        for stratum, chosen in target.items():
            if totals[chosen] < least:
                target[stratum] = (*chosen[:position], *[REST] * (3 - position))  # type: ignore[assignment]
    return target


def allocate(counts: Mapping[Stratum, int], size: int) -> dict[Stratum, int]:
    """Listings to draw per stratum, proportional to its count (largest remainders), at least one where `size` allows."""
    total = sum(counts.values())
    size = min(size, total)
    if not size:
        return {}
    shares = {stratum: size * count / total for stratum, count in counts.items()}
    drawn = {stratum: min(counts[stratum], max(1, int(share))) for stratum, share in shares.items()}
    by_remainder = sorted(shares, key=lambda s: (int(shares[s]) - shares[s], s))
    while (missing := size - sum(drawn.values())) > 0:
        for stratum in [s for s in by_remainder if drawn[s] < counts[s]][:missing]:
            drawn[stratum] += 1
    while sum(drawn.values()) > size:
        drawn[max(drawn, key=lambda s: (drawn[s], s))] -= 1
    return {stratum: number for stratum, number in drawn.items() if number}


def draw_key(seed: str, *identity: str) -> int:
    """64-bit hash of a listing's identity, keyed by the seed."""
    text = "\x1f".join(identity).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8, key=seed.encode()[:64]).digest(), "big")


class Draw(Generic[Row]):
    """A stratified draw of `size` rows while they stream by, given how many rows each fine stratum has.

    `sizes` has the rows to draw, `totals` the rows there are, by the strata that `collapse` makes of the fine ones.
    """

    def __init__(self, counts: Mapping[Stratum, int], size: int) -> None:
        self._target = collapse(counts, size)
        self.totals: Counter[Stratum] = Counter()
        for fine, count in counts.items():
            self.totals[self._target[fine]] += count
        self.sizes = allocate(self.totals, size)
        self._kept: dict[Stratum, list[tuple[int, int, Row]]] = {stratum: [] for stratum in self.sizes}
        self._seen = 0

    def offer(self, fine: Stratum, key: int, row: Row) -> None:
        """Keeps the row if its key is among the smallest of its stratum; a stratum without a size keeps none."""
        stratum = self._target.get(fine, fine)
        heap = self._kept.get(stratum)
        if heap is None:
            return
        self._seen += 1
        entry = (-key, self._seen, row)  # the running number keeps rows themselves from being compared
        if len(heap) < self.sizes[stratum]:
            heapq.heappush(heap, entry)
        elif entry[0] > heap[0][0]:
            heapq.heapreplace(heap, entry)

    def rows(self) -> dict[Stratum, list[Row]]:
        """The drawn rows per stratum, by key."""
        return {stratum: [row for _, _, row in sorted(heap, reverse=True)] for stratum, heap in self._kept.items()}

    def by_text(self, text_of: Callable[[Row], str]) -> Iterator[tuple[Stratum, float, list[Row]]]:
        """The drawn rows that share a stratum and a text, with the number of rows of the population they stand for."""
        for stratum, rows in self.rows().items():
            texts: defaultdict[str, list[Row]] = defaultdict(list)
            for row in rows:
                texts[text_of(row)].append(row)
            for shared in texts.values():
                yield stratum, self.totals[stratum] / len(rows) * len(shared), shared
