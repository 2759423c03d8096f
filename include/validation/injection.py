"""Orders and links that merchants or models slip in: prompt injection in the source, foreign addresses in the output."""

from __future__ import annotations

import re
from itertools import islice

from include.validation.orders import ORDER, has_order, may_order
from include.validation.registry import validator
from include.validation.view import View

_SENTENCE = re.compile(r"(?<=[.!?])\s+")
_LONGEST = 300  # characters of an order
_MOST = 8  # orders looked at in one text
_MOST_ADDRESSES = 200  # of each kind; a text that is all addresses must not cost time quadratic in its length

_WORD = re.compile(r"\w+")
_TLD = "com|net|org|info|biz|io|co|ai|app|dev|shop|store|online|site|xyz|top|club|example|test|invalid|de|fr|es|it|nl|uk|us|eu|ru|cn|jp|in|br|pl|ch|at|be|se|me|tv|ly|gl|link|click|deals|sale|buy"
_URL = re.compile(
    r"https?://[^\s<>\"')]+|\bwww\.[^\s<>\"')]+|(?<![\w@.-])(?:[a-z0-9-]{1,63}\.){0,3}[a-z0-9-]{2,63}\.(?:"
    rf"{_TLD})(?![\w-]|\.\w)(?:/[^\s<>\"')]*)?"
)
_LINK = re.compile(r"[\w-]{2,63}\.[a-z]{2,}")
_DOTTED = re.compile(r"\.[a-z][a-z]")
_EMAIL = re.compile(r"[\w.+-]{1,64}@[\w-]{1,63}\.\w{2,}")
_PHONE_TAIL = re.compile(r"\d[ .-]\d{4}(?!\d)")
_PHONE = re.compile(r"(?<![\w.])(?:\+\d{1,3}[ .-]?)?\(?\d{3}\)?[ .-]\d{3}[ .-]\d{4}(?![\w.])")


def _orders(lower: str) -> list[str]:
    """What a text tells the model to do: each order's sentence from the order on, and the sentence behind it."""
    found = []
    for match in islice(ORDER.finditer(lower), _MOST):
        line = lower[match.start() : match.start() + _LONGEST].split("\n", 1)[0]
        found.append(" ".join(_SENTENCE.split(line, maxsplit=2)[:2]))
    return found


def _obeys(output: str, source: str) -> bool:
    """Whether the output holds a link, or three words running, that stand in the source's orders only."""
    squeezed = f" {' '.join(_WORD.findall(output))} "
    for order in _orders(source):
        if any(link in output for link in _LINK.findall(order)):
            return True
        words = _WORD.findall(ORDER.sub("\n", order))
        elsewhere = " ".join(_WORD.findall(source.replace(order, " ")))
        for start in range(max(1, len(words) - 2)):
            phrase = " ".join(words[start : start + 3])
            if len(phrase) > 5 and f" {phrase} " in squeezed and phrase not in elsewhere:
                return True
    return False


@validator("injected_instruction", "suspicious_source", flags=["suspicious_source"])
def orders(view: View) -> list[str]:
    """The output obeys or repeats an order that stands in the merchant's text, or holds such an order itself. A source that
    gives orders is flagged: the row is judged by its output."""
    ours, theirs = view.lower, view.source.lower
    if not may_order(f"{theirs}\n{ours}"):  # one look for both
        return []
    suspicious = has_order(theirs)
    found = ["injected_instruction"] if has_order(ours) or (suspicious and _obeys(ours, theirs)) else []
    return [*found, "suspicious_source"] if suspicious else found


@validator("foreign_url", when="0-9.:@")
def foreign_url(view: View) -> bool:
    """A link, mail address or telephone number that the source does not hold."""
    text, said = view.lower, view.source.lower
    for wanted, pattern in (
        ("://" in text or ("." in text and _DOTTED.search(text)), _URL), ("@" in text, _EMAIL),
        (_PHONE_TAIL.search(text), _PHONE)
    ):  # fmt: skip
        if wanted and any(
            m.group().rstrip(".,;:!?") not in said for m in islice(pattern.finditer(text), _MOST_ADDRESSES)
        ):
            return True
    return False
