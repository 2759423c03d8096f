"""Coarse grid, then a finer search around its best: which scheduler settings serve a workload fastest.

Pure: it sees an engine only through `measure`, so that a benchmark can replay it on a measured surface.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from include.tuning.plan import Cell

# (cell, requests) to requests per second; None where the engine could not do it.
Measure = Callable[[Cell, int], float | None]
STEP = 2**0.5  # between neighbours of the fine search: half of a doubling
TIE = 0.005  # a smaller gain is noise, and ends the fine search


@dataclass(frozen=True, slots=True)
class Bounds:
    """What one engine start can serve, and therefore the limits of the fine search."""

    max_num_seqs: int
    max_num_batched_tokens: int


@dataclass(frozen=True, slots=True)
class Found:
    """The best cell of one engine, its rate in requests per second and that of the best first look; None: all failed."""

    cell: Cell | None
    rate: float
    look: float


def rounded(value: float) -> int:
    """To the two leading binary digits' precision: 1448 becomes 1408, small values stay whole."""
    step = max(1, 2 ** (int(value).bit_length() - 4))
    return int(max(1, round(value / step) * step))


def neighbours(cell: Cell, bounds: Bounds) -> Iterator[Cell]:
    """Cells one step away in one setting, within the bounds; the window keeps its ratio to max_num_seqs where that moves."""
    for factor in (STEP, 1 / STEP):
        seqs = min(rounded(cell.max_num_seqs * factor), bounds.max_num_seqs, cell.max_num_batched_tokens)
        window = rounded(cell.batch_size / cell.max_num_seqs * seqs)
        yield replace(cell, max_num_seqs=seqs, batch_size=max(seqs, window))
        tokens = min(rounded(cell.max_num_batched_tokens * factor), bounds.max_num_batched_tokens)
        yield replace(cell, max_num_batched_tokens=max(tokens, cell.max_num_seqs))
        yield replace(cell, batch_size=max(cell.max_num_seqs, rounded(cell.batch_size * factor)))
    yield replace(cell, submit="closed" if cell.submit == "refill" else "refill")


def find_best(
    cells: Iterable[Cell],
    bounds: Bounds,
    measure: Measure,
    *,
    requests: int,
    probe_requests: int,
    hopeless: float,
    known: float = 0.0,
    most: int = 12,
    seen: Sequence[Cell] = (),
) -> Found:
    """The fastest cell of one engine.

    `seen` cells, the best ones of earlier engines, get a first look of `probe_requests`, and where there are none or this
    engine can do none of them, every cell of the coarse grid. The best two that can be measured with `requests`, unless below
    `hopeless` times the best look and `known` (another engine's best look), are. From the better one the fine search
    walks to whichever neighbour is faster by more than noise, for at most `most` measurements.
    """
    looks: dict[Cell, float] = {}
    for some in (seen, cells):
        for cell in some if not any(looks.values()) else ():
            if (
                cell.max_num_seqs <= bounds.max_num_seqs
                and cell.max_num_batched_tokens <= bounds.max_num_batched_tokens
            ):
                looks[cell] = looks.get(cell) or measure(cell, probe_requests) or 0.0
    ranked = sorted(looks, key=lambda cell: looks[cell], reverse=True)
    if not ranked or not looks[ranked[0]]:
        return Found(None, 0.0, 0.0)
    # Looks are compared with looks: a short measurement has a larger share of ramp and drain.
    if looks[ranked[0]] < hopeless * known:
        return Found(ranked[0], looks[ranked[0]], looks[ranked[0]])
    rates: dict[Cell, float] = {}
    for cell in ranked:
        if looks[cell] >= hopeless * looks[ranked[0]] and sum(rate > 0 for rate in rates.values()) < 2:
            rates[cell] = measure(cell, requests) or 0.0
    best = max(rates, key=lambda cell: rates[cell])
    left = most
    improved = True
    while improved and left > 0:
        improved = False
        for cell in neighbours(best, bounds):
            if cell in rates or left <= 0:
                continue
            left -= 1
            look = measure(cell, probe_requests) or 0.0
            if best in looks and look <= looks[best] * (1 + TIE):
                rates[cell] = 0.0
                continue
            looks[cell] = look
            rates[cell] = measure(cell, requests) or 0.0
            if rates[cell] > rates[best] * (1 + TIE):
                best, improved = cell, True
                break
    return Found(best, rates[best], max(looks.values()))
