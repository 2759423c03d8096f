"""Orders and links that merchants or models slip in: prompt injection in the source, foreign addresses in the output."""

from __future__ import annotations

import re

from include.validation.orders import INJECTION, has_injection, payloads
from include.validation.registry import validator
from include.validation.view import View

_WORD = re.compile(r"\w+")
_TLD = "com|net|org|info|biz|io|co|ai|app|dev|shop|store|online|site|xyz|top|club|example|test|invalid|de|fr|es|it|nl|uk|us|eu|ru|cn|jp|in|br|pl|ch|at|be|se|me|tv|ly|gl|link|click|deals|sale|buy"
_URL = re.compile(
    r"https?://[^\s<>\"')]+|\bwww\.[^\s<>\"')]+|(?<![\w@.-])(?:[a-z0-9-]{1,63}\.){0,3}[a-z0-9-]{2,63}\.(?:"
    + _TLD
    + r")(?![\w-]|\.\w)(?:/[^\s<>\"')]*)?",
    re.I,
)
_DOTTED = re.compile(r"\.[a-z][a-z]")
_EMAIL = re.compile(r"[\w.+-]{1,64}@[\w-]{1,63}\.\w{2,}")
_PHONE_TAIL = re.compile(r"\d[ .-]\d{4}(?!\d)")
_PHONE = re.compile(r"(?<![\w.])(?:\+\d{1,3}[ .-]?)?\(?\d{3}\)?[ .-]\d{3}[ .-]\d{4}(?![\w.])")


@validator("injected_instruction")
def injected_instruction(view: View) -> bool:
    """The output obeys or repeats an order that stands in the merchant's text, or holds such an order itself."""
    if has_injection(view.lower):
        return True
    if not view.suspicious:
        return False
    ours = view.lower
    squeezed = f" {' '.join(_WORD.findall(ours))} "
    for payload in payloads(view.source_lower):
        if any(link.group() in ours for link in re.finditer(r"[\w-]{2,63}\.[a-z]{2,}", payload)):
            return True
        words = _WORD.findall(INJECTION.sub("\n", payload))
        elsewhere = " ".join(_WORD.findall(view.source_lower.replace(payload, " ")))
        for start in range(max(1, len(words) - 2)):
            phrase = " ".join(words[start : start + 3])
            if len(phrase) > 5 and f" {phrase} " in squeezed and phrase not in elsewhere:
                return True
    return False


@validator("suspicious_source", flag=True)
def suspicious_source(view: View) -> bool:
    """The merchant's text gives orders to a model. A flag: the row is judged by its output."""
    return view.suspicious


@validator("foreign_url")
def foreign_url(view: View) -> bool:
    """A link, mail address or telephone number that the source does not hold."""
    lower = view.lower
    patterns = []
    if "://" in lower or _DOTTED.search(lower):
        patterns.append(_URL)
    if "@" in lower:
        patterns.append(_EMAIL)
    if view.has_digit and _PHONE_TAIL.search(lower):
        patterns.append(_PHONE)
    for pattern in patterns:
        for found in pattern.finditer(lower):
            if found.group().rstrip(".,;:!?") not in view.source_lower:
                return True
    return False
