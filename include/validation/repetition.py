"""Loops: repeated n-grams, a phrase said over and over, a string of the same characters; and copy that is the input again."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from include.validation.registry import validator
from include.validation.view import View, nfc

_RUN = re.compile(r"([^\W\d_])\1{7}|([^\s\d.,_*=~#-])\2{11}|([\d.,_*=~#-])\3{39}")
_TIGHT = re.compile(r"([^\W\d_].{1,23}?)\1{3}", re.S)
_MAX_PERIOD = 24  # tokens
_TIGHT_TOKEN = 16  # characters; in shorter pieces only runs are looked for


def repeated_ngram_ratio(tokens: Sequence[str], n: int = 3) -> float:
    """Share of n-grams that were there before: 1 - distinct / all; 0 for texts shorter than n."""
    total = len(tokens) - n + 1
    return 1 - len(set(zip(*[tokens[i:] for i in range(n)], strict=False))) / total if total > 0 else 0.0


def has_loop(tokens: Sequence[str]) -> bool:
    """A phrase that runs on: one to four words four times, or five and more words three times. One pass per
    phrase length that the text suggests.

    `12 x 12 x 12 in`, `New York New York` and `Let it snow! Let it snow! Let it snow!` are no loops.
    """
    for period in sorted(_periods(tokens)):
        needed = period * (3 if period < 5 else 2)
        run = 0
        for i in range(period, len(tokens)):
            run = run + 1 if tokens[i] == tokens[i - period] else 0
            if run >= needed and any(map(str.isalpha, tokens[i - period + 1 : i + 1])):  # "5 x 5 x 5" is a size
                return True
    return False


def _periods(tokens: Sequence[str]) -> set[int]:
    """Distances at which a 3-gram comes again: the only phrase lengths that can run on."""
    last: dict[tuple[str, str, str], int] = {}
    found: set[int] = set()
    for i, gram in enumerate(zip(tokens, tokens[1:], tokens[2:], strict=False)):
        found.add(i - last.get(gram, -_MAX_PERIOD - 1))
        last[gram] = i
    return {period for period in found if period <= _MAX_PERIOD}


def is_doubled(tokens: Sequence[str]) -> bool:
    """Whether the text is one phrase of three or more words said twice."""
    half, odd = divmod(len(tokens), 2)
    return half > 2 and not odd and tokens[:half] == tokens[half:]


@validator("repetition")
def repetition(view: View) -> bool:
    """More repeated 3-grams than `max_repeated_ngram_ratio` (from 14 words), a phrase in a loop, or the text said twice."""
    tokens = view.tokens
    if len(tokens) < 4 or len(set(tokens)) == len(tokens) or len(view.pairs) == len(tokens) - 1:
        return False  # no word, or no two words running, come again
    ratio = repeated_ngram_ratio(tokens) if len(tokens) >= 14 else 0.0
    if ratio > view.settings.max_repeated_ngram_ratio:
        return True
    return (ratio > 0 or len(tokens) < 14) and (is_doubled(tokens) or has_loop(tokens))


@validator("char_repetition")
def char_repetition(view: View) -> bool:
    """One character in a long run, or a short string four times running without spaces (also in scripts without spaces)."""
    # A run of eight in a shorter piece goes over its middle; either fault says at least six of its characters again.
    for token in view.tokens:
        if (
            len(token) > 8
            and (len(token) >= _TIGHT_TOKEN or token[7] == token[8] or token[7] == token[6])
            and len(token) - len(set(token)) > 5
            and (_RUN.search(token) or (len(token) >= _TIGHT_TOKEN and _TIGHT.search(token)))
        ):
            return True
    return False


@validator("copied_through")
def copied_through(view: View) -> bool:
    """The output is the source's field again: word-bigram similarity (Dice) at or above `max_copied_ratio`."""
    limit = view.settings.max_copied_ratio
    if limit is None:
        return False
    tokens, source = view.tokens, nfc(getattr(view.source, view.task.field, view.source.description)).lower().split()
    if tokens == source:
        return bool(tokens)
    if len(tokens) < 3 or len(source) < 3 or 2 * min(len(tokens), len(source)) < limit * (len(tokens) + len(source)):
        return False
    ours, theirs = view.pairs, set(pairwise(source))
    return 2 * len(ours & theirs) / (len(ours) + len(theirs)) >= limit
