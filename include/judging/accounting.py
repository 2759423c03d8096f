"""Closing a run's accounting: terminal states over all stages, and the listings that a failed verdict withholds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from include.judging.stage import accepted, finished_bins
from include.partitions import PartWriter
from include.records import QuarantinedRow, RunCounts, Verdict
from include.runs import Run

EXAMPLES = 5


@dataclass(slots=True)
class Progress:
    """What became of the planned listings before the judge's verdicts are applied."""

    counts: RunCounts
    planned: int
    answered: int
    validated: int  # answered and not withheld for the row's own fault
    missing_bins: list[int]

    @property
    def completeness(self) -> float:
        """Share of the planned listings that got an answer, counting a row that is itself at fault as answered."""
        return self.answered / self.planned if self.planned else 1.0


def progress(run: Run, task: str) -> Progress:
    """Adds up the plan and the bins' validation counts; a bin without a validation manifest is wholly `errored`."""
    plan = run.store.read_json(run.plan(task))
    if plan is None:
        raise FileNotFoundError(f"{run.store.url} has no plan for {task}: run the extraction stage first")
    counts = RunCounts.from_dict(plan["counts"])
    finished = set(finished_bins(run, task))
    bins = RunCounts()
    for bin_index, rows in enumerate(plan["rows"]):
        if bin_index in finished:
            bins.add(RunCounts.from_dict(run.store.read_json(run.manifest(task, "validate", bin_index))["counts"]))
        else:
            bins.errored += int(rows)
    bins.extracted = 0  # extraction has counted them
    planned = sum(int(rows) for rows in plan["rows"])
    validated = bins.accepted + bins.quarantined_total
    counts.add(bins)
    missing = [b for b in range(len(plan["rows"])) if b not in finished]
    return Progress(counts, planned, planned - bins.errored, validated, missing)


@dataclass(slots=True)
class Withheld:
    """Listings that a verdict of the judge keeps from being published."""

    by_reason: dict[str, int] = field(default_factory=dict)
    examples: list[dict[str, str]] = field(default_factory=list)


def withhold(run: Run, task: str, reasons: Mapping[str, tuple[str, str]], worst: list[str]) -> Withheld:
    """Writes a QuarantinedRow for every accepted listing whose text is in `reasons` (text_id to reason and detail).

    `worst` orders the texts from which the examples come. Streams the verdicts; rewrites its parts on a second call.
    """
    found = Withheld()
    folder = run.quarantine(task, "judge")
    run.store.remove(folder)
    if not reasons:
        return found
    wanted = worst[:EXAMPLES]
    shown: dict[str, dict[str, str]] = {}
    with PartWriter(run.store, folder, QuarantinedRow) as writer:
        row: Verdict
        for row in accepted(run, task):
            if row.text_id not in reasons:
                continue
            reason, detail = reasons[row.text_id]
            writer.write(
                QuarantinedRow(
                    merchant_id=row.merchant_id,
                    listing_id=row.listing_id,
                    staleness_key=row.staleness_key,
                    stage="judge",
                    reason=reason,
                    detail=detail,
                    output=row.output,
                )
            )
            found.by_reason[reason] = found.by_reason.get(reason, 0) + 1
            if row.text_id in wanted and row.text_id not in shown:
                shown[row.text_id] = {
                    "merchant_id": row.merchant_id,
                    "listing_id": row.listing_id,
                    "text_id": row.text_id,
                    "reason": reason,
                    "detail": detail,
                    "output": row.output,
                }
    found.examples = [shown[text_id] for text_id in wanted if text_id in shown]
    return found


def first_quarantined(run: Run, task: str, limit: int = EXAMPLES) -> list[dict[str, str]]:
    """The first listings that the validators withheld, for an alert when the judge has no examples."""
    found: list[dict[str, str]] = []
    for bin_index in finished_bins(run, task):
        for row in run.store.read_rows(run.quarantine(task, "validate", bin_index), QuarantinedRow):
            found.append(
                {k: getattr(row, k) for k in ("merchant_id", "listing_id", "reason", "detail", "output")}
                | {"text_id": ""}
            )
            if len(found) == limit:
                return found
    return found
