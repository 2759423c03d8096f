"""All validators over one pair: repair, look, decide."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import NamedTuple

from include.settings import TEMPLATES_DIR, Settings, TaskSettings
from include.validation.characters import without_invisible
from include.validation.registry import Validator, validators
from include.validation.repairs import repair
from include.validation.view import Source, TaskContext, View, nfc

_TEMPLATE_CODE = re.compile(r"\{%.*?%\}|\{\{.*?\}\}", re.S)


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
    runs: set[tuple[str, ...]] = set()
    for line in text.splitlines():
        words = line.split()
        runs.update(tuple(words[i : i + size]) for i in range(len(words) - size + 1))
    return frozenset(runs)


def _terms(terms: tuple[str, ...]) -> re.Pattern[str]:
    """Any of the terms as whole words, whatever their case; scripts without spaces need no word borders."""
    longest_first = sorted({nfc(t) for t in terms if t.strip()}, key=len, reverse=True)
    return re.compile(
        "|".join(
            rf"(?<![^\W\d_]){re.escape(t)}(?![^\W\d_])" if t[-1].isascii() else re.escape(t) for t in longest_first
        ),
        re.I,
    )


class Checker:
    """The validators of one enhancement task, ready to run. Build once, then call for every row."""

    def __init__(
        self, task: TaskSettings, *, thinking: bool | None = None, tokens: frozenset[str] = frozenset()
    ) -> None:
        settings = task.validators
        registry = validators()
        unknown = settings.disabled - registry.keys()
        if unknown:
            raise ValueError(
                f"tasks/{task.name}.yaml disables unknown validators {sorted(unknown)}; there are {sorted(registry)}"
            )
        idle = {"banned_term": not settings.banned_terms, "copied_through": settings.max_copied_ratio is None}
        active = [v for code, v in registry.items() if code not in settings.disabled and not idle.get(code)]
        self.fatal = tuple(v for v in active if v.fatal)
        self.checks = {  # by whether the text is exotic and whether it has markup characters
            (exotic, markup): tuple(
                v for v in active if not v.fatal and (exotic or not v.exotic) and (markup or not v.markup)
            )
            for exotic in (False, True)
            for markup in (False, True)
        }
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

    def check(self, source: Source, output: str, finish_reason: str = "stop") -> Outcome:
        """The verdict on one output. Pure and deterministic; never raises for any text."""
        context = self.context
        field = getattr(source, context.field, source.description)
        text, repairs, answered = repair(output, field, thinking=context.thinking)
        view = View(source, text, finish_reason, context, answered=answered)
        for fatal in self.fatal:
            if fatal.check(view):
                return Outcome("", (fatal.code,), repairs, ())
        found = [v for v in self.checks[view.exotic, view.markup] if v.check(view)]
        if not found:
            return Outcome(text, (), repairs, ())
        reasons = tuple(v.code for v in found if not v.flag)
        if "invisible_chars" in reasons:
            text = without_invisible(text)
        return Outcome(text, reasons, repairs, tuple(v.code for v in found if v.flag))


__all__ = ["Checker", "Outcome", "Validator", "special_tokens"]
