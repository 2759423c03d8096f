"""Closing a run's accounting: the terminal states over all stages before the judge's verdicts are applied."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from include.judging.stage import finished_bins
from include.records import RunCounts
from include.runs import Run

TOP = 5


@dataclass(slots=True)
class Progress:
    """What became of the planned listings before the judge's verdicts are applied."""

    counts: RunCounts
    planned: int
    answered: int
    missing_bins: list[int]

    @property
    def completeness(self) -> float:
        """Share of the planned listings that got an answer, counting a row that is itself at fault as answered."""
        return self.answered / self.planned if self.planned else 1.0


def progress(run: Run, task: str) -> Progress:
    """Adds up the plan and the bins' validation counts; a bin without a validation manifest is wholly `errored`."""
    plan = run.read_plan(task)
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
    counts.add(bins)
    missing = [b for b in range(len(plan["rows"])) if b not in finished]
    return Progress(counts, planned, planned - bins.errored, missing)


def top_reasons(state: Progress) -> list[dict[str, Any]]:
    """The commonest reasons why listings did not get through, for people."""
    reasons = {**state.counts.quarantined, **({"errored": state.counts.errored} if state.counts.errored else {})}
    ranked = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))[:TOP]
    return [{"reason": reason, "listings": rows} for reason, rows in ranked]
