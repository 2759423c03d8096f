"""Numbers and quantities in copy: finding them, reading them by locale, and comparing them over units.

A written number can mean two things (`1.234`); the output's is read by its locale, the source's in every way it could be
meant, since merchants paste from anywhere. Factors are the exact ones of the international yard and pound agreement of
1959 and of the US customary fluid measures.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property, lru_cache
from itertools import islice
from typing import NamedTuple

from include.validation.units import IDIOM, UNITS, WORD_NUMBERS, Unit

# One number with the letters that touch it. The lookbehind starts a match at a token's start only: linear.
_NUMBER = re.compile(r"(?<![^\W_])([^\W\d_]*+)(\d+(?:[.,]\d+)*)([^\W_]*)")
_UNIT = re.compile(
    r"(?:[ \u00a0\u202f\t-]?(fl\.? ?oz|sq\.? ?(?:ft|in|m)|[^\W\d_]{1,14}(?:[/²³][^\W\d_]{1,4}|²|³)?|[%″′”’]|''|[\"'°º](?: ?[cf]\b)?))",
    re.I,
)
_PLAIN_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_FRACTION = re.compile(r"(?<![\d.,/])(?:(\d{1,4})[ -])?(\d{1,3})/(\d{1,3})(?![\d/])")
_TIMES = re.compile(r"(?<=\d)[xX×](?=\d)")  # 12x18, 4x2.3 GHz
_VULGAR = re.compile(r"(\d{0,4}) ?([¼½¾⅐-⅞])")
_GROUPED = re.compile(r"(?<![\d.,])\d{1,3}(?:[ \u00a0\u202f'’]\d{3})+(?!\d)")
_NARROW = re.compile(r"(?<![\d.,])\d{1,3}(?:[\u00a0\u202f]\d{3})+(?!\d)")
_SPACED = re.compile(r"(?<![\d.,])\d{1,3}(?:[ \u00a0\u202f]\d{3})+(?!\d)")  # where a comma is the decimal separator
_NO_DIGIT = re.compile(r"\D")
_DIGIT = re.compile(r"\d")
_SEPARATORS = re.compile(r"(?<!\d)[\W_]+|[\W_]+(?!\d)")
_ORDINAL = frozenset({"st", "nd", "rd", "th", "er", "e", "ème", "º", "ª", "o", "a", "s", "ers"})
_DIMENSION = re.compile(r"\s{0,3}[a-z\"'″′]{0,4}\s{0,3}[x×*]\s{0,3}\d", re.I)
# What follows "in", "to" and "a" where they are prepositions or articles, not inches, terabytes or amperes.
_PREPOSITION = re.compile(
    r"\s+(?:\d|(?:the|an?|one|your|our|this|total|all|each|any|every|stock|store|box|pack|day|week|month|year|time|pair|set|der|die|dem|den"
    r"|einem|einer|un|una|une|il|la|le|el)\b)",
    re.I,
)
_BY = re.compile(r"(?<![a-cefgi-km-vxyz])[x×]\s*\d")  # `10L x 5W`, and not "max 5W"
_IN_NUMBER = frozenset("0123456789.,")
_HYPHENED = re.compile(r"-\d")  # 2-in-1
_DENOMINATORS = frozenset((2, 3, 4, 5, 6, 8, 10, 12, 16, 32, 64))
_MAX_DIGITS = 18  # longer runs are codes, compared as text
_LONG_SOURCE = 50_000  # characters; from here on its table of numbers costs less than searches
_MOST_UNPROVEN = (
    200  # quantities that are compared; a text that is all numbers must not cost time quadratic in its length
)


class Quantity(NamedTuple):
    """A number as written, the values it may have, and what it counts. `unit` is None for a bare number."""

    text: str  # as it stands, with its unit
    values: tuple[float, ...]
    decimals: int = 0
    unit: tuple[Unit, ...] | None = None
    code: str = ""  # set for a mix of letters and digits that is no quantity: a model number


@lru_cache(maxsize=256)
def decimal_symbol(locale: str) -> str:
    """The decimal separator of a locale by CLDR; a point for locales that CLDR does not know."""
    from babel import UnknownLocaleError
    from babel.numbers import get_decimal_symbol

    try:
        return get_decimal_symbol(locale.replace("-", "_"), numbering_system="latn")
    except (UnknownLocaleError, ValueError, TypeError):
        return "."


def number_values(text: str, decimal: str | None) -> tuple[float, ...]:
    """The values that digits with points and commas can have; with `decimal` given, an ambiguous form has only one.

    `1,234` is 1234 where the decimal separator is a point and 1.234 where it is a comma; `1.5` is 1.5 anywhere.
    """
    if len(text) > _MAX_DIGITS:
        return ()
    separators = [c for c in text if c in ".,"]
    if not separators:
        return (float(text),)
    *whole, last = text.replace(",", ".").split(".")
    grouped = all(len(p) == 3 for p in (*whole[1:], last)) and 1 <= len(whole[0]) <= 3 and whole[0] != "0"
    as_decimal, as_whole = float(f"{''.join(whole)}.{last}"), float("".join(whole) + last)
    if len(separators) == 1:
        if not grouped:
            return (as_decimal,)
        if decimal is None:
            return (as_decimal, as_whole)
        return (as_decimal,) if separators[0] == decimal else (as_whole,)
    if len(set(separators)) == 1:
        return (as_whole,) if grouped else ()  # 1.234.567, or a version such as 4.4.2, which is compared as text
    return (as_decimal,) if len(set(separators[:-1])) == 1 else ()


def _unit_after(text: str, end: int, post: str) -> tuple[tuple[Unit, ...] | None, int]:
    """The unit that follows a number (touching it, or after one space or hyphen) and where it ends."""
    found = _UNIT.match(text, end - len(post))
    if found is None:
        return None, end
    name = found.group(1)
    key = name.lower().replace(" ", "").replace(".", "")
    if key not in UNITS:
        key = key.split("/", 1)[0]  # "130 W/channel"
    if key not in UNITS:
        return None, end
    if _is_preposition(text, name, found):
        return (IDIOM,) if name.lower() == "in" and not post else None, end
    return (None, end) if _is_label(text, name, found) else (UNITS[key], found.end())


def _is_preposition(text: str, name: str, found: re.Match[str]) -> bool:
    """`5 in the box`, `2 in 1`, `5 to 10`, `3 a day`: no inches, terabytes or amperes."""
    if name.lower() not in ("in", "to", "go", "mo", "a"):
        return False
    if name.lower() in ("to", "go") and name not in ("To", "Go"):
        return True
    touching = found.start() + len(name) == found.end()
    return not touching and (
        _PREPOSITION.match(text, found.end()) is not None
        or (text[found.start()] == "-" and _HYPHENED.match(text, found.end()) is not None)
    )


def _is_label(text: str, name: str, found: re.Match[str]) -> bool:
    """`10 L x 5 W x 3 H` and 5G: no litres, watts, hours or grams; 520G is grams."""
    start = found.start()
    if name == "G":
        return found.end() - start == 1 and text[max(0, start - 2) : start - 1] not in _IN_NUMBER
    if len(name) > 1 or name not in "LWHDlwhd":
        return False
    around = f"{text[max(0, start - 12) : start]} {text[found.end() : found.end() + 6]}".lower()
    return _BY.search(around) is not None


def quantities(text: str, decimal: str | None) -> Iterator[Quantity]:
    """Numbers of a text in order, fractions read as decimals."""
    if decimal is not None:
        text = (_SPACED if decimal == "," else _NARROW).sub(lambda m: _NO_DIGIT.sub("", m.group()), text)
    if "/" in text:
        text = _FRACTION.sub(_as_decimal, text)
    if "x" in text or "X" in text or "×" in text:
        text = _TIMES.sub(" x ", text)
    if not text.isascii():
        text = _VULGAR.sub(lambda m: f"{int(m[1] or 0) + unicodedata.numeric(m[2]):.6g}", text)
    for found in _NUMBER.finditer(text):
        (pre, num, post), end = found.groups(), found.end()
        if pre:
            yield Quantity(found.group(), (), code=found.group())
            continue
        decimals = len(num.rsplit(".", 1)[-1].rsplit(",", 1)[-1]) if "." in num or "," in num else 0
        unit, unit_end = _unit_after(text, end, post)
        values = number_values(num, decimal)
        if post and unit is None and post.lower() not in _ORDINAL:
            if post in ("k", "K"):  # 65K colours, 65,000 colours
                values += tuple(value * 1000 for value in values)
            yield Quantity(found.group(), values, decimals, code=found.group())
            continue
        if unit is None and _DIMENSION.match(text, end):
            unit = _unit_of_dimensions(text, end)
        yield Quantity(text[found.start() : unit_end], values, decimals, unit)


def _unit_of_dimensions(text: str, end: int) -> tuple[Unit, ...] | None:
    """The unit behind `12 x 18 x 4 cm` for its first numbers."""
    for found in islice(_NUMBER.finditer(text, end, end + 48), 3):
        if found[3] or not _DIMENSION.match(text, found.end()):
            return _unit_after(text, found.end(), found[3])[0]
    return None


def _as_decimal(found: re.Match[str]) -> str:
    whole, top, bottom = int(found[1] or 0), int(found[2]), int(found[3])
    return f"{whole + top / bottom:.6g}" if bottom in _DENOMINATORS and top < bottom else found.group()


def squash(text: str) -> str:
    """Letters and digits of a text, lower case, with separators kept only between two digits."""
    return _SEPARATORS.sub("", text.lower())


class SourceNumbers:
    """All that a source says in numbers: values with their units, spelled-out numbers, and text to find codes in."""

    def __init__(self, text: str, words: frozenset[str]) -> None:
        self.text, self.words = text, words
        self.units: dict[float, set[Unit | None]] = defaultdict(set)
        self.codes: set[str] = set()
        self.coded: set[float] = set()
        bases: dict[Unit, set[float]] = defaultdict(set)
        for body in (text, text.replace("/", " / ")) if "/" in text else (text,):  # 1/2 is 0.5, and two numbers
            for quantity in quantities(body, None):
                if quantity.code:  # "3G" says nothing of 3 grams, "3pockets" that there are 3
                    self.coded.update(quantity.values)
                    self.codes.add(squash(quantity.code))
                    continue
                for value in quantity.values:
                    self.units[value].update(quantity.unit or (None,))
                    for unit in quantity.unit or ():
                        bases[unit].add(unit.base(value))
        for found in _GROUPED.finditer(text):
            value = float(_NO_DIGIT.sub("", found.group())[:_MAX_DIGITS])
            self.units[value].update(_unit_after(text, found.end(), "")[0] or (None,))
        for word in words & WORD_NUMBERS.keys():
            for value in WORD_NUMBERS[word]:
                self.units[value].add(None)
        self.measured: dict[str, list[tuple[Unit, list[float]]]] = defaultdict(list)  # by dimension, in order
        for unit, found_bases in bases.items():
            self.measured[unit.dimension].append((unit, sorted(found_bases)))

    @cached_property
    def raw(self) -> frozenset[str]:
        return frozenset(_PLAIN_NUMBER.findall(self.text))

    @cached_property
    def squashed(self) -> str:
        return squash(self.text)

    def has_number(self, quantity: Quantity) -> bool:
        number = _PLAIN_NUMBER.match(quantity.text)
        if number is not None and number.group() in self.raw:
            return True
        return any(v in self.units or v in self.coded for v in quantity.values)

    def has_quantity(self, quantity: Quantity) -> bool:
        """The same value with a compatible unit, or with none at all."""
        for value in quantity.values:
            known = self.units.get(value)
            if known is None:
                continue
            ours = quantity.unit or (IDIOM,)
            if IDIOM in ours or not known.isdisjoint(ours) or known == {None}:
                return True
            if not known.isdisjoint((None, IDIOM)) and any(unit.dimension == "count" for unit in ours):
                return True
        return False

    def converts(self, quantity: Quantity) -> bool:
        """Whether the quantity is one of the source's in another unit, rounded to the digits that are written."""
        for unit in quantity.unit or ():
            for value in quantity.values:
                ours = unit.base(value)
                slack = max(unit.factor * 0.5 * 10.0**-quantity.decimals, abs(ours) * 0.005)
                slack = min(slack, abs(ours) * 0.06)
                for other, bases in self.measured.get(unit.dimension, ()):
                    at = bisect_left(bases, ours - slack)
                    if other != unit and at < len(bases) and bases[at] <= ours + slack:
                        return True
        return False

    def has_code(self, code: str) -> bool:
        """Whether a model number stands in the source, spaces and hyphens aside."""
        wanted, text, at = squash(code), self.squashed, -1
        if wanted in self.codes:
            return True
        for _ in range(_MOST_UNPROVEN):
            at = text.find(wanted, at + 1)
            if at < 0:
                return False
            before, after = text[max(0, at - 1) : at], text[at + len(wanted) : at + len(wanted) + 1]
            if not (wanted[0].isdigit() and before.isdigit()) and not (wanted[-1].isdigit() and after.isdigit()):
                return True
        return False


def _literal(needle: str, text: str) -> bool:
    """Whether a quantity stands in the text as a whole: not as part of a longer number or word."""
    at = text.find(needle)
    while at >= 0:
        end = at + len(needle)
        before, after = text[max(0, at - 2) : at], text[end : end + 2]
        inside = before[-1:].isalnum() or (before[-1:] in (".", ",") and before[:1].isdigit())
        if not inside and not after[:1].isalnum() and not (after[:1] in (".", ",", "/") and after[1:].isdigit()):
            return True
        at = text.find(needle, end)
    return False


def _all_literal(tokens: list[str], source: str) -> bool:
    """Whether every piece with a digit, with the piece behind it, stands in the source: the usual case, and a cheap test."""
    pieces = {
        " ".join(tokens[i : i + 2])
        for i, t in enumerate(tokens)
        if not t.isalpha() and (t[0].isdecimal() or t[-1].isdecimal() or _DIGIT.search(t))
    }
    if not pieces:
        return True
    if len(pieces) > _MOST_UNPROVEN or len(source) > _LONG_SOURCE:
        return False
    padded = f" {source} ".replace("\n", " ")
    return all(f" {piece} " in padded for piece in pieces)


def unproven_quantities(output: str, tokens: list[str], source_lower: str, locale: str) -> Iterator[Quantity]:
    """Quantities of the output that do not stand in the source letter for letter."""
    if _all_literal(tokens, source_lower):
        return
    seen: set[str] = set()
    for quantity in quantities(output, decimal_symbol(locale)):
        key = quantity.text.lower()
        if key in seen or (len(source_lower) < _LONG_SOURCE and _literal(key, source_lower)):
            continue
        seen.add(key)
        yield quantity
        if len(seen) == _MOST_UNPROVEN:
            return
