"""The judge's continuous score: how probable a clean answer was, read from token probabilities.

An answer takes three decisions: leave "unsupported" empty, leave "contradictory" empty, and say "pass". At each of them
the probability mass of the alternatives that the engine reports is split; the score is the product. It ranks texts and is
given meaning by the calibration, which picks the threshold.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from include.generation.engine import TokenLogprob

_LIST = r'"{}"\s*:\s*\[?\s*\Z'
_DECISIONS = (
    (re.compile(_LIST.format("unsupported")), "]", '"'),
    (re.compile(_LIST.format("contradictory")), "]", '"'),
    (re.compile(r'"verdict"\s*:\s*"?\Z'), "p", "f"),
)
_SKIPPED = {"]": " \n\t[:", "p": ' \n\t":'}


def _mass(token: TokenLogprob, good: str, bad: str) -> tuple[float, float]:
    """Shares of the alternatives that decide for `good`, and that decide nothing yet."""
    decided = {good: 0.0, bad: 0.0, "": 0.0}
    for text, logprob in token.top.items():
        first = text.lstrip(_SKIPPED[good])[:1]
        if first in decided:
            decided[first] += math.exp(logprob)
    total = sum(decided.values())
    return (decided[good] / total, decided[""] / total) if total > 0 else (0.0, 1.0)


def clean_probability(tokens: Sequence[TokenLogprob]) -> float | None:
    """Score of one answer in [0, 1]; None where it does not take all three decisions or has no probabilities."""
    found: list[float | None] = [None, None, None]
    open_mass = [1.0, 1.0, 1.0]
    prefix = ""
    for token in tokens:
        if not token.top:
            return None
        for index, (place, good, bad) in enumerate(_DECISIONS):
            if place.search(prefix):
                share, undecided = _mass(token, good, bad)
                found[index] = (found[index] or 0.0) + open_mass[index] * share
                open_mass[index] *= undecided
        prefix += token.token
    scores = [score for score in found if score is not None]
    return min(1.0, math.prod(scores)) if len(scores) == len(found) else None
