"""Which of two copies is truer to its listing: every pair is asked in both orders, and disagreement is a tie.

Judges favour a place, longer answers and their own family; so the report gives the share of pairs whose verdict flips with
the order, how often the longer copy wins, and whether the judge is one of the writers.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import fsspec
import jsonschema

from include.generation.prompts import messages, neutralise
from include.judging.labels import LabelsError, source_fields, template_values
from include.judging.rubric import load_strict
from include.judging.scoring import Ask, OpenJudge, open_judge
from include.settings import JudgeSettings, Settings

TEMPLATE = "compare.j2"
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"better": {"type": "string", "enum": ["first", "second", "tie"]}},
    "required": ["better"],
    "additionalProperties": False,
}
Winner = Literal["a", "b", "tie", "error"]


@dataclass(frozen=True, slots=True)
class Compared:
    """One pair's outcome. `flipped`: the two orders named different copies, and the outcome is a tie for that."""

    winner: Winner
    flipped: bool
    length_difference: int  # characters of a - characters of b


def read_choice(text: str) -> str:
    """Exactly "first", "second" or "tie" from one strict JSON object; "error" for everything else."""
    try:
        value = load_strict(text)
    except ValueError:
        return "error"
    if not jsonschema.Draft202012Validator(SCHEMA).is_valid(value):
        return "error"
    return str(value["better"])


def outcome(in_order: str, swapped: str) -> tuple[Winner, bool]:
    """Joins the choices of both orders: (winner, flipped). A choice that depends on the order is a tie."""
    if "error" in (in_order, swapped):
        return "error", False
    one: Winner = {"first": "a", "second": "b"}.get(in_order, "tie")  # type: ignore[assignment]
    other: Winner = {"first": "b", "second": "a"}.get(swapped, "tie")  # type: ignore[assignment]
    return (one, False) if one == other else ("tie", True)


def compare_copies(
    pairs: Mapping[str, tuple[Mapping[str, str], str, str]], judge: JudgeSettings, ask: Ask
) -> dict[str, Compared]:
    """Compares copies a and b, given by id as (template values of the listing, a, b); unreadable answers are errors."""

    def prompts() -> Any:
        for key, (values, a, b) in pairs.items():
            for order, first, second in (("ab", a, b), ("ba", b, a)):
                fields = {name: value for name, value in values.items() if name != "copy"}
                chat = messages(TEMPLATE, **fields, first=neutralise(first), second=neutralise(second))
                yield f"{order}/{key}", chat

    wanted = {"temperature": 0.0, **judge.sampling_params, "max_tokens": 16, "json_schema": SCHEMA}
    chosen = {output.id: read_choice(output.text) for output in ask(prompts(), wanted)}
    found = {}
    for key, (_, a, b) in pairs.items():
        winner, flipped = outcome(chosen.get(f"ab/{key}", "error"), chosen.get(f"ba/{key}", "error"))
        found[key] = Compared(winner, flipped, len(a) - len(b))
    return found


def comparison_report(results: Sequence[Compared], *, judge: str, writers: Sequence[str]) -> dict[str, Any]:
    """Wins, ties and errors; flip rate; how often the longer copy wins; and whether the judge judges its own family."""
    counts = Counter(result.winner for result in results)
    decided = [r for r in results if r.winner in ("a", "b") and r.length_difference]
    longer = sum((r.winner == "a") == (r.length_difference > 0) for r in decided)
    answered = len(results) - counts["error"]
    return {
        "pairs": len(results),
        **{name: counts[name] for name in ("a", "b", "tie", "error")},
        "flip_rate": sum(r.flipped for r in results) / answered if answered else None,
        "longer_wins": longer / len(decided) if decided else None,
        "length_correlation": _correlation(results),
        "judge_is_writer": judge in writers,
    }


def compare_file(path: str, task: str, settings: Settings, opener: OpenJudge = open_judge) -> dict[str, Any]:
    """Compares the copies `a` and `b` of a JSONL file, whose lines also hold `source`, for one enhancement task.

    Raises LabelsError, which names the line, for a line that lacks one of them, and EngineError of the judge.
    """
    engines, enhancement = settings.engines, settings.task(task)
    pairs = {}
    with fsspec.open(path, "rt", encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            try:
                row = json.loads(line)
                values = template_values(source_fields(row), "", row.get("locale", ""), enhancement.output_field)
                pairs[str(number)] = (values, str(row["a"]), str(row["b"]))
            except (ValueError, KeyError, AttributeError) as error:
                raise LabelsError(f"{path}, line {number}: {error!r}; needs source, a and b") from error
    with opener(settings) as ask:
        results = compare_copies(pairs, settings.judge, ask)
    judge, writer = engines[settings.judge.engine].lineage, engines[enhancement.engine].lineage
    return comparison_report(list(results.values()), judge=judge, writers=[writer])


def _correlation(results: Sequence[Compared]) -> float | None:
    """Spearman's correlation of the length difference with the outcome (a wins: 1, tie: 0, b wins: -1)."""
    from scipy.stats import spearmanr

    rows = [r for r in results if r.winner != "error"]
    outcomes = [{"a": 1, "tie": 0, "b": -1}[r.winner] for r in rows]
    if len(set(outcomes)) < 2:
        return None
    found = float(spearmanr([r.length_difference for r in rows], outcomes).statistic)
    return None if math.isnan(found) else found
