"""All validators over one pair: repair, look, decide."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from include.settings import TEMPLATES_DIR, Settings, TaskSettings
from include.validation.characters import without_invisible
from include.validation.registry import Validator, registered, validators
from include.validation.repairs import repair
from include.validation.view import Source, TaskContext, View, nfc

_TEMPLATE_CODE = re.compile(r"\{%.*?%\}|\{\{.*?\}\}", re.S)
_MOST_CHARS = 20_000  # characters whose validators are remembered
_Found = list[tuple[Validator, bool | Sequence[str]]]  # validators' answers to one text


class Outcome(NamedTuple):
    """The verdict on one output. `reasons` are in order of severity; `flags` never reject."""

    output: str
    reasons: tuple[str, ...]
    repairs: tuple[str, ...]
    flags: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.reasons


def special_tokens(model_path: str) -> frozenset[str]:
    """Special tokens of a local model's tokenizer, read from its JSON files; empty when they are not there.

    Tokens that are ordinary text to a reader (a lone letter, a space) are left out.
    """
    found: set[str] = set()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        try:
            values = json.loads((Path(model_path) / name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        added = values.get("added_tokens") or list(values.get("added_tokens_decoder", {}).values())
        found.update(str(t["content"]) for t in added if t.get("special"))
    return frozenset(t for t in found if len(t.strip()) > 2)


def _instruction_runs(template: str, size: int) -> frozenset[tuple[str, ...]]:
    """Runs of `size` words of a template's own sentences; listing fields and tags are left out."""
    text = _TEMPLATE_CODE.sub("\n", (TEMPLATES_DIR / template).read_text(encoding="utf-8")).lower()
    lines = [line.split() for line in text.splitlines()]
    return frozenset(tuple(words[i : i + size]) for words in lines for i in range(len(words) - size + 1))


def _terms(terms: tuple[str, ...]) -> tuple[tuple[str, ...], re.Pattern[str]]:
    """The terms, lower case, and a pattern of them as whole words; scripts without spaces need no word borders."""
    known = sorted({nfc(t).lower() for t in terms if t.strip()}, key=len, reverse=True)
    borders = (rf"(?<![^\W\d_]){re.escape(t)}(?![^\W\d_])" if t[-1].isascii() else re.escape(t) for t in known)
    return tuple(known), re.compile("|".join(borders))


class _Marks(dict[str, int]):
    """By character: which of the checks it calls for, as bits."""

    def __init__(self, checks: tuple[Validator, ...]) -> None:
        self.classes = [(1 << i, v.when) for i, v in enumerate(checks) if v.when is not None]

    def __missing__(self, char: str) -> int:
        bits = sum(bit for bit, when in self.classes if when.match(char))
        if len(self) < _MOST_CHARS:
            self[char] = bits
        return bits


class Checker:
    """The validators of one enhancement task, ready to run. Build once, then call for every row."""

    def __init__(
        self, task: TaskSettings, *, thinking: bool | None = None, tokens: frozenset[str] = frozenset()
    ) -> None:
        settings = task.validators
        unknown = settings.disabled - validators().keys()
        if unknown:
            raise ValueError(
                f"tasks/{task.name}.yaml disables unknown validators {sorted(unknown)}; there are {sorted(validators())}"
            )
        idle = {"banned_term": not settings.banned_terms, "copied_through": settings.max_copied_ratio is None}
        active = [v for v in registered() if not settings.disabled.issuperset(v.codes) and not idle.get(v.codes[0])]
        self.fatal = tuple(v for v in active if v.fatal)
        self.checks = tuple(v for v in active if not v.fatal)
        self.flags = frozenset[str]().union(*(v.flags for v in active))
        self.marks = _Marks(self.checks)
        self.plain = bytes(code for code in range(128) if not self.marks[chr(code)])  # ASCII that calls for no check
        self.context = TaskContext(
            field=task.output_field,
            settings=settings,
            thinking=task.thinking if thinking is None else thinking,
            special_tokens=re.compile("|".join(map(re.escape, sorted(tokens)))) if tokens else None,
            special_starts="".join(sorted({token[0] for token in tokens})),
            banned={owner: _terms(terms) for owner, terms in settings.banned_terms.items() if terms},
            instructions=_instruction_runs(task.template, 6),
            starts=_instruction_runs(task.template, 3),
        )

    @classmethod
    def of(cls, settings: Settings, task: str, *, thinking: bool | None = None) -> Checker:
        """The checker of a configured task, with the special tokens of its model when that lies on this machine."""
        found = settings.task(task)
        return cls(found, thinking=thinking, tokens=special_tokens(settings.engines[found.engine].model_path()))

    def _reasons(self, found: _Found) -> tuple[str, ...]:
        """The reason codes of validators' answers, less those that the task has disabled."""
        codes = [code for v, holds in found if holds for code in (v.codes if holds is True else holds)]
        disabled = self.context.settings.disabled
        return tuple([code for code in codes if code not in disabled] if disabled else codes)

    def check(self, source: Source, output: str, finish_reason: str = "stop") -> Outcome:
        """The verdict on one output. Pure and deterministic; never raises for any text."""
        return self.check_all([(source, output, finish_reason)])[0]

    def check_all(self, rows: Iterable[tuple[Source, str, str]]) -> list[Outcome]:
        """The verdicts on (source, output, finish reason), in order.

        A validator goes over all texts before the next one starts, so that the processor's caches keep its code at hand.
        """
        views = [self._view(*row) for row in rows]
        outcomes = [self._without_look(view) for view in views]
        alike: defaultdict[int, list[View]] = defaultdict(list)  # by marks
        for view, outcome in zip(views, outcomes, strict=True):
            if outcome is None:
                alike[self._bits(view)].append(view)
        found: dict[View, _Found] = {view: [] for view in views}
        for i, v in enumerate(self.checks):
            check = v.check
            for marks, group in alike.items():
                if v.when is None or marks >> i & 1:
                    for view in group:
                        if holds := check(view):
                            found[view].append((v, holds))
        return [
            self._outcome(view, found[view]) if outcome is None else outcome
            for view, outcome in zip(views, outcomes, strict=True)
        ]

    def _view(self, source: Source, output: str, finish_reason: str) -> View:
        context = self.context
        field = getattr(source, context.field, source.description)
        text, repairs, answered = repair(output, field, thinking=context.thinking)
        return View(source, text, finish_reason, context, answered, repairs)

    def _without_look(self, view: View) -> Outcome | None:
        """The verdict on a text that the other validators have no business with; None for all others."""
        for fatal in self.fatal:
            if (holds := fatal.check(view)) and (reasons := self._reasons([(fatal, holds)])):
                return Outcome("", reasons, view.repairs, ())
        # An empty text comes this far in a task that has disabled `empty_output`.
        return None if view.output else Outcome("", (), view.repairs, ())

    def _bits(self, view: View) -> int:
        """The marks of all the text's characters."""
        marks, known, text = 0, self.marks, view.output
        for char in set(text.encode().translate(None, self.plain).decode() if text.isascii() else text):
            marks |= known[char]
        return marks

    def _outcome(self, view: View, found: _Found) -> Outcome:
        if not found:
            return Outcome(view.output, (), view.repairs, ())
        text, reasons, flags = view.output, self._reasons(found), tuple[str, ...]()
        if not self.flags.isdisjoint(reasons):
            flags = tuple(code for code in reasons if code in self.flags)
            reasons = tuple(code for code in reasons if code not in self.flags)
        if "invisible_chars" in reasons:
            text = without_invisible(text)
        return Outcome(text, reasons, view.repairs, flags)
