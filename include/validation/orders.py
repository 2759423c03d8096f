"""Text that gives orders to a language model, as merchants' listings sometimes do."""

from __future__ import annotations

import re
from itertools import islice

# An order holds one of these; looking for them first spares nearly every text the pattern.
_HINTS = (
    "instru", "prompt", "rules", "command", "ignore ", "disregard ", "forget ", "answer ", "espond ", "reply ", "nothing but", " only:",
    " only th", "act as ", "ehave as ", "you are no", "anweis", "istruz", "consign",
)  # fmt: skip
_OBJECT = r"(?:instructions?|prompts?|commands?|rules)"
INJECTION = re.compile(
    r"\b(?:ignore|disregard|forget|override|bypass)\b (?:[\w,]+ ){0,4}?(?:all|any|the|your|my|these|those|previous|prior|above|earlier|preceding|initial|other|system)"
    rf" (?:\w+ ){{0,3}}?{_OBJECT}\b"
    r"|\b(?:ignore|disregard|forget) (?:everything|all|anything|what)\b[^.!?\n]{0,20}\b(?:above|before|previous(?:ly)?|prior|earlier|told)\b"
    r"|\b(?:answer|respond|reply) (?:only|exactly|just|with only|with exactly|nothing but)\b"
    r'|\b(?:output|print|write|say|return) (?:only|nothing but)(?::| the following| this| the text| ["“])'
    r"|\byou are (?:now|no longer) (?:an?|the|in|bound|under|my)\b|\b(?:system|developer) prompt\b|\bnew instructions? ?:"
    r"|\b(?:act|behave|respond) as (?:if you|an? (?:ai|assistant|unrestricted|different))\b"
    rf"|\bdo not follow\b[^.!?\n]{{0,30}}\b{_OBJECT}\b"
    r"|\b(?:ignorez|ignoriere|ignora|ignorar|oublie[zr]?|vergiss|olvida|negeer|dimentica)\b[^.!?\n]{0,40}\b(?:instruc\w*|anweisung\w*|istruzion\w*|instrucc\w*|consignes?)",
    re.I,
)
_SENTENCE = re.compile(r"(?<=[.!?])\s+")
_LONGEST = 300
_MOST = 8  # orders looked at in one text


def has_injection(lower: str) -> bool:
    """Whether a text (lower case) gives orders to a model."""
    return any(map(lower.__contains__, _HINTS)) and INJECTION.search(lower) is not None


def payloads(source: str) -> list[str]:
    """What a text orders the model to do: each order's sentence from the order on, and the sentence behind it."""
    found = []
    for match in islice(INJECTION.finditer(source), _MOST):
        line = source[match.start() : match.start() + _LONGEST].split("\n", 1)[0]
        found.append(" ".join(_SENTENCE.split(line, maxsplit=2)[:2]))
    return found
