"""A synthetic world of products whose facts are known, in three locales: the source of training and evaluation data.

Words, brands, categories and sentence frames lie in `data/*.yaml`. What is marked held out there never appears in training.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml

Split = Literal["train", "held_out"]

LOCALES = ("en-US", "de-DE", "fr-FR")
DATA_DIR = Path(__file__).parent / "data"


@cache
def data(name: str) -> Any:
    """One parsed data file of the world: lexicon, claims, brands, categories or frames."""
    return yaml.safe_load((DATA_DIR / f"{name}.yaml").read_text(encoding="utf-8"))


def column(locale: str) -> int:
    """Position of a locale's words in the lexicon's lists."""
    return LOCALES.index(locale)


def language(locale: str) -> str:
    return locale[:2]


def forms(kind: str, key: str, locale: str) -> list[str]:
    """All spellings of a colour, material or unit in one locale, the preferred one first."""
    return str(data("lexicon")[kind][key][column(locale)]).split("|")


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number with its unit, of one attribute of the product: capacity, 750, ml."""

    attribute: str
    value: float
    unit: str

    def number(self, locale: str) -> str:
        text = f"{self.value:g}"
        return text if locale == "en-US" else text.replace(".", ",")

    def text(self, locale: str) -> str:
        """The way the reference copy writes it: `1.5 L` in English, `1,5 l` in German."""
        return f"{self.number(locale)} {forms('units', self.unit, locale)[0]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """The facts of one product that its listing states. Empty text and empty tuples are facts it does not state."""

    category: str
    locale: str
    noun: str
    gender: str = ""  # of the noun; empty in English
    brand: str = ""
    model: str = ""
    colour: str = ""
    material: str = ""
    quantities: tuple[Quantity, ...] = ()
    features: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()


def categories(split: Split) -> list[str]:
    return [
        key
        for key, value in data("categories")["categories"].items()
        if value.get("held_out", False) is (split == "held_out")
    ]


def nouns(category: str, locale: str) -> list[tuple[str, str]]:
    """(gender, noun) of every synonym; the gender is empty in English."""
    parts = [part.strip() for part in data("categories")["categories"][category][language(locale)].split(";")]
    if locale == "en-US":
        return [("", part) for part in parts]
    return [(part[0], part[2:]) for part in parts]


def sample_product(rng: random.Random, split: Split, locale: str, category: str | None = None) -> Product:
    """A product with random facts of its category."""
    category = category or rng.choice(categories(split))
    found = data("categories")["categories"][category]
    made_up = split == "train" and rng.random() < 0.75
    gender, noun = _made_up_noun(rng, locale) if made_up else rng.choice(nouns(category, locale))
    attributes = _any_attributes(rng) if made_up else list(found["attrs"].items())
    materials, features, uses = found["materials"], found["features"], found["uses"]
    if made_up:  # what such a thing is like, nobody can know: facts must be read, not guessed
        claims = data("claims")
        materials, features, uses = list(data("lexicon")["materials"]), list(claims["features"]), list(claims["uses"])
    kept = [attributes[0]] if rng.random() < 0.85 else []
    kept += rng.sample(attributes[1:], min(len(attributes) - 1, rng.choice((0, 1, 1, 2))))
    brands = data("brands")
    digits = rng.random() < 0.5
    model = (
        f"{rng.choice('ABCDEFGHKLMNPRSTVX')}{rng.choice((rng.randint(2, 99), rng.randint(100, 990)))}"
        if digits
        else rng.choice(brands["models"])
    )
    return Product(
        category=category,
        locale=locale,
        noun=noun,
        gender=gender,
        brand=_brand(rng, split) if rng.random() < 0.9 else "",
        model=model if rng.random() < 0.35 else "",
        colour=rng.choice(list(data("lexicon")["colours"])) if rng.random() < 0.75 else "",
        material=rng.choice(materials) if rng.random() < 0.85 else "",
        quantities=tuple(Quantity(name, float(rng.choice(spec[1:])), str(spec[0])) for name, spec in kept),
        features=tuple(rng.sample(features, min(len(features), rng.choice((0, 1, 1, 2, 2, 3))))),
        uses=tuple(rng.sample(uses, min(len(uses), rng.choice((0, 1, 1, 2))))),
    )


@cache
def _held_out_nouns() -> frozenset[str]:
    return frozenset(noun for key in categories("held_out") for locale in LOCALES for _, noun in nouns(key, locale))


_SIZES = ("height", "width", "length", "depth", "diameter", "thickness")
_LIKE_UNITS = (("ml", "l"), ("g", "kg"), ("mm", "cm", "m"))


@cache
def _attribute_units() -> dict[str, tuple[str, ...]]:
    """Every attribute with the units that it can have."""
    found: dict[str, set[str]] = {}
    for category in data("categories")["categories"].values():
        for name, spec in category["attrs"].items():
            found.setdefault(name, set()).update(*(like for like in (*_LIKE_UNITS, (spec[0],)) if spec[0] in like))
    return {name: tuple(sorted(units)) for name, units in found.items()}


def _any_attributes(rng: random.Random) -> list[tuple[str, list[str | float]]]:
    """Three attributes with any unit and number that they can have; sizes more often than the rest."""
    units = _attribute_units()
    names = rng.sample(_SIZES if rng.random() < 0.5 else list(units), 3)
    found: list[tuple[str, list[str | float]]] = []
    for name in names:
        value = rng.choice(
            (rng.randint(1, 99), rng.randint(10, 400), rng.randint(1, 40) * 50, rng.randint(11, 99) / 10)
        )
        found.append((name, [rng.choice(units[name]), value]))
    return found


def _made_up_noun(rng: random.Random, locale: str) -> tuple[str, str]:
    """(gender, noun) out of parts, one in eight of them an invented word; never a held-out one."""
    parts = data("compounds")[language(locale)]
    modifier, head = rng.choice(parts["modifiers"]), rng.choice(parts["heads"])
    gender, head = ("", head) if locale == "en-US" else (head[0], head[2:])
    if rng.random() < 0.125:
        head = "".join(rng.sample(data("compounds")["syllables"], rng.choice((2, 3))))
        head = head.capitalize() if locale == "de-DE" else head
    if rng.random() < 0.2:
        noun = head
    elif locale == "de-DE":
        noun = modifier + head.lower()
    else:
        noun = f"{modifier} {head}" if locale == "en-US" else f"{head} {modifier}"
    return _made_up_noun(rng, locale) if noun in _held_out_nouns() else (gender, noun)


def _made_up_brand(rng: random.Random) -> str:
    """A name of parts or of syllables; never a held-out one, nor one so like it that it would be taken for it."""
    parts = data("compounds")
    name = "".join(rng.sample(data("compounds")["syllables"], rng.choice((2, 3, 4)))).capitalize()
    if rng.random() < 0.6:
        name = rng.choice(parts["brand_starts"]) + rng.choice(parts["brand_ends"])
    if rng.random() < 0.25:
        name = f"{name} {rng.choice(parts['brand_suffixes'])}"
    if rng.random() < 0.1:
        name = name.upper()
    first = name.split()[0].lower()
    near = any(
        SequenceMatcher(None, brand.split()[0].lower(), first).ratio() > 0.8 for brand in data("brands")["held_out"]
    )
    return _made_up_brand(rng) if near else name


def _brand(rng: random.Random, split: Split) -> str:
    """A listed brand; in training mostly a made-up one, so that the model learns to copy names, not to know them."""
    if split == "train" and rng.random() < 0.75:
        return _made_up_brand(rng)
    return str(rng.choice(data("brands")[split]))


_ARTICLES = {
    "de": {
        "the": {"m": "der", "f": "die", "n": "das"}, "this": {"m": "dieser", "f": "diese", "n": "dieses"},
        "it": {"m": "er", "f": "sie", "n": "es"}, "a": {"m": "ein", "f": "eine", "n": "ein"},
        "a_acc": {"m": "einen", "f": "eine", "n": "ein"},
    },
    "fr": {
        "the": {"m": "le", "f": "la"}, "this": {"m": "ce", "f": "cette"}, "it": {"m": "il", "f": "elle"},
        "a": {"m": "un", "f": "une"}, "a_acc": {"m": "un", "f": "une"},
    },
}  # fmt: skip
_VOWELS = "aeiouyâàéèêîïôûAEIOUÉÈÊ"


def _with_article(which: str, gender: str, noun: str, locale: str) -> str:
    """The noun with its article: `an oak shelf`, `das Regal`, `l'étagère`."""
    if locale == "en-US":
        article = {"the": "the", "this": "this"}.get(
            which, "an" if noun[0].lower() in "aeiou" and not noun.startswith("USB") else "a"
        )
        return f"{article} {noun}"
    elided = noun[0] in _VOWELS or noun.startswith(("haltère", "horloge"))
    if locale == "fr-FR" and elided and which in ("the", "this"):
        return f"l'{noun}" if which == "the" else f"{'cet' if gender == 'm' else 'cette'} {noun}"
    return f"{_ARTICLES[language(locale)][which][gender]} {noun}"


def slots(product: Product, rng: random.Random | None = None) -> dict[str, str]:
    """Every slot of the frames that this product can fill. With `rng`, the order within quantities, features and uses varies."""
    locale, lang = product.locale, language(product.locale)
    gender, noun = product.gender, product.noun
    found = {"noun": noun, "a_noun": _with_article("a", gender, noun, locale), "the_noun": _with_article("the", gender, noun, locale),
             "a_noun_acc": _with_article("a_acc", gender, noun, locale)}  # fmt: skip
    if lang == "en":
        found |= {"it": "it", "this": "this", "the": "the"}
    else:
        found |= {name: _ARTICLES[lang][name][gender] for name in ("it", "this", "the")}
        found["this"] = _with_article("this", gender, noun, locale).split(" ")[0]
    found |= {name: getattr(product, name) for name in ("brand", "model") if getattr(product, name)}
    for kind, key in (("colours", product.colour), ("materials", product.material)):
        if key:
            found[kind.rstrip("s")] = forms(kind, key, locale)[0]
    for index, quantity in enumerate(product.quantities, 1):
        found |= {f"{k}{index}": v for k, v in _quantity_slots(quantity, locale).items()}
    features, uses = list(product.features), list(product.uses)
    if rng is not None:
        rng.shuffle(features)
        rng.shuffle(uses)
    for index, feature in enumerate(features, 1):
        tag, phrase = data("claims")["features"][feature][lang]
        found |= {f"tag{index}": tag, f"feature{index}": phrase.replace("(e)", "e" if gender == "f" else "")}
    for index, use in enumerate(uses, 1):
        found[f"use{index}"] = data("claims")["uses"][use][column(locale)]
    return found


def _quantity_slots(quantity: Quantity, locale: str) -> Mapping[str, str]:
    spec = data("lexicon")["attributes"][quantity.attribute]
    label = spec["label"][column(locale)]
    gender, label = ("", label) if locale == "en-US" else (label[0], label[2:])
    text = quantity.text(locale)
    a_label = _with_article("a_acc", gender, label, locale)
    has = {"en": f"has {a_label} of {text}", "de": f"hat {a_label} von {text}", "fr": f"a {a_label} de {text}"}
    says = spec["says"][column(locale)].replace("{q}", text) if "says" in spec else has[language(locale)]
    return {"q": text, "label": label, "the_label": _with_article("the", gender, label, locale),
            "a_label": _with_article("a" if locale == "en-US" else "a_acc", gender, label, locale), "says": says}  # fmt: skip
