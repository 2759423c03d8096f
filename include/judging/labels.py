"""Human-labelled pairs of source and copy: reading them strictly, and weighting them to the production mix."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import fsspec

from include.judging.rubric import judge_values
from include.records import SampledText
from include.settings import SettingsError, digest

_WORDS = {0: False, 1: True, "pass": True, "fail": False, "0": False, "1": True}
_SOURCE_FIELDS = ("title", "description", "brand", "category", "attributes")


class LabelsError(SettingsError):
    """A file of labelled pairs cannot be used at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledPair:
    """One copy that a person has judged: `passed` is "factually consistent with the source".

    `document` names the source; pairs of one document are never split between fitting and measuring. `weight` is how many
    texts of the production mix the pair stands for.
    """

    id: str
    document: str
    source: Mapping[str, str]
    output: str
    passed: bool
    locale: str = ""
    kind: str = "description"
    origin: str = ""
    error_type: str = ""
    weight: float = 1.0
    second: bool | None = None  # another labeller's word
    judges: Mapping[str, bool] = field(default_factory=dict)  # stored verdicts of other judges

    def values(self) -> dict[str, str]:
        """The pair as the rubric's template sees it."""
        return template_values(self.source, self.output, self.locale, self.kind)


def source_fields(row: Mapping[str, Any]) -> dict[str, str]:
    """The listing fields of one line's `source`: a text is a description. Raises ValueError for anything else."""
    source = row.get("source")
    if isinstance(source, str):
        source = {"description": source}
    if not isinstance(source, dict):
        raise ValueError("needs `source`: text, or an object of listing fields")
    return {
        name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for name in _SOURCE_FIELDS
        if (value := source.get(name))
    }


def template_values(source: Mapping[str, str], output: str, locale: str, kind: str) -> dict[str, str]:
    """One source and copy as the judge's templates see them."""
    fields = {name: source.get(name, "") for name in _SOURCE_FIELDS} | {"attributes": source.get("attributes") or "{}"}
    row = SampledText(text_id="", stratum="", weight=1.0, listings=1, locale=locale or "en-US", output=output, **fields)
    return judge_values(row, kind)


def _flag(value: object) -> bool:
    try:
        return _WORDS[value]
    except (KeyError, TypeError):
        raise ValueError(f"label {value!r} is not 0, 1, pass or fail") from None


def _second(row: Mapping[str, Any], first: bool) -> bool | None:
    found = row.get("second_label")
    if found is None:
        others = row.get("second_human_labels") or []
        found = others[0] if others else None
    return None if found is None else _flag(found)


def _pair(row: Any) -> LabelledPair:
    if not isinstance(row, dict):
        raise ValueError("not a JSON object")
    values, output = source_fields(row), row.get("output", row.get("generated"))
    if not isinstance(output, str):
        raise ValueError("needs `output` (or `generated`) as text")
    if "label" not in row:
        raise ValueError("has no `label`")
    locale = row.get("locale") or (row["source"].get("locale") if isinstance(row["source"], dict) else "")
    passed, weight = _flag(row["label"]), float(row.get("weight", 1.0))
    if not 0 < weight < float("inf"):
        raise ValueError(f"weight {weight} is not a positive number")
    return LabelledPair(
        id=str(row.get("id") or digest([values, output])),
        document=str(row.get("document") or digest(values)),
        source=values,
        output=output,
        passed=passed,
        locale=str(locale or ""),
        kind=str(row.get("kind") or "description"),
        origin=str(row.get("origin") or ""),
        error_type=str(row.get("error_type") or ""),
        weight=weight,
        second=_second(row, passed),
        judges={name: _flag(said["label"]) for name, said in (row.get("judge_labels") or {}).items()},
    )


def read_labels(path: str | Path) -> tuple[list[LabelledPair], list[str]]:
    """Reads a JSONL file of labelled pairs; returns the pairs and one line per row that could not be used.

    Raises LabelsError when the file cannot be opened, or holds fewer than two pairs of either label.
    """
    pairs: dict[str, LabelledPair] = {}
    problems = []
    try:
        with fsspec.open(str(path), "rt", encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                try:
                    pair = _pair(json.loads(line))
                    if pair.id in pairs:
                        raise ValueError(f"id {pair.id!r} stands twice")
                    pairs[pair.id] = pair
                except (ValueError, KeyError, TypeError, AttributeError) as error:
                    problems.append(f"line {number}: {error}")
    except OSError as error:
        raise LabelsError(f"cannot read labels from {path}: {error.strerror or error}") from error
    counts = Counter(pair.passed for pair in pairs.values())
    if min(counts[True], counts[False]) < 2:
        raise LabelsError(
            f"{path} holds {counts[True]} passed and {counts[False]} failed pairs; both are needed to measure a judge"
            + (f" (first problem: {problems[0]})" if problems else "")
        )
    return list(pairs.values()), problems


def labels_hash(pairs: Iterable[LabelledPair]) -> str:
    """Version of a set of labels, in any order."""
    return digest(sorted([p.id, p.document, p.output, str(p.passed), repr(p.weight)] for p in pairs))


def reweighted(
    pairs: Sequence[LabelledPair], cell_of: Callable[[LabelledPair], str], production: Mapping[str, float]
) -> tuple[list[LabelledPair], list[str]]:
    """Post-stratifies pairs to the production mix: each cell's total weight becomes its share in production.

    Cells may be made of the judge's own verdict: labels mined by verdict are then corrected as in Begg and Greenes (1983).
    Returns the pairs of cells that production knows, with weights that sum to their number, and the production cells
    without any label, about which the calibration can say nothing.
    """
    totals: defaultdict[str, float] = defaultdict(float)
    for pair in pairs:
        totals[cell_of(pair)] += pair.weight
    kept = [pair for pair in pairs if production.get(cell_of(pair), 0) > 0]
    covered = sum(share for cell, share in production.items() if totals.get(cell))
    scaled = [
        replace(pair, weight=pair.weight / totals[cell] * production[cell] / covered * len(kept))
        for pair, cell in ((pair, cell_of(pair)) for pair in kept)
    ]
    return scaled, sorted(cell for cell, share in production.items() if share > 0 and not totals.get(cell))
