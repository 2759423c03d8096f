"""Length in characters, words and sentences; include.validation.counting says how those are counted."""

from __future__ import annotations

from include.validation.counting import WIDE, count_sentences, count_words, is_unspaced
from include.validation.registry import validator
from include.validation.view import View

_TERMINATORS = ".!?\n"
_OTHER_TERMINATORS = "…。！？؟।"


@validator("too_short", "too_long")
def characters(view: View) -> list[str]:
    """Fewer characters than `min_chars`, where an ideograph counts twice, or more code points than `max_chars`."""
    limits, size = view.settings.length, len(view.output)
    if size > limits.max_chars:
        return ["too_long"]
    return ["too_short"] if size < limits.min_chars and size + len(WIDE.findall(view.output)) < limits.min_chars else []


@validator("too_few_words", "too_many_words")
def words(view: View) -> list[str]:
    """Fewer words than `min_words` or more than `max_words`, in scripts that separate words."""
    limits = view.settings.length
    least, most, pieces = limits.min_words, limits.max_words, view.tokens
    enough = sum([piece[0].isalnum() for piece in pieces[: 2 * least]]) >= least
    if (enough and (most is None or len(pieces) <= most)) or is_unspaced(view.output):
        return []
    count = count_words(view.output)
    return ["too_few_words"] if count < least else ["too_many_words"] if most is not None and count > most else []


@validator("too_few_sentences", "too_many_sentences")
def sentences(view: View) -> list[str]:
    """Fewer sentences than `min_sentences` or more than `max_sentences`."""
    least, most, text = view.settings.length.min_sentences, view.settings.length.max_sentences, view.output
    ends = _TERMINATORS if text.isascii() else _TERMINATORS + _OTHER_TERMINATORS
    # The text is not empty, so it has one, and it has at most one more than terminators.
    if least < 2 and (most is None or sum(map(text.count, ends)) < most):
        return []
    count = max(1, count_sentences(text))
    return (
        ["too_few_sentences"] if count < least else ["too_many_sentences"] if most is not None and count > most else []
    )
