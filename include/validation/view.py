"""What a validator sees: one listing's source and one output, with the derived values that several validators share.

Everything derived is computed on first use, since most texts need few of them. What depends on the source alone is kept
with the Source, so that several outputs for one listing share it.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from itertools import pairwise
from typing import Any, Generic, NamedTuple, TypeVar, overload

import regex
from pydantic_core import from_json

from include.records import Listing
from include.settings import ValidatorSettings
from include.validation.quantities import SourceNumbers

T = TypeVar("T")
_WORD = re.compile(r"[^\W\d_]+")
_LETTERS = "".join(chr(code) if chr(code).isalpha() else " " for code in range(128))  # ASCII, all else a space
# Unicode's own bound on combining marks in a row (UAX #15, stream-safe text). Longer piles are no text, and putting
# them in order takes time quadratic in their length.
_PILE = regex.compile(r"\p{M}{31}")
_LONG_SOURCE = 8000  # characters; from here on a set of its words costs less than many searches


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


@lru_cache(maxsize=65_536)
def script_of(char: str) -> str:
    """Script of a letter by its Unicode name: "LATIN", "CJK", "CYRILLIC" …; empty for nameless code points."""
    return unicodedata.name(char, "").split(" ", 1)[0]


def words_of(text: str) -> list[str]:
    """Runs of letters."""
    return text.translate(_LETTERS).split() if text.isascii() else _WORD.findall(text)


def nfc(text: str) -> str:
    """Text in Unicode normalisation form C, so that composed and decomposed letters count and compare alike."""
    if text.isascii() or unicodedata.is_normalized("NFC", text) or _PILE.search(text):
        return text
    return unicodedata.normalize("NFC", text)


@dataclass(eq=False)
class Source:
    """The merchant's side of a pair. `attributes` is a JSON object of text to text."""

    title: str = ""
    description: str = ""
    brand: str = ""
    merchant_id: str = ""
    locale: str = ""
    attributes: str = "{}"

    @classmethod
    def of(cls, listing: Listing) -> Source:
        return cls(*[getattr(listing, field.name) for field in fields(cls)])

    @classmethod
    def from_json(cls, values: Mapping[str, object]) -> Source:
        """A source from a JSON object, composed to NFC as extraction does; absent and null fields are empty.

        Raises ValueError naming a field that is no text.
        """
        found: dict[str, str] = {}
        for name in (field.name for field in fields(cls)):
            value = values.get(name)
            if name == "attributes" and isinstance(value, Mapping):
                value = json.dumps(value, ensure_ascii=False)
            if value is not None and not isinstance(value, str):
                raise ValueError(f"source.{name} must be text, not {type(value).__name__}")
            found[name] = nfc(value or "")
        return cls(**found)

    @lazy
    def text(self) -> str:
        """All that the merchant said, one field a line, NFC."""
        return nfc(f"{self.title}\n{self.description}\n{self.brand}\n{_plain(self.attributes)}")

    @lazy
    def lower(self) -> str:
        return self.text.lower()

    @lazy
    def words(self) -> frozenset[str]:
        """Runs of letters, lower case."""
        return frozenset(words_of(self.lower))

    @lazy
    def scripts(self) -> Counter[str]:
        """Letters of the title and the beginning of the description by script."""
        found: Counter[str] = Counter()
        for char, count in Counter(f"{self.title} {self.description[:2000]}").items():
            if char.isalpha():
                found[script_of(char)] += count
        return found

    @lazy
    def numbers(self) -> SourceNumbers:
        return SourceNumbers(self.text, self.words)


def _plain(attributes: str) -> str:
    """A JSON object as `name: value; …`; anything else as it stands."""
    if len(attributes) <= 2:
        return ""
    try:
        pairs = from_json(attributes)
    except (ValueError, TypeError):  # TypeError: text with lone surrogates
        return attributes
    return "; ".join([f"{k}: {v}" for k, v in pairs.items()]) if isinstance(pairs, dict) else str(pairs)


class TaskContext(NamedTuple):
    """What is the same for every row of one enhancement task."""

    field: str  # the listing's field that the output replaces
    settings: ValidatorSettings
    thinking: bool
    special_tokens: re.Pattern[str] | None  # of the task model's tokenizer
    special_starts: str  # their first characters
    banned: Mapping[str, tuple[tuple[str, ...], re.Pattern[str]]]  # by merchant_id; "*" is every merchant
    instructions: frozenset[tuple[str, ...]]  # six-word runs of the prompt's own instructions
    starts: frozenset[tuple[str, ...]]  # three-word runs in them


class View:
    """One pair. `output` is NFC and already repaired, by `repairs`; `task` carries thresholds."""

    def __init__(
        self,
        source: Source,
        output: str,
        finish_reason: str,
        task: TaskContext,
        answered: bool,
        repairs: tuple[str, ...] = (),
    ) -> None:
        self.source, self.output, self.finish_reason, self.task = source, output, finish_reason, task
        self.repairs = repairs
        self.settings = task.settings
        self.answered = answered  # False: thinking was on and never ended
        self.lower = output.lower()
        self.tokens = self.lower.split()
        self.words = words_of(self.lower)  # runs of letters

    @lazy
    def pairs(self) -> set[tuple[str, str]]:
        """Neighbours among the tokens."""
        return set(pairwise(self.tokens))

    @lazy
    def novel_words(self) -> list[str]:
        """The output's words that the source does not hold, not even as a part of a word."""
        known = self.source.lower if len(self.source.lower) <= _LONG_SOURCE else self.source.words
        return [word for word in self.words if word not in known]

    def invents(self, pattern: re.Pattern[str] | regex.Pattern[str]) -> bool:
        """Whether the pattern's first match in the output is absent from the source, letter for letter."""
        found = pattern.search(self.output)
        return found is not None and found.group() not in self.source.text
