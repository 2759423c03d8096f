"""Length in characters, words and sentences; include.validation.counting says how those are counted."""

from __future__ import annotations

from include.validation.counting import WIDE, count_sentences, count_words, is_unspaced
from include.validation.registry import validator
from include.validation.view import View

_TERMINATORS = ".!?\n…。！？؟।"


@validator("too_short", "too_long", "too_few_words", "too_many_words", "too_few_sentences", "too_many_sentences")
def lengths(view: View) -> list[str]:
    """Fewer or more than the task's limits: characters are code points, an ideograph counting twice towards the minimum;
    words are looked at only in scripts that separate them."""
    limits, text, pieces, found = view.settings.length, view.output, view.tokens, []
    if len(text) > limits.max_chars:
        found.append("too_long")
    elif len(text) < limits.min_chars and len(text) + len(WIDE.findall(text)) < limits.min_chars:
        found.append("too_short")
    least, most = limits.min_words, limits.max_words
    enough = sum([piece[0].isalnum() for piece in pieces[: 2 * least]]) >= least
    if not (enough and (most is None or len(pieces) <= most)) and not is_unspaced(text):
        count = count_words(text)
        if count < least:
            found.append("too_few_words")
        elif most is not None and count > most:
            found.append("too_many_words")
    least, most = limits.min_sentences, limits.max_sentences
    # The text is not empty, so it has one, and it has at most one more than terminators.
    if least > 1 or (most is not None and sum(map(text.count, _TERMINATORS)) >= most):
        count = max(1, count_sentences(text))
        if count < least:
            found.append("too_few_sentences")
        elif most is not None and count > most:
            found.append("too_many_sentences")
    return found
