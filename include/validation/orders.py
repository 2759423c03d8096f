"""Text that gives orders to a language model, as merchants' listings sometimes do."""

from __future__ import annotations

import re

from include.validation.phrases import any_of

# An order holds one of these; looking for them first spares nearly every text the pattern.
_HINTS = any_of(
    "ignor", "disregard ", "forget ", "override ", "bypass ", "answer ", "respond ", "reply ", " only:", " only th", ' only "',
    " only “", "nothing but", "you are no", " prompt", "new instruction", "act as ", "ehave as ", "do not follow", "oublie",
    "vergiss", "olvida", "negeer", "dimentica",
)  # fmt: skip
_OBJECT = r"(?:instructions?|prompts?|commands?|rules)"
ORDER = re.compile(  # over lower-case text
    r"\b(?:ignore|disregard|forget|override|bypass)\b (?:[\w,]+ ){0,4}?(?:all|any|the|your|my|these|those|previous|prior|above|earlier|preceding|initial|other|system)"
    rf" (?:\w+ ){{0,3}}?{_OBJECT}\b"
    r"|\b(?:ignore|disregard|forget) (?:everything|all|anything|what)\b[^.!?\n]{0,20}\b(?:above|before|previous(?:ly)?|prior|earlier|told)\b"
    r"|\b(?:answer|respond|reply) (?:only|exactly|just|with only|with exactly|nothing but)\b"
    r'|\b(?:output|print|write|say|return) (?:only|nothing but)(?::| the following| this| the text| ["“])'
    r"|\byou are (?:now|no longer) (?:an?|the|in|bound|under|my)\b|\b(?:system|developer) prompt\b|\bnew instructions? ?:"
    r"|\b(?:act|behave|respond) as (?:if you|an? (?:ai|assistant|unrestricted|different))\b"
    rf"|\bdo not follow\b[^.!?\n]{{0,30}}\b{_OBJECT}\b"
    r"|\b(?:ignorez|ignoriere|ignora|ignorar|oublie[zr]?|vergiss|olvida|negeer|dimentica)\b[^.!?\n]{0,40}\b(?:instruc|anweisung|istruzion|consignes?\b)"
)


def may_order(lower: str) -> bool:
    """Whether a text (lower case) is worth a closer look."""
    return _HINTS.search(lower) is not None


def has_order(lower: str) -> bool:
    """Whether a text (lower case) gives orders to a model."""
    return may_order(lower) and ORDER.search(lower) is not None
