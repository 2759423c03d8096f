"""Reference titles and descriptions from facts, and corrupted ones whose faults are known exactly."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from include.distillation.world import Product, Quantity, Split, categories, data, forms, language, slots

_SLOT = re.compile(r"\{(\w+)\}")
_OPTIONAL = re.compile(r"\[([^\[\]]*)\]")


def _value(name: str, values: Mapping[str, str]) -> str | None:
    found = values.get(name) or values.get(name[0].lower() + name[1:])
    return found if found is None or name[0].islower() else found[0].upper() + found[1:]


def can_fill(frame: str, values: Mapping[str, str]) -> bool:
    return all(_value(name, values) is not None for name in _SLOT.findall(frame))


def fill(frame: str, values: Mapping[str, str]) -> str:
    """The frame with its slots filled and its [optional parts] kept where they can be. Raises KeyError for a missing slot."""
    frame = _OPTIONAL.sub(lambda part: part[1] if can_fill(part[1], values) else "", frame)

    def put(slot: re.Match[str]) -> str:
        value = _value(slot[1], values)
        if value is None:
            raise KeyError(slot[1])
        return value

    return _SLOT.sub(put, frame)


def _capitals(text: str) -> str:
    return " ".join(word[0].upper() + word[1:] for word in text.split(" "))


def title(product: Product, rng: random.Random, split: Split = "train") -> str:
    """A title of five to ten words where the facts allow it, in the order of one of the locale's patterns."""
    values = slots(product, rng)
    if product.locale == "en-US":  # English titles capitalise every word
        values = {k: _capitals(v) if k in ("noun", "material", "colour") else v for k, v in values.items()}
    patterns = list(data("frames")["copy"][language(product.locale)]["title"][split])
    rng.shuffle(patterns)
    fitting = [p for p in patterns if can_fill(_OPTIONAL.sub("", p), values)]
    # The pattern that states most, so that a fact is left out only for length.
    text = max((fill(p, values) for p in fitting), key=lambda t: min(len(t.split()), 7))
    if len(text.split()) < 6 and "q2" in values:
        text += f", {values['q2']}"
    if len(text.split()) < 5 and "tag1" in values:
        text += f", {values['tag1']}"
    return text[0].upper() + text[1:] if product.locale == "fr-FR" else text


def _pick(frames: list[str], values: Mapping[str, str], rng: random.Random, most: bool = False) -> str:
    """One fillable frame, empty when there is none; `most` prefers those with the most slots."""
    fitting = [f for f in frames if can_fill(f, values)]
    if most and fitting:
        top = max(len(set(_SLOT.findall(f)) & {"brand", "model"}) for f in fitting)
        fitting = [f for f in fitting if len(set(_SLOT.findall(f)) & {"brand", "model"}) == top]
    return rng.choice(fitting) if fitting else ""


def description(product: Product, rng: random.Random, split: Split = "train") -> str:
    """A description of three to five sentences where the facts allow it."""
    frames = {k: v[split] for k, v in data("frames")["copy"][language(product.locale)].items()}
    values = slots(product, rng)
    intro = _pick(frames["intro"], values, rng, most=True)
    said = set(_SLOT.findall(intro.lower()))
    rest = {k: v for k, v in values.items() if k not in {"material", "colour"} & said}
    make = [f for f in frames["make"] if {"material", "colour"} & rest.keys() <= set(_SLOT.findall(f.lower()))]
    chosen = [intro, _pick(make, rest, rng) if {"material", "colour"} & rest.keys() else ""]
    for kind, slot in (("figures", "q"), ("features", "feature"), ("uses", "use")):
        key = {"figures": "says", "features": "feature", "uses": "use"}[kind]
        two = [f for f in frames[kind] if f"{key}2" in f or "{q2}" in f]
        pairs = two if f"{slot}2" in values and rng.random() < 0.75 else [f for f in frames[kind] if f not in two]
        chosen.append(_pick(pairs, values, rng))
    if len(product.quantities) > 2 and rng.random() < 0.7:
        third = {
            "says1": values["says3"],
            "q1": values["q3"],
            "the_label1": values["the_label3"],
            "a_label1": values["a_label3"],
        }
        single = [f for f in frames["figures"] if "2}" not in f]
        chosen.insert(3, _pick(single, {**{k: values[k] for k in ("it", "noun", "the", "the_noun")}, **third}, rng))
        chosen[3] = fill(chosen[3], {**values, **third})
    return " ".join(fill(frame, values) for frame in chosen if frame)


def write(task: str, product: Product, rng: random.Random, split: Split = "train") -> str:
    """The reference copy of one enhancement task."""
    return title(product, rng, split) if task == "title" else description(product, rng, split)


@dataclass(frozen=True, slots=True)
class Labelled:
    """A copy with its faults: short quotes, empty when it has none of that kind."""

    text: str
    unsupported: tuple[str, ...] = ()
    contradictory: tuple[str, ...] = ()
    omitted: tuple[str, ...] = ()

    @property
    def faithful(self) -> bool:
        return not self.unsupported and not self.contradictory


def _other_number(quantity: Quantity, rng: random.Random) -> Quantity:
    """The same attribute with another number: a digit changed, a factor, or another value of the kind."""
    value = quantity.value
    choices = [value * 2, value * 10, value / 2, value + 1, value + rng.randint(2, 9), value * 1.5, max(1.0, value - 1)]
    changed = rng.choice([round(v, 2) for v in choices if f"{v:g}" != f"{value:g}"])
    return replace(quantity, value=changed)


def corrupt(product: Product, rng: random.Random) -> tuple[Product, dict[str, list[str]]]:
    """A product with one or two facts changed or added, and the quotes that its copy would then carry wrongly."""
    faults: dict[str, list[str]] = {"unsupported": [], "contradictory": []}
    locale = product.locale
    kinds = ["feature", "use", "quantity", "extra_quantity", "colour", "material", "brand"]
    for kind in rng.sample(kinds, rng.choice((1, 1, 2))):
        if kind == "feature":
            new = rng.choice([f for f in data("claims")["features"] if f not in product.features])
            product = replace(product, features=(new, *product.features[:1]))
            faults["unsupported"].append(slots(replace(product, features=(new,)))["feature1"])
        elif kind == "use":
            new = rng.choice([u for u in data("claims")["uses"] if u not in product.uses])
            product = replace(product, uses=(new, *product.uses[:1]))
            faults["unsupported"].append(slots(replace(product, uses=(new,)))["use1"])
        elif kind == "quantity" and product.quantities:
            index = rng.randrange(len(product.quantities[:2]))
            changed = _other_number(product.quantities[index], rng)
            product = replace(
                product, quantities=(*product.quantities[:index], changed, *product.quantities[index + 1 :])
            )
            faults["contradictory"].append(changed.text(locale))
        elif kind == "extra_quantity" and len(product.quantities) < 2:
            stated = {q.attribute for q in product.quantities} | {q.unit for q in product.quantities}
            attrs = data("categories")["categories"][rng.choice(categories("train"))]["attrs"]
            extra = [
                Quantity(n, float(rng.choice(s[1:])), s[0])
                for n, s in attrs.items()
                if n not in stated and s[0] not in stated
            ]
            if extra:
                product = replace(product, quantities=(*product.quantities, extra[0]))
                faults["unsupported"].append(extra[0].text(locale))
        elif kind in ("colour", "material"):
            old, pool = getattr(product, kind), list(data("lexicon")[f"{kind}s"])
            word = forms(f"{kind}s", old, locale)[0] if old else ""
            near = [k for k in pool if k != old and not _overlaps(forms(f"{kind}s", k, locale)[0], word)]
            new = rng.choice(near)
            product = replace(product, **{kind: new})
            faults["contradictory" if old else "unsupported"].append(forms(f"{kind}s", new, locale)[0])
        elif kind == "brand":
            new = str(rng.choice([b for b in data("brands")["train"] if b != product.brand]))
            faults["contradictory" if product.brand else "unsupported"].append(new)
            product = replace(product, brand=new)
    return product, faults


def _overlaps(one: str, other: str) -> bool:
    return bool(set(one.lower().split()) & set(other.lower().split()))


def labelled_copy(
    task: str, product: Product, rng: random.Random, split: Split = "train", faulty: bool = True
) -> Labelled:
    """A reference copy, or one with planted faults; only faults whose quote stands in the text are listed."""
    shown, faults = corrupt(product, rng) if faulty else (product, {})
    text = write(task, shown, rng, split)
    quotes = {
        kind: tuple(_quoted(quote, text) for quote in found if _quoted(quote, text)) for kind, found in faults.items()
    }
    omitted: tuple[str, ...] = ()
    if rng.random() < 0.12:
        noun = product.noun
        if product.quantities and product.quantities[0].text(product.locale) not in text and task == "title":
            omitted = (product.quantities[0].text(product.locale),)
        elif task == "title":
            shorter = re.sub(re.escape(noun), "", text, flags=re.I)
            if shorter != text:
                text, omitted = re.sub(r"\s+,", ",", " ".join(shorter.split())), (noun,)
    return Labelled(text, quotes.get("unsupported", ()), quotes.get("contradictory", ()), omitted)


def _quoted(quote: str, text: str) -> str:
    """The quote as the text spells it, or empty."""
    at = text.lower().find(quote.lower())
    return text[at : at + len(quote)] if at >= 0 else ""
