"""Loops: repeated n-grams, a phrase said over and over, a string of the same characters; and copy that is the input again."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from include.validation.registry import validator
from include.validation.view import View

_RUN = re.compile(r"([^\W\d_])\1{7,}|([^\s\d.,_*=~#-])\2{11,}|([\d.,_*=~#-])\3{39,}")
_TIGHT = re.compile(r"([^\W\d_].{1,23}?)\1{3}", re.S)
_MAX_PERIOD = 24
_LONG_TOKEN = 16


def repeated_ngram_ratio(tokens: Sequence[str], n: int = 3) -> float:
    """Share of n-grams that were there before: 1 - distinct / all; 0 for texts shorter than n + 2 tokens."""
    total = len(tokens) - n + 1
    if total < 3:
        return 0.0
    return 1 - len(set(zip(*(tokens[i:] for i in range(n)), strict=False))) / total


def has_loop(tokens: Sequence[str]) -> bool:
    """A phrase of two or more words three times running, or one word four times. Linear: one pass per phrase length.

    `12 x 12 x 12` and `New York New York` are no loops.
    """
    size = len(tokens)
    for period in range(1, min(_MAX_PERIOD, size // 3) + 1):
        needed = period * 2 if period > 1 else 3
        run = 0
        for i in range(period, size):
            run = run + 1 if tokens[i] == tokens[i - period] else 0
            if run >= needed:
                phrase = tokens[i - period + 1 : i + 1]
                if any(t.isalpha() for t in phrase):  # number patterns such as "5 x 5 x 5 x 5" are sizes
                    return sum(map(len, phrase)) > 2 or run >= 7
    return False


@validator("repetition")
def repetition(view: View) -> bool:
    """More repeated 3-grams than `max_repeated_ngram_ratio`, or a phrase in a loop."""
    tokens = view.tokens
    if len(tokens) < 4 or len(set(tokens)) == len(tokens):
        return False
    ratio = repeated_ngram_ratio(tokens) if len(tokens) > 4 else 1.0
    return ratio > 0 and ((ratio > view.settings.max_repeated_ngram_ratio and len(tokens) > 4) or has_loop(tokens))


@validator("char_repetition")
def char_repetition(view: View) -> bool:
    """One character in a long run, or a short string four times running without spaces (also in scripts without spaces)."""
    if max(map(len, view.tokens), default=0) < 8:
        return False
    if _RUN.search(view.lower):
        return True
    return any(_TIGHT.search(token) is not None for token in view.tokens if len(token) >= _LONG_TOKEN)


@validator("copied_through")
def copied_through(view: View) -> bool:
    """The output is the source's field again: word-bigram similarity (Dice) at or above `max_copied_ratio`."""
    limit = view.settings.max_copied_ratio
    if limit is None:
        return False
    source = view.source_field.lower().split()
    tokens = view.tokens
    if tokens == source:
        return bool(tokens)
    if len(tokens) < 3 or len(source) < 3 or 2 * min(len(tokens), len(source)) < limit * (len(tokens) + len(source)):
        return False
    ours, theirs = set(itertools.pairwise(tokens)), set(itertools.pairwise(source))
    return 2 * len(ours & theirs) / (len(ours) + len(theirs)) >= limit
