"""Whether one side's copy is no worse than another's on the same listings: pass rates compared in pairs.

The interval of a paired difference is Agresti and Min's (2005, "Simple improved confidence intervals for comparing matched
proportions"): Wald's, with half a pair added to each cell.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from statistics import NormalDist
from typing import Any, Protocol

from include.judging.estimation import PERFECT_JUDGE, JudgeAccuracy, corrected_rate, interval, sampled_rate
from include.records import JudgeScore, WorkItem
from include.runs import Run, RunSpec, interval_of
from include.settings import Settings

Row = dict[str, Any]
NO_ANSWER = "no_answer"
ZERO_TOLERANCE = ("language_switch", "script_leak")  # a text in a wrong language or script is worse than none


class Allowance(Protocol):
    """The fall that is allowed, and the chance of error: a gate's settings have both, and so have a tuning run's."""

    @property
    def margin(self) -> float: ...
    @property
    def alpha(self) -> float: ...


def paired_difference(
    gained: float, lost: float, pairs: int, judge: JudgeAccuracy = PERFECT_JUDGE, confidence: float = 0.95
) -> tuple[float, float]:
    """Interval of candidate's less incumbent's pass rate; `gained` pairs pass with the candidate only, `lost` ones without.

    A judge shrinks a true difference by its Youden index (see include.judging.estimation), so the observed one is divided
    by it; the calibration's own error enters by the delta method.
    """
    z, n = NormalDist().inv_cdf((1 + confidence) / 2), pairs + 2
    se, sp, var_se, var_sp = judge.shrunk()
    youden, observed = se + sp - 1, (gained - lost) / n
    if youden <= 0:
        return -1.0, 1.0
    variance, centre = (gained + lost + 1) / n - observed**2, observed / youden
    half = z * math.sqrt(variance / n + centre**2 * (var_se + var_sp)) / youden
    return max(-1.0, centre - half), min(1.0, centre + half)


def pairs_needed(gained: int, lost: int, pairs: int, allowed: Allowance, judge: JudgeAccuracy = PERFECT_JUDGE) -> int:
    """How many pairs that go on as these did would show a fall within the margin, by `paired_difference`; 0: no million would."""

    def holds(number: int) -> bool:
        scale = number / max(pairs, 1)
        return paired_difference(gained * scale, lost * scale, number, judge, 1 - allowed.alpha)[0] > -allowed.margin

    few, many = pairs, 1_000_000
    if not holds(many):
        return 0
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (few, middle) if holds(middle) else (middle, many)
    return many


def compared(
    what: str,
    candidate: Mapping[str, bool],
    incumbent: Mapping[str, bool],
    allowed: Allowance,
    judge: JudgeAccuracy = PERFECT_JUDGE,
) -> Row:
    """One pass rate over the listings that both sides have: difference, interval, and what is shown of it.

    `holds`: the fall is shown to be within the margin; `worse`: it is shown to be beyond it; neither: undecided.
    """
    shared = candidate.keys() & incumbent.keys()
    gained = sum(candidate[key] and not incumbent[key] for key in shared)
    lost = sum(incumbent[key] and not candidate[key] for key in shared)
    difference = (gained - lost) / len(shared) / judge.youden if shared and judge.youden > 0 else 0.0
    low, high = paired_difference(gained, lost, len(shared), judge, 1 - allowed.alpha)
    holds, why = bool(shared) and low > -allowed.margin, ""
    if not holds:
        why = f"{what} may fall by {100 * -low:.1f} points, {100 * allowed.margin:g} allowed"
        if needed := pairs_needed(gained, lost, len(shared), allowed, judge):
            why = f"{what}: too few pairs, {len(shared)} of about {needed} needed"
    return {"difference": difference, "difference_ci95": [low, high], "gained": gained, "lost": lost,
            "pairs": len(shared), "holds": holds, "worse": high < -allowed.margin, "why": why}  # fmt: skip


def estimated_rate(
    scores: Sequence[JudgeScore], population: int, judge: JudgeAccuracy, passes: Callable[[JudgeScore], bool]
) -> tuple[float, list[float]]:
    """One side's pass rate, corrected for the judge's errors, and its 95% interval; 0 and [0, 1] where nothing is known."""
    sampled = sampled_rate(scores, population, passes)
    if sampled is None:
        return 0.0, [0.0, 1.0]
    rate = corrected_rate(sampled.rate, judge) if judge.youden > 0 else 0.0
    return rate, list(interval(sampled, judge))


def compared_validators(
    candidate: Mapping[str, tuple[str, ...]], incumbent: Mapping[str, tuple[str, ...]], allowed: Allowance
) -> dict[str, Row]:
    """All validators together (`all`), and each that found fault with either side; values are reasons by text id."""

    def free_of(side: Mapping[str, tuple[str, ...]], code: str = "") -> dict[str, bool]:
        return {key: code not in reasons if code else not reasons for key, reasons in side.items()}

    found = {"all": compared("all validators", free_of(candidate), free_of(incumbent), allowed)}
    for code in sorted({code for side in (candidate, incumbent) for reasons in side.values() for code in reasons}):
        found[code] = compared(code, free_of(candidate, code), free_of(incumbent, code), allowed)
        if code in ZERO_TOLERANCE and (new := found[code]["lost"]):
            why = f"{code} in {new} texts where the incumbent has none: never allowed"
            found[code] |= {"holds": False, "worse": True, "why": why}
    return found


def run_of_items(
    items: Sequence[WorkItem], task: str, settings: Settings, day: date, *, data_url: str, state_url: str
) -> Run:
    """A run of its own for these items, in one bin; what an earlier call's stages finished there is kept.

    Its state URL is another than the nights': no promotion is in force there, and no figures are left behind.
    """
    pipeline = settings.pipeline.model_copy(update={"data_url": data_url, "state_url": state_url})
    start, end = interval_of(day)
    run = Run.create(
        RunSpec(run_id="held-out", partition_date=day, interval_start=start, interval_end=end,
                enhancement_tasks=(task,), settings=settings.model_copy(update={"pipeline": pipeline}))
    )  # fmt: skip
    run.store.write_part(f"{run.work(task, 0)}/part-00000.parquet", WorkItem, items)
    run.store.write_json(run.plan(task), {"bins": [[0]], "rows": [len(items)], "counts": {}})
    return run
