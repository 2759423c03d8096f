"""What a validator sees: one listing's source and one output, with the derived values that several validators share.

Everything derived is computed on first use, since most texts need few of them: a title in plain ASCII without digits
never pays for script runs, number tables or language profiles.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar, overload

from include.records import Listing
from include.settings import ValidatorSettings
from include.validation.counting import count_sentences
from include.validation.orders import has_injection
from include.validation.quantities import Quantity, SourceNumbers, unproven_quantities

T = TypeVar("T")
_ALPHA = re.compile(r"[^\W\d_]+")
_EXOTIC = re.compile(
    "[^\x00-\xac\xae-\u024f\u2010-\u2015\u2018-\u201e\u2020-\u2022\u2026\u2030\u2032\u2033\u2039\u203a\u2044\u20ac\u2122\u2212]"
)
_DIGIT = re.compile(r"\d")
_MARKUP = re.compile(r"[<>&*_~#`\[\]|{}=\n]")
_LIST_MARKS = frozenset("-+–•·‣◦▪0123456789")


class lazy(Generic[T]):  # noqa: N801 - used as a decorator, like property
    """A property computed once per instance; `functools.cached_property` without its lock, which costs more than the value."""

    def __init__(self, function: Callable[[Any], T]) -> None:
        self.function, self.name, self.__doc__ = function, function.__name__, function.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> lazy[T]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: object | None, owner: type) -> T | lazy[T]:
        if instance is None:
            return self
        value = instance.__dict__[self.name] = self.function(instance)
        return value


def nfc(text: str) -> str:
    """Text in Unicode normalisation form C, so that composed and decomposed letters count and compare alike."""
    return text if text.isascii() or unicodedata.is_normalized("NFC", text) else unicodedata.normalize("NFC", text)


class Source(NamedTuple):
    """The merchant's side of a pair. `attributes` is a JSON object of text to text."""

    title: str = ""
    description: str = ""
    brand: str = ""
    merchant_id: str = ""
    locale: str = ""
    attributes: str = "{}"

    @classmethod
    def of(cls, listing: Listing) -> Source:
        return cls(
            listing.title,
            listing.description,
            listing.brand,
            listing.merchant_id,
            listing.locale,
            listing.attributes,
        )

    @classmethod
    def from_json(cls, values: Mapping[str, object]) -> Source:
        """A source from a JSON object; absent and null fields are empty. Raises ValueError naming a field that is no text."""
        found: dict[str, str] = {}
        for name in cls._fields:
            value = values.get(name)
            if name == "attributes" and isinstance(value, Mapping):
                value = json.dumps(value, ensure_ascii=False)
            if value is not None and not isinstance(value, str):
                raise ValueError(f"source.{name} must be text, not {type(value).__name__}")
            found[name] = value or ""
        return cls(**found)


class TaskContext(NamedTuple):
    """What is the same for every row of one enhancement task."""

    field: str  # the listing's field that the output replaces
    settings: ValidatorSettings
    thinking: bool
    special_tokens: re.Pattern[str] | None  # of the task model's tokenizer
    special_starts: str  # their first characters
    banned: Mapping[str, re.Pattern[str]]  # by merchant_id; "*" is every merchant
    instructions: frozenset[tuple[str, ...]]  # six-word runs of the prompt's own instructions
    starts: frozenset[tuple[str, ...]]  # three-word runs in them


class View:
    """One pair. `output` is NFC and already repaired; `task` carries thresholds."""

    def __init__(
        self, source: Source, output: str, finish_reason: str, task: TaskContext, *, answered: bool = True
    ) -> None:
        self.source, self.output, self.finish_reason, self.task = source, output, finish_reason, task
        self.answered = answered  # False: thinking was on and never ended
        self.settings = task.settings
        self.ascii = output.isascii()
        self.exotic = not self.ascii and _EXOTIC.search(output) is not None

    @lazy
    def markup(self) -> bool:
        return _MARKUP.search(self.output) is not None or self.output[:1] in _LIST_MARKS

    @lazy
    def lower(self) -> str:
        return self.output.lower()

    @lazy
    def tokens(self) -> list[str]:
        """Whitespace-separated pieces, lower case."""
        return self.lower.split()

    @lazy
    def words(self) -> list[str]:
        """Runs of letters, lower case."""
        return _ALPHA.findall(self.lower)

    @lazy
    def letters(self) -> int:
        return sum(map(len, self.words))

    @lazy
    def attributes(self) -> str:
        raw = self.source.attributes
        if len(raw) <= 2:
            return ""
        try:
            pairs = json.loads(raw)
        except ValueError:
            return raw
        return "; ".join(f"{k}: {v}" for k, v in pairs.items()) if isinstance(pairs, dict) else str(pairs)

    @lazy
    def source_text(self) -> str:
        """All that the merchant said, one field a line, NFC."""
        s = self.source
        return nfc("\n".join((s.title, s.description, s.brand, self.attributes)))

    @lazy
    def source_lower(self) -> str:
        return self.source_text.lower()

    @lazy
    def source_words(self) -> frozenset[str]:
        return frozenset(_ALPHA.findall(self.source_lower))

    @lazy
    def source_field(self) -> str:
        """The source's text in the field that the output replaces."""
        return nfc(str(getattr(self.source, self.task.field, self.source.description)))

    @lazy
    def novel_words(self) -> list[str]:
        """The output's words that the source does not hold, not even as a part of a word."""
        source = self.source_lower
        if len(source) > 8000:  # many searches in a long text: a set of its words costs less
            known = self.source_words
            return [word for word in self.words if word not in known]
        return [word for word in self.words if word not in source]

    @lazy
    def has_digit(self) -> bool:
        return _DIGIT.search(self.output) is not None

    @lazy
    def novel_length(self) -> int:
        """Characters of the pieces that do not stand in the source: a cheap upper bound for the letters of new words."""
        source = self.source_lower
        if len(source) > 8000:
            return len(self.output)
        return sum([len(token) for token in self.tokens if token not in source])

    @lazy
    def suspicious(self) -> bool:
        """Whether the source gives orders to a model."""
        return has_injection(self.source_lower)

    @lazy
    def sentences(self) -> int:
        return count_sentences(self.output)

    @lazy
    def unproven(self) -> list[tuple[Quantity, SourceNumbers]]:
        """Quantities of the output that the source does not hold letter for letter, with the source's numbers."""
        if not self.has_digit:
            return []
        return list(
            unproven_quantities(self.output, self.tokens, self.source_lower, self.source_text, self.source.locale)
        )
