"""The oracle: checks any text against a product whose facts are known.

It reads quantities, colours, materials, brands, features and uses with the world's own lexicon, and takes every other word
that neither the listing nor the glue words hold for an invented claim. What the listing says literally is never a fault.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import SequenceMatcher
from functools import cache

from include.distillation.copywriting import Labelled
from include.distillation.world import LOCALES, Product, Quantity, column, data, forms, language, nouns, slots
from include.records import Listing

_WORD = re.compile(r"[^\W\d_]+(?:'(?=s\b))?|\d+(?:[.,]\d+)?")
_NUMBER = r"\d+(?:[.,]\d+)?"
_CODE = re.compile(r"\b(?=[^\W\d_]*\d)(?=\d*[^\W\d_])[^\W_]{2,}\b")
_ENDINGS = {"en": ("es", "s", "ed", "d"), "de": ("en", "er", "es", "em", "e", "n", "s"), "fr": ("es", "e", "s", "x")}


def _fold(text: str) -> str:
    """Lower case with every character in its place."""
    return "".join(c.lower() if len(c.lower()) == 1 else c for c in text).replace("’", "'")


def _lower(text: str) -> str:
    """Lower case for comparing words: merchants who shout write WEISS for weiß."""
    return _fold(text).replace("ß", "ss")


def _stem(word: str, lang: str) -> str:
    for ending in _ENDINGS[lang]:
        if len(word) - len(ending) >= 3 and word.endswith(ending):
            return word[: -len(ending)]
    return word


def _words(text: str) -> list[str]:
    return [word.rstrip("'") for word in _WORD.findall(_lower(text))]


@cache
def _glue(lang: str) -> frozenset[str]:
    """Stems of the glue words and of the reference frames' fixed words."""
    locale = next(found for found in LOCALES if language(found) == lang)
    frames = data("frames")["copy"][lang].values()
    texts = [
        data("glue")[lang],
        *(re.sub(r"\{\w+\}", " ", f) for group in frames for split in group.values() for f in split),
    ]
    for spec in data("lexicon")["attributes"].values():
        label = spec["label"][column(locale)]
        texts += [
            label if lang == "en" else label[2:],
            spec.get("says", ["", "", ""])[column(locale)].replace("{q}", " "),
        ]
    return frozenset(_stem(word, lang) for text in texts for word in _words(text))


@cache
def _units(locale: str) -> tuple[re.Pattern[str], dict[str, str]]:
    """A pattern of number and unit, and the unit key of every spelling."""
    spelled = {_fold(form): key for key in data("lexicon")["units"] for form in forms("units", key, locale)}
    spelled |= {"''": "inch"}
    options = "|".join(re.escape(s) for s in sorted(spelled, key=len, reverse=True))
    return re.compile(rf"(?<![\w.,])({_NUMBER})\s*-?({options})?(?![\w²])"), spelled


@cache
def _phrases(kind: str, locale: str) -> list[tuple[str, str, re.Pattern[str]]]:
    """(key, spelling, pattern) of all spellings of a kind, the longest first."""
    lang = language(locale)
    found: list[tuple[str, str]] = []
    if kind in ("colours", "materials"):
        found = [(key, form) for key in data("lexicon")[kind] for form in forms(kind, key, locale)]
    elif kind == "features":
        for key, texts in data("claims")["features"].items():
            found += [(key, text.replace("(e)", e)) for text in texts[lang] for e in ("", "e")]
    elif kind == "uses":
        found = [(key, texts[column(locale)]) for key, texts in data("claims")["uses"].items()]
    else:
        brands = data("brands")
        found = [(brand, brand) for brand in (*brands["train"], *brands["held_out"])]
    ending = "(?:e[rsnm]?|s)?" if kind == "colours" and lang != "en" else ""
    return [
        (key, form, re.compile(rf"(?<!\w){re.escape(_fold(form))}{ending}(?!\w)"))
        for key, form in sorted(set(found), key=lambda pair: -len(pair[1]))
    ]


class _Reading:
    """One text being checked: masks what is explained, so that the rest can be checked word by word."""

    def __init__(self, text: str) -> None:
        self.text, self.open = text, _fold(text)

    def mask(self, start: int, end: int) -> None:
        self.open = self.open[:start] + "\x00" * (end - start) + self.open[end:]

    def quote(self, start: int, end: int) -> str:
        return self.text[start:end]


def _same(number: str, quantity: Quantity) -> bool:
    return abs(float(number.replace(",", ".")) - quantity.value) < 1e-9


def check(product: Product, listing: Listing, text: str) -> Labelled:
    """Faults of a text about the product, as short quotes from it, in the order of the text.

    A wrong value of a fact that the listing states is contradictory; a claim without one is unsupported. `omitted` names
    the product's noun where the text does not say what the product is.
    """
    locale, lang = product.locale, language(product.locale)
    reading = _Reading(text)
    source = _lower(" ".join((listing.title, listing.description, listing.brand, listing.category, listing.attributes)))
    values = slots(product)
    # The listing states each fact, if in other words: its canonical wording counts as stated, too.
    known = f"{source} {_lower(' '.join(values.values()))}"
    known_words = set(_words(known))
    known_stems = {_stem(word, lang) for word in known_words}
    faults: list[tuple[int, str, str]] = []
    _check_attributes(product, reading, faults)
    _check_codes(product, reading, known, faults)
    _check_numbers(product, reading, known_words, faults)
    for kind, stated in (
        ("features", set(product.features)),
        ("uses", set(product.uses)),
        ("materials", {product.material}),
        ("colours", {product.colour}),
        ("brands", {product.brand}),
    ):
        for key, form, pattern in _phrases(kind, locale):
            for match in pattern.finditer(reading.open):
                within = all(_stem(word, lang) in known_stems for word in _words(form))
                if key not in stated and not within:
                    contrary = kind in ("colours", "materials", "brands") and any(stated)
                    quote = reading.quote(*match.span())
                    faults.append((match.start(), "contradictory" if contrary else "unsupported", quote))
                if key in stated or not within:
                    reading.mask(*match.span())
    _check_words(product, reading, known_stems | _glue(lang), lang, faults)
    faults.sort()
    kinds = {
        kind: tuple(dict.fromkeys(quote for _, found, quote in faults if found == kind))
        for kind in ("unsupported", "contradictory")
    }
    return Labelled(text, kinds["unsupported"], kinds["contradictory"], _omitted(product, text))


def _check_attributes(product: Product, reading: _Reading, faults: list[tuple[int, str, str]]) -> None:
    """`The width is 30 cm` where 30 cm is the height."""
    locale = product.locale
    pattern, spelled = _units(locale)
    stated = {q.attribute for q in product.quantities}
    found: dict[int, tuple[int, int, str]] = {}
    labels: list[tuple[str, str]] = []
    for name, spec in data("lexicon")["attributes"].items():
        label = spec["label"][column(locale)]
        labels.append((_fold(label if locale == "en-US" else label[2:]), name))
    alternatives = "|".join(re.escape(label) for label, _ in sorted(labels, key=lambda pair: -len(pair[0])))
    names = dict(labels)
    links = r"(?:is|of|measures|beträgt|von|liegt|bei|ca\.?|est|de|env\.?|approx\.?|:)"
    after = re.compile(rf"(?<!\w)({alternatives})(?:\s*{links}\b|\s*:){{0,2}}\s+({pattern.pattern})")
    for match in after.finditer(reading.open):
        found[match.start(2)] = (match.start(2), match.end(2), names[match[1]])
    for name, spec in data("lexicon")["attributes"].items():
        if "says" in spec:
            says = _fold(spec["says"][column(locale)])
            before, behind = (re.escape(part.strip()) for part in says.split("{q}"))
            # "mesure 20 cm" and "is 20 cm" name no attribute before a word behind the number does.
            shape = rf"(?<!\w){before}\s+({pattern.pattern})" + (rf"\s+{behind}(?!\w)" if behind else "")
            for match in re.finditer(shape, reading.open):
                found[match.start(1)] = (match.start(1), match.end(1), name)
    for start, end, name in found.values():
        value = pattern.match(reading.open, start)
        if value is None:
            continue
        unit = spelled.get(value[2] or "")
        own = [q for q in product.quantities if q.attribute == name]
        # Two attributes can share a word in a language ("contient"): any stated one with this unit will do.
        if unit is None or any(_same(value[1], q) and q.unit == unit for q in own):
            continue
        alike = [q for q in product.quantities if q.unit == unit and _same(value[1], q)]
        if alike and name not in stated and len(_words(name)) and _synonymous(name, {q.attribute for q in alike}):
            continue
        if alike or own:
            faults.append((start, "contradictory", reading.quote(start, end).strip()))
            reading.mask(start, end)


def _synonymous(name: str, others: Iterable[str]) -> bool:
    groups = ({"capacity", "sheets", "pieces"}, {"height", "seat"}, {"length", "cable"}, {"weight", "load"})
    return any(name in group and other in group for group in groups for other in others)


def _check_codes(product: Product, reading: _Reading, known: str, faults: list[tuple[int, str, str]]) -> None:
    """Model names such as B34; `750ml` is a quantity, not a code."""
    pattern, spelled = _units(product.locale)
    for match in _CODE.finditer(reading.open):
        value = pattern.fullmatch(match[0])
        if value is not None and value[2] in spelled:
            continue
        if not re.search(rf"(?<!\w){re.escape(_lower(match[0]))}(?!\w)", known):
            kind = "contradictory" if product.model else "unsupported"
            faults.append((match.start(), kind, reading.quote(*match.span())))
        reading.mask(*match.span())


def _check_numbers(
    product: Product, reading: _Reading, known_words: set[str], faults: list[tuple[int, str, str]]
) -> None:
    pattern, spelled = _units(product.locale)
    numbers = {word.replace(",", ".") for word in known_words if word[0].isdigit()}
    for match in pattern.finditer(reading.open):
        unit = spelled.get(match[2] or "")
        same_unit = [q for q in product.quantities if q.unit == unit]
        if unit is None:
            kind = "" if match[1].replace(",", ".") in numbers else "unsupported"
        elif any(_same(match[1], q) for q in same_unit):
            kind = ""
        else:
            other_unit = any(_same(match[1], q) for q in product.quantities)
            kind = "contradictory" if same_unit or other_unit else "unsupported"
        if kind:
            faults.append((match.start(), kind, reading.quote(*match.span()).strip()))
        reading.mask(*match.span())


def _check_words(
    product: Product,
    reading: _Reading,
    allowed: set[str] | frozenset[str],
    lang: str,
    faults: list[tuple[int, str, str]],
) -> None:
    """Words that nothing explains, neighbours together; a near miss of the brand contradicts it."""
    unknown = [
        match
        for match in _WORD.finditer(reading.open)
        if len(match[0]) >= 3
        and not match[0][0].isdigit()
        and _stem(_lower(match[0]).rstrip("'"), lang) not in allowed
        and _lower(match[0]) not in allowed
    ]
    spans: list[list[int]] = []
    for match in unknown:
        if spans and not reading.open[spans[-1][1] : match.start()].strip(" -"):
            spans[-1][1] = match.end()
        else:
            spans.append([*match.span()])
    brand = _lower(product.brand)
    for start, end in spans:
        quote = reading.quote(start, end)
        near = bool(brand) and SequenceMatcher(None, brand, _lower(quote)).ratio() > 0.7
        faults.append((start, "contradictory" if near else "unsupported", quote))


def _omitted(product: Product, text: str) -> tuple[str, ...]:
    lang = language(product.locale)
    stems = {_stem(word, lang) for word in _words(text)}
    names = [product.noun]
    if (product.gender, product.noun) in nouns(product.category, product.locale):
        names += [noun for _, noun in nouns(product.category, product.locale)]
    named = any(all(_stem(word, lang) in stems for word in _words(name) if len(word) > 2) for name in names)
    return () if named else (product.noun,)
