"""Numbers and quantities in copy: finding them, reading them by locale, and comparing them over units.

A written number can mean two things (`1.234`); the output's is read by its locale, the source's in every way it could be
meant, since merchants paste from anywhere. Factors are the exact ones of the international yard and pound agreement of
1959 and of the US customary fluid measures.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from include.validation.units import UNITS, WORD_NUMBERS, Unit

# One number with the letters that touch it. The lookbehind starts a match at a token's start only: linear.
_NUMBER = re.compile(r"(?<![^\W_])(?P<pre>[^\W\d_]*)(?P<num>\d+(?:[.,]\d+)*)(?P<post>[^\W_]*)")
_UNIT = re.compile(
    r"(?:[ \u00a0\u202f\t-]?(fl\.? ?oz|sq\.? ?(?:ft|in|m)|[^\W\d_]{1,14}(?:[/²³][^\W\d_]{1,4}|²|³)?|[%″′”’]|''|[\"'°º](?: ?[cf]\b)?))",
    re.I,
)
_FRACTION = re.compile(r"(?<![\d.,/])(?:(\d{1,4})[ -])?(\d{1,3})/(\d{1,3})(?![\d/])")
_TIMES = re.compile(r"(?<=\d)[xX×](?=\d)")  # 12x18, 4x2.3 GHz
_VULGAR = re.compile(r"(\d{0,4}) ?([¼½¾⅐-⅞])")
_GROUPED = re.compile(r"(?<![\d.,])\d{1,3}(?:[ \u00a0\u202f'’]\d{3})+(?![\d])")
_NARROW = re.compile(r"(?<![\d.,])\d{1,3}(?:[\u00a0\u202f]\d{3})+(?!\d)")
_SPACED = re.compile(r"(?<![\d.,])\d{1,3}(?:[ \u00a0\u202f]\d{3})+(?!\d)")  # where a comma is the decimal separator
_ORDINAL = frozenset({"st", "nd", "rd", "th", "er", "e", "ème", "º", "ª", "o", "a", "s", "ers"})
_DIMENSION = re.compile(r"\s{0,3}[a-z\"'″′]{0,4}\s{0,3}[x×*]\s{0,3}\d", re.I)
_DIGIT = re.compile(r"\d")
# What follows "in", "to" and "a" where they are prepositions or articles, not inches, terabytes or amperes.
_PREPOSITION = re.compile(
    r"\s+(?:\d|(?:the|an?|one|your|our|this|total|all|each|any|every|stock|store|box|pack|day|week|month|year|time|pair|set|der|die|dem|den"
    r"|einem|einer|un|una|une|il|la|le|el)\b)",
    re.I,
)
_MAX_DIGITS = 18  # longer runs are codes, compared as text


class Quantity(NamedTuple):
    """A number as written, the values it may have, and what it counts. `unit` is None for a bare number."""

    text: str  # as it stands, with its unit
    values: tuple[float, ...]
    decimals: int
    unit: tuple[Unit, ...] | None
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
    seps = [c for c in text if c in ".,"]
    if not seps:
        return (float(text),)
    parts = re.split(r"[.,]", text)
    plain = "".join(parts)
    grouped = all(len(p) == 3 for p in parts[1:]) and 1 <= len(parts[0]) <= 3 and parts[0] != "0"
    if len(seps) == 1:
        as_decimal = float(f"{parts[0]}.{parts[1]}")
        if not grouped:
            return (as_decimal,)
        if decimal is None:
            return (as_decimal, float(plain))
        return (as_decimal,) if seps[0] == decimal else (float(plain),)
    if len(set(seps)) == 1:
        return (float(plain),) if grouped else ()  # 1.234.567, or a version such as 4.4.2, which is compared as text
    if len(set(seps[:-1])) == 1 and seps[-1] != seps[0]:
        return (float(f"{''.join(parts[:-1])}.{parts[-1]}"),)
    return ()


def _unit_after(text: str, end: int, post: str) -> tuple[tuple[Unit, ...] | None, int]:
    """The unit that follows a number (touching it, or after one space or hyphen) and where it ends."""
    start = end - len(post)
    found = _UNIT.match(text, start)
    if found is None:
        return None, end
    name = found.group(1)
    key = name.lower().replace(" ", "").replace(".", "")
    if key not in UNITS:
        key = key.split("/", 1)[0]  # "130 W/channel"
    if key in UNITS and not _is_no_unit(text, name, found):
        return UNITS[key], found.end()
    return None, end


def _is_no_unit(text: str, name: str, found: re.Match[str]) -> bool:
    """Names that only look like units: `10 L x 5 W x 3 H`, 5G, `5 in the box`, `2 in 1`, `5 to 10`, `3 a day`."""
    lower = name.lower()
    if lower in ("in", "to", "go", "mo", "a"):
        touching = found.start() + len(name) == found.end()
        if lower in ("to", "go") and name not in ("To", "Go"):
            return True
        return not touching and _PREPOSITION.match(text, found.end()) is not None
    if len(name) > 1 or not name.isalpha():
        return False
    if name == "G":
        return found.end() - found.start() == 1
    if name in "LWHDlwhd":
        around = text[max(0, found.start() - 12) : found.start()] + " " + text[found.end() : found.end() + 6]
        return "x" in around.lower() or "×" in around
    return False


def quantities(text: str, decimal: str | None) -> Iterator[Quantity]:
    """Numbers of a text in order, fractions read as decimals."""
    if decimal is not None:
        text = (_SPACED if decimal == "," else _NARROW).sub(_joined, text)
    if "/" in text:
        text = _FRACTION.sub(_as_decimal, text)
    if "x" in text or "X" in text or "×" in text:
        text = _TIMES.sub(" x ", text)
    if not text.isascii():
        text = _VULGAR.sub(_vulgar_as_decimal, text)
    for found in _NUMBER.finditer(text):
        pre, num, post = found["pre"], found["num"], found["post"]
        end = found.end()
        decimals = len(num.rsplit(".", 1)[-1].rsplit(",", 1)[-1]) if "." in num or "," in num else 0
        if pre:
            yield Quantity(found.group(), (), 0, None, found.group())
            continue
        unit, unit_end = _unit_after(text, end, post)
        values = number_values(num, decimal)
        if post and unit is None and post.lower() not in _ORDINAL:
            if post in ("k", "K"):  # 65K colours, 65,000 colours
                values += tuple(value * 1000 for value in values)
            yield Quantity(found.group(), values, decimals, None, found.group())
            continue
        if unit is None and _DIMENSION.match(text, end):
            unit = _unit_of_dimensions(text, end)
        yield Quantity(text[found.start() : unit_end], values, decimals, unit)


def _unit_of_dimensions(text: str, end: int) -> tuple[Unit, ...] | None:
    """The unit behind `12 x 18 x 4 cm` for its first numbers."""
    for found in _NUMBER.finditer(text, end, end + 48):
        if found["post"] or not _DIMENSION.match(text, found.end()):
            return _unit_after(text, found.end(), found["post"])[0]
    return None


def _as_decimal(found: re.Match[str]) -> str:
    whole, top, bottom = int(found[1] or 0), int(found[2]), int(found[3])
    if bottom not in (2, 3, 4, 5, 6, 8, 10, 12, 16, 32, 64) or top >= bottom:
        return found.group()
    return f"{whole + top / bottom:.6g}"


def _joined(found: re.Match[str]) -> str:
    return re.sub(r"\D", "", found.group())


def _vulgar_as_decimal(found: re.Match[str]) -> str:
    return f"{int(found[1] or 0) + unicodedata.numeric(found[2]):.6g}"


class SourceNumbers:
    """All that a source says in numbers: values with their units, spelled-out numbers, and text to find codes in."""

    def __init__(self, text: str) -> None:
        self.units: dict[float, set[Unit | None]] = {}
        self.measured: dict[str, list[tuple[float, Unit]]] = {}  # by dimension: base values in order, with their units
        self.codes: set[str] = set()
        self.coded: set[float] = set()
        self.raw = set(re.findall(r"\d+(?:[.,]\d+)*", text))
        for fractions in (False, True):  # once with 1/2 as two numbers, once as 0.5
            if fractions and "/" not in text:
                continue
            body = _FRACTION.sub(_as_decimal, text) if fractions else text.replace("/", " / ")
            for quantity in quantities(body, None):
                self._add(quantity)
        for found in _GROUPED.finditer(text):
            value = float(re.sub(r"\D", "", found.group())[:_MAX_DIGITS])
            unit = _unit_after(text, found.end(), "")[0]
            for one in unit or (None,):
                self.units.setdefault(value, set()).add(one)
        for bases in self.measured.values():
            bases.sort()
        self.squashed = squash(text)
        self.words = frozenset(re.findall(r"[^\W\d_]+", text.lower()))
        for word in self.words:
            for value in WORD_NUMBERS.get(word, ()):
                self.units.setdefault(value, set()).add(None)

    def _add(self, quantity: Quantity) -> None:
        if quantity.code:  # "3G" says nothing of 3 grams, "3pockets" that there are 3
            self.coded.update(quantity.values)
            self.codes.add(squash(quantity.code))
            return
        for value in quantity.values:
            known = self.units.setdefault(value, set())
            if quantity.unit is None:
                known.add(None)
            else:
                known.update(quantity.unit)
                for unit in quantity.unit:
                    self.measured.setdefault(unit.dimension, []).append((unit.base(value), unit))

    def has_number(self, quantity: Quantity) -> bool:
        number = re.match(r"\d+(?:[.,]\d+)*", quantity.text)
        return (number is not None and number.group() in self.raw) or any(
            v in self.units or v in self.coded for v in quantity.values
        )

    def has_quantity(self, quantity: Quantity) -> bool:
        """The same value with a compatible unit, or with none at all."""
        for value in quantity.values:
            known = self.units.get(value)
            if known is None:
                continue
            if quantity.unit is None or known == {None} or any(unit in known for unit in quantity.unit):
                return True
            if None in known and any(unit.dimension == "count" for unit in quantity.unit):
                return True
        return False

    def converts(self, quantity: Quantity) -> bool:
        """Whether the quantity is one of the source's in another unit, rounded to the digits that are written."""
        for unit in quantity.unit or ():
            for value in quantity.values:
                ours = unit.base(value)
                slack = max(unit.factor * 0.5 * 10.0**-quantity.decimals, abs(ours) * 0.005)
                slack = min(slack, abs(ours) * 0.06)
                near = self.measured.get(unit.dimension, [])
                for theirs, other in near[bisect_left(near, (ours - slack,)) :]:
                    if theirs > ours + slack:
                        break
                    if other != unit:
                        return True
        return False

    def has_code(self, code: str) -> bool:
        """Whether a model number stands in the source, spaces and hyphens aside."""
        squashed = squash(code)
        if squashed in self.codes:
            return True
        at = self.squashed.find(squashed)
        while at >= 0:
            before, after = self.squashed[at - 1 : at], self.squashed[at + len(squashed) : at + len(squashed) + 1]
            if not (squashed[0].isdigit() and before.isdigit()) and not (squashed[-1].isdigit() and after.isdigit()):
                return True
            at = self.squashed.find(squashed, at + 1)
        return False


def squash(text: str) -> str:
    """Letters and digits of a text, lower case, with separators kept only between two digits."""
    return re.sub(r"(?<!\d)[\W_]+|[\W_]+(?!\d)", "", text.lower())


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


def _stands(needle: str, text: str) -> bool:
    """Whether the needle stands in the text between white space or at its ends."""
    at = text.find(needle)
    while at >= 0:
        end = at + len(needle)
        if (at == 0 or text[at - 1].isspace()) and (end == len(text) or text[end].isspace()):
            return True
        at = text.find(needle, at + 1)
    return False


def _all_literal(tokens: list[str], source: str) -> bool:
    """Whether every piece with a digit, with the piece behind it, stands in the source: the usual case, and a cheap test."""
    if len(source) > 50_000:
        return False
    last = len(tokens) - 1
    for i, token in enumerate(tokens):
        if token.isalpha() or _DIGIT.search(token) is None:
            continue
        if not _stands(token if i == last else f"{token} {tokens[i + 1]}", source):
            return False
    return True


def unproven_quantities(
    output: str, tokens: list[str], source_lower: str, source: str, locale: str
) -> Iterator[tuple[Quantity, SourceNumbers]]:
    """Quantities of the output that do not stand in the source letter for letter, with the source's numbers.

    `tokens` are the output's whitespace-separated pieces, and `source_lower` the source, both lower case.
    """
    if _all_literal(tokens, source_lower):
        return
    numbers: SourceNumbers | None = None
    seen: set[str] = set()
    for quantity in quantities(output, decimal_symbol(locale)):
        key = quantity.text.lower()
        if key in seen or (len(source_lower) < 50_000 and _literal(key, source_lower)):
            continue
        seen.add(key)
        if numbers is None:
            numbers = SourceNumbers(source)
        yield quantity, numbers
