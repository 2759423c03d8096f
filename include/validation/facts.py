"""A deterministic fact check: numbers, units, model numbers, counts in words and the brand, against the source.

It answers "does the source say so", nothing finer; what needs reading is the judge's. A quantity that stands in the source
letter for letter never gets further than a substring search.
"""

from __future__ import annotations

import re

from include.validation.quantities import SourceNumbers
from include.validation.registry import validator
from include.validation.units import WORD_NUMBERS
from include.validation.view import View

_COUNT_WORDS = re.compile(
    r"\b(?:pack|set|box) (?:of|de) ([^\W\d_]{2,12})\b|\b([^\W\d_]{3,9})[- ](?:packs?|pieces?|pcs|count)\b"
)
_COUNT_HINTS = ("pack", "piece", "set of", "box of", "count")
_SUFFIX = re.compile(r"['’]s$")


@validator("number_not_in_source")
def number_not_in_source(view: View) -> bool:
    """A number that the source holds neither in digits, nor in words, nor in another unit."""
    for quantity, numbers in view.unproven:
        if quantity.code and numbers.has_code(quantity.code):
            continue
        if quantity.code and not quantity.values:
            continue
        if not (numbers.has_number(quantity) or numbers.converts(quantity)):
            return True
    return _count_word_missing(view)


@validator("unit_changed")
def unit_changed(view: View) -> bool:
    """A number of the source with a unit that the source does not give it, and that is no conversion."""
    for quantity, numbers in view.unproven:
        if quantity.code or quantity.unit is None or not numbers.has_number(quantity):
            continue
        if not (numbers.has_quantity(quantity) or numbers.converts(quantity)):
            return True
    return False


@validator("model_not_in_source")
def model_not_in_source(view: View) -> bool:
    """A mix of letters and digits (WH-1000XM4) that the source does not hold, spaces and hyphens aside."""
    for quantity, numbers in view.unproven:
        if not quantity.code or numbers.has_code(quantity.code):
            continue
        letters = re.findall(r"[^\W\d_]+", quantity.code.lower())
        if quantity.values and numbers.has_number(quantity) and all(w in numbers.words for w in letters if len(w) > 1):
            continue  # "3pockets" for "3 pockets"
        return True
    return False


def _count_word_missing(view: View) -> bool:
    """ "Pack of three" or "six-piece" where the source has neither the word nor the number."""
    if not any(map(view.lower.__contains__, _COUNT_HINTS)):
        return False
    for found in _COUNT_WORDS.finditer(view.lower):
        word = found.group(1) or found.group(2)
        values = WORD_NUMBERS.get(word)
        if not values or word in view.source_words:
            continue
        if not any(value in SourceNumbers(view.source_text).units for value in values):
            return True
    return False


@validator("brand_changed")
def brand_changed(view: View) -> bool:
    """The brand is missing from a title whose source title names it, or stands misspelled by one letter."""
    brand = view.source.brand.strip().lower()
    if len(brand) < 2 or brand in view.lower:
        return False
    if view.task.field == "title" and brand in view.source.title.lower():
        squeezed = re.sub(r"[\W_]+", "", brand)
        return not squeezed or squeezed not in re.sub(r"[\W_]+", "", view.lower)
    if len(brand) < 5 or " " in brand:
        return False
    return any(
        _one_letter_off(_SUFFIX.sub("", token), brand) and token not in view.source_words for token in view.words
    )


def _one_letter_off(word: str, brand: str) -> bool:
    """Whether one insertion, deletion, substitution or swap of neighbours turns the brand into the word."""
    if abs(len(word) - len(brand)) > 1 or word == brand or word.startswith(brand):
        return False
    start = 0
    while start < min(len(word), len(brand)) and word[start] == brand[start]:
        start += 1
    a, b = word[start:], brand[start:]
    return a[1:] == b[1:] or a[1:] == b or a == b[1:] or (a[:2] == b[1::-1] and len(b) > 1 and a[2:] == b[2:])
