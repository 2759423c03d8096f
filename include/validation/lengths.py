"""Length in characters, words and sentences; include.validation.counting says how those are counted."""

from __future__ import annotations

from include.validation.counting import WIDE, count_words, is_unspaced
from include.validation.registry import validator
from include.validation.view import View

_TERMINATORS = ".!?…。！？\n؟।"


@validator("too_short")
def too_short(view: View) -> bool:
    """Fewer characters than `min_chars`; an ideograph counts twice."""
    size, least = len(view.output), view.settings.length.min_chars
    if size >= least:
        return False
    return view.ascii or size + len(WIDE.findall(view.output)) < least


@validator("too_long")
def too_long(view: View) -> bool:
    """More code points than `max_chars`."""
    return len(view.output) > view.settings.length.max_chars


@validator("too_few_words")
def too_few_words(view: View) -> bool:
    """Fewer words than `min_words`, in scripts that separate words."""
    least = view.settings.length.min_words
    if sum([token[0].isalnum() for token in view.tokens[: 2 * least]]) >= least:
        return False
    return count_words(view.output) < least and not is_unspaced(view.output)


@validator("too_many_words")
def too_many_words(view: View) -> bool:
    """More words than `max_words`, in scripts that separate words."""
    most = view.settings.length.max_words
    return (
        most is not None
        and len(view.tokens) > most
        and count_words(view.output) > most
        and not is_unspaced(view.output)
    )


@validator("too_few_sentences")
def too_few_sentences(view: View) -> bool:
    """Fewer sentences than `min_sentences`."""
    least = view.settings.length.min_sentences
    if least < 2:  # a text that is not empty has one
        return False
    return view.sentences < least


@validator("too_many_sentences")
def too_many_sentences(view: View) -> bool:
    """More sentences than `max_sentences`."""
    most = view.settings.length.max_sentences
    if most is None or sum(map(view.output.count, ".!?\n" if view.ascii else _TERMINATORS)) < most:
        return False
    return view.sentences > most
