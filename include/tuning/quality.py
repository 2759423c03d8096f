"""Whether a faster candidate writes copy as good as the incumbent's: both answer the same held-out listings, night for night.

Each side is a run of its own with the profile under test, worked through by the nightly stages as child processes. Listings
are then compared in pairs: the pass rate of the judge, corrected for the judge's errors, of all validators together, and
of every validator that found fault with either side. The interval of a paired difference is Agresti and Min's (2005,
"Simple improved confidence intervals for comparing matched proportions"): Wald's, with half a pair added to each cell.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from statistics import NormalDist

from include.generation.child import EXIT_NO_RETRY, PARENT_VARIABLE, RESULT_VARIABLE
from include.judging.calibration import accuracy_of, calibration_in_force, passes_by
from include.judging.estimation import EVALUABLE, PERFECT_JUDGE, JudgeAccuracy, corrected_rate, interval, sampled_rate
from include.records import JudgeScore, Verdict, WorkItem
from include.runs import Run, RunSpec, interval_of
from include.settings import PROJECT_ROOT, EngineProfile, Settings, SettingsError, digest
from include.tuning.plan import LISTINGS_PER_DAY, TuningSettings
from include.tuning.run import INCUMBENT, Row, write_json
from include.tuning.workload import items_of_runs

UNDER_TEST = "under-test"  # a name of its own: the judge may run on the very profile that is tuned
NO_ANSWER = "no_answer"
ZERO_TOLERANCE = ("language_switch", "script_leak")  # a text in a wrong language or script is worse than none


def paired_difference(
    gained: int, lost: int, pairs: int, judge: JudgeAccuracy = PERFECT_JUDGE, confidence: float = 0.95
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


def compared(
    what: str,
    candidate: Mapping[str, bool],
    incumbent: Mapping[str, bool],
    tuning: TuningSettings,
    judge: JudgeAccuracy = PERFECT_JUDGE,
) -> Row:
    """One pass rate over the listings that both sides have: difference, interval, and whether it is shown to be no worse."""
    shared = candidate.keys() & incumbent.keys()
    gained = sum(candidate[key] and not incumbent[key] for key in shared)
    lost = sum(incumbent[key] and not candidate[key] for key in shared)
    difference = (gained - lost) / len(shared) / judge.youden if shared and judge.youden > 0 else 0.0
    low, high = paired_difference(gained, lost, len(shared), judge, 1 - tuning.alpha)
    holds, why = bool(shared) and low > -tuning.margin, ""
    if not holds:
        z = NormalDist().inv_cdf(1 - tuning.alpha / 2)
        reach = max(tuning.margin * max(judge.youden, 0.0), 1e-9)
        needed = math.ceil((gained + lost + 1) / (len(shared) + 2) * (z / reach) ** 2)
        why = f"{what} may fall by {100 * -low:.1f} points, {100 * tuning.margin:g} allowed"
        if len(shared) < needed and difference > -tuning.margin:  # no difference at all could not be told from a fall
            why = f"{what}: too few pairs, {len(shared)} of about {needed} needed"
    return {"difference": difference, "difference_ci95": [low, high], "gained": gained, "lost": lost,
            "pairs": len(shared), "holds": holds, "why": why}  # fmt: skip


def stage(*command: str) -> None:
    """Runs a stage as a child that ends with this process. Raises SettingsError where a retry will not help, or RuntimeError."""
    environment = {name: value for name, value in os.environ.items() if name != RESULT_VARIABLE}
    environment[PARENT_VARIABLE] = str(os.getpid())
    status = subprocess.run(  # noqa: S603 - our own modules
        [sys.executable, "-m", *command], cwd=PROJECT_ROOT, env=environment, check=False
    ).returncode
    if status:
        failure = SettingsError if status in (2, EXIT_NO_RETRY) else RuntimeError
        raise failure(f"{' '.join(command)} ended with status {status}; its last lines stand above")


def answer(
    folder: Path, name: str, profile: EngineProfile, plan: Row, settings: Settings, items: list[WorkItem]
) -> Run:
    """One side's run under `quality/<name>`: generated, validated and judged; what an earlier call finished is kept."""
    task, home = settings.task(plan["task"]), folder.resolve() / "quality"
    place = home / (name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else digest(name))
    sampling = task.sampling.model_copy(update={"min_size": len(items), "max_size": len(items)})  # the judge reads all
    changed = {
        "tasks": settings.tasks | {task.name: task.model_copy(update={"engine": UNDER_TEST, "sampling": sampling})},
        "engines": settings.engines | {UNDER_TEST: profile.model_copy(update={"name": UNDER_TEST})},
        "pipeline": settings.pipeline.model_copy(
            # A state of its own: no promotion is in force there, and no figures are left behind.
            update={"data_url": str(place), "state_url": str(home / "state")}
        ),
    }  # fmt: skip
    day = date.fromisoformat(plan["started_at"][:10])
    start, end = interval_of(day)
    run = Run.create(
        RunSpec(run_id="held-out", partition_date=day, interval_start=start, interval_end=end,
                enhancement_tasks=(task.name,), settings=settings.model_copy(update=changed))
    )  # fmt: skip
    run.store.write_part(f"{run.work(task.name, 0)}/part-00000.parquet", WorkItem, items)
    run.store.write_json(run.plan(task.name), {"bins": [[0]], "rows": [len(items)], "counts": {}})
    common = ("--run-dir", run.store.url, "--task", task.name)
    for module in ("include.generation", "include.validation"):
        stage(module, "run", *common, "--bin", "0")
    for command in ("sample", "score"):
        stage("include.judging", command, *common)
    return run


def _reasons(run: Run, task: str, items: Sequence[WorkItem]) -> dict[str, tuple[str, ...]]:
    """Why the validators refuse each text; a listing without an answer counts as refused, too."""
    found = {row.text_id: row.reasons for row in run.store.read_rows(run.verdicts(task, 0), Verdict)}
    return {item.text_id: found.get(item.text_id, (NO_ANSWER,)) for item in items}


def _validators(
    candidate: Mapping[str, tuple[str, ...]], incumbent: Mapping[str, tuple[str, ...]], tuning: TuningSettings
) -> dict[str, Row]:
    def free_of(side: Mapping[str, tuple[str, ...]], code: str = "") -> dict[str, bool]:
        return {key: code not in reasons if code else not reasons for key, reasons in side.items()}

    found = {"all": compared("all validators", free_of(candidate), free_of(incumbent), tuning)}
    for code in sorted({code for side in (candidate, incumbent) for reasons in side.values() for code in reasons}):
        found[code] = compared(code, free_of(candidate, code), free_of(incumbent, code), tuning)
        if code in ZERO_TOLERANCE and (new := found[code]["lost"]):
            found[code] |= {"holds": False, "why": f"{code} in {new} texts where the incumbent has none: never allowed"}
    return found


def compare_quality(
    folder: Path, settings: Settings, run_dirs: Sequence[str], seed: int = 8, held_out: int | None = None
) -> Row:
    """Compares every finalist with the incumbent and writes `quality.json`.

    Raises FileNotFoundError for a folder without a result, SettingsError for runs without work, and what `stage` raises.
    """
    plan, result = (json.loads((folder / name).read_text(encoding="utf-8")) for name in ("plan.json", "result.json"))
    tuning, task = TuningSettings.model_validate(plan["tuning"]), str(plan["task"])
    drawn = items_of_runs(run_dirs, task, limit=held_out or tuning.held_out, seed=seed)
    items = list({item.text_id: item for item in drawn}.values())  # listings that share a text are no two pairs
    if not items:
        raise SettingsError(f"no listing to compare quality on: name finished runs of {task} with --run-dir")
    profiles = {row["candidate"]: row["profile"] for row in result["finalists"] if row["requests_per_s"]}
    runs = {
        name: answer(folder, name, EngineProfile.model_validate(profile), plan, settings, items)
        for name, profile in {INCUMBENT: plan["incumbent"], **profiles}.items()
    }
    calibration, refused = calibration_in_force(settings, task)
    judge, passes = accuracy_of(calibration), passes_by(calibration)
    refused = [] if settings.task(task).gate.override else refused
    scores = {name: list(run.store.read_rows(run.judged(task), JudgeScore)) for name, run in runs.items()}
    passed = {
        name: {score.text_id: passes(score) for score in rows if score.verdict in EVALUABLE}
        for name, rows in scores.items()
    }
    rates, bounds = dict[str, float](), dict[str, list[float]]()
    for name, rows in scores.items():  # the held-out listings stand for a catalogue
        sampled = sampled_rate(rows, LISTINGS_PER_DAY, passes)
        rates[name] = corrected_rate(sampled.rate, judge) if sampled and judge.youden > 0 else 0.0
        bounds[name] = list(interval(sampled, judge)) if sampled else [0.0, 1.0]
    reasons = {name: _reasons(run, task, items) for name, run in runs.items()}
    candidates: dict[str, Row] = {}
    for name, profile in profiles.items():
        judged = compared("judge pass rate", passed[name], passed[INCUMBENT], tuning, judge)
        validators = _validators(reasons[name], reasons[INCUMBENT], tuning)
        checks = [judged, *validators.values()]
        why = [f"judge refused: {reason}" for reason in refused] + [check["why"] for check in checks if check["why"]]
        candidates[name] = judged | {
            "pass_rate": rates[name],
            "ci95": bounds[name],
            "incumbent_pass_rate": rates[INCUMBENT],
            "holds": not why,
            "why": "; ".join(why) or f"no fall beyond the margin of {100 * tuning.margin:g} points",
            "validators": validators,
            "profile": digest(profile),
        }
    quality = {"candidates": candidates, "listings": len(items), "runs": {name: run.store.url for name, run in runs.items()},
               "calibration": calibration.version if calibration else None}  # fmt: skip
    write_json(folder / "quality.json", quality)
    return quality
