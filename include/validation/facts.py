"""A deterministic fact check: numbers, units, model numbers, counts in words and the brand, against the source.

It answers "does the source say so", nothing finer; what needs reading is the judge's. A quantity that stands in the source
letter for letter never gets further than a substring search.
"""

from __future__ import annotations

import re

from include.validation.quantities import Quantity, SourceNumbers, unproven_quantities
from include.validation.registry import validator
from include.validation.units import IDIOM, WORD_NUMBERS
from include.validation.view import View, words_of

_COUNT_WORDS = re.compile(
    r"\b(?:pack|set|box) (?:of|de) ([^\W\d_]{2,12})\b|\b([^\W\d_]{3,9})[- ](?:packs?|pieces?|pcs|count)\b"
)
_COUNT_HINTS = ("pack", "piece", "set of", "box of", "count", "pcs")
_NUMBER_WORDS = frozenset(WORD_NUMBERS)
_NO_LETTERS = re.compile(r"[\W_]+")


@validator("number_not_in_source", "unit_changed", "model_not_in_source")
def numbers(view: View) -> list[str]:
    """A number that the source holds neither in digits, nor in words, nor in another unit; a number of the source with a
    unit that the source does not give it; a mix of letters and digits (WH-1000XM4) that the source does not hold, spaces
    and hyphens aside."""
    wrong = {"number_not_in_source"} if _has_new_count_word(view) else set()
    for quantity in unproven_quantities(view.output, view.tokens, view.source.lower, view.source.locale):
        wrong.update(_problems(quantity, view.source.numbers))
    return [code for code in ("number_not_in_source", "unit_changed", "model_not_in_source") if code in wrong]


def _problems(quantity: Quantity, source: SourceNumbers) -> list[str]:
    known = source.has_number(quantity)
    if not quantity.code:
        if source.has_quantity(quantity) or (known and quantity.unit in (None, (IDIOM,))) or source.converts(quantity):
            return []
        return ["unit_changed" if known else "number_not_in_source"]
    if source.has_code(quantity.code):
        return []
    letters = [word for word in words_of(quantity.code.lower()) if len(word) > 1]
    if quantity.values and known:  # "3pockets" for "3 pockets"
        return [] if source.words.issuperset(letters) else ["model_not_in_source"]
    return ["number_not_in_source", "model_not_in_source"] if quantity.values else ["model_not_in_source"]


def _has_new_count_word(view: View) -> bool:
    """ "Pack of three" or "six-piece" where the source has neither the word nor the number."""
    if _NUMBER_WORDS.isdisjoint(view.words) or not any(map(view.lower.__contains__, _COUNT_HINTS)):
        return False
    for of, before in _COUNT_WORDS.findall(view.lower):
        values = WORD_NUMBERS.get(of or before, ())
        if (
            values
            and (of or before) not in view.source.words
            and not any(v in view.source.numbers.units for v in values)
        ):
            return True
    return False


@validator("brand_changed")
def brand_changed(view: View) -> bool:
    """The brand is missing from a title whose source title names it, or stands misspelled by one letter."""
    brand = view.source.brand.strip().lower()
    if len(brand) < 2 or brand in view.lower:
        return False
    if view.task.field == "title" and brand in view.source.title.lower():
        squeezed = _NO_LETTERS.sub("", brand)
        return not squeezed or squeezed not in _NO_LETTERS.sub("", view.lower)
    if len(brand) < 5 or " " in brand:
        return False
    return any(_one_letter_off(word, brand) and word not in view.source.words for word in view.words)


def _one_letter_off(word: str, brand: str) -> bool:
    """Whether one insertion, deletion, substitution or swap of neighbours turns the brand into the word."""
    if abs(len(word) - len(brand)) > 1 or word == brand or word.startswith(brand):
        return False
    start = 0
    while start < min(len(word), len(brand)) and word[start] == brand[start]:
        start += 1
    a, b = word[start:], brand[start:]
    return a[1:] == b[1:] or a[1:] == b or a == b[1:] or (a[:2] == b[1::-1] and len(b) > 1 and a[2:] == b[2:])
