"""Whether a faster candidate writes copy as good as the incumbent's: both answer the same held-out listings, night for night.

Each side is a run of its own with the profile under test, worked through by the nightly stages as child processes. Listings
are then compared in pairs: the pass rate of the judge, corrected for the judge's errors, of all validators together, and
of every validator that found fault with either side; see include.judging.pairing.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from include.generation.child import run_stage
from include.generation.leases import device_name
from include.judging.calibration import accuracy_of, calibration_in_force, passes_by
from include.judging.costs import LISTINGS_PER_DAY
from include.judging.estimation import EVALUABLE
from include.judging.pairing import NO_ANSWER, Row, compared, compared_validators, estimated_rate, run_of_items
from include.records import JudgeScore, JudgeVerdict, Verdict, WorkItem
from include.runs import Run
from include.settings import EngineProfile, Settings, SettingsError, digest
from include.tuning.plan import TuningSettings, file_name
from include.tuning.run import INCUMBENT, check_checkpoints, read_run
from include.tuning.trials import write_json
from include.tuning.workload import items_of_runs

log = logging.getLogger(__name__)

UNDER_TEST = "under-test"  # a name of its own: the judge may run on the very profile that is tuned


def answer(
    folder: Path, name: str, profile: EngineProfile, plan: Row, settings: Settings, items: list[WorkItem]
) -> Run:
    """One side's run under `quality/<name>`: generated, validated and judged; what an earlier call finished is kept."""
    task, home = settings.task(plan["task"]), folder.resolve() / "quality"
    place = home / file_name(name)
    sampling = task.sampling.model_copy(update={"min_size": len(items), "max_size": len(items)})  # the judge reads all
    changed = {
        "tasks": settings.tasks | {task.name: task.model_copy(update={"engine": UNDER_TEST, "sampling": sampling})},
        "engines": settings.engines | {UNDER_TEST: profile.model_copy(update={"name": UNDER_TEST})},
    }  # fmt: skip
    day = date.fromisoformat(plan["started_at"][:10])
    changes = settings.model_copy(update=changed)
    run = run_of_items(items, task.name, changes, day, data_url=str(place), state_url=str(home / "state"))
    common = ("--run-dir", run.store.url, "--task", task.name)
    for module in ("include.generation", "include.validation"):
        run_stage(module, "run", *common, "--bin", "0")
    for command in ("sample", "score"):
        run_stage("include.judging", command, *common)
    return run


def _reasons(run: Run, task: str, items: Sequence[WorkItem]) -> dict[str, tuple[str, ...]]:
    """Why the validators refuse each text; a listing without an answer counts as refused, too."""
    found = {row.text_id: row.reasons for row in run.store.read_rows(run.verdicts(task, 0), Verdict)}
    return {item.text_id: found.get(item.text_id, (NO_ANSWER,)) for item in items}


def compare_quality(
    folder: Path, settings: Settings, run_dirs: Sequence[str], seed: int = 8, held_out: int | None = None
) -> Row:
    """Compares every finalist with the incumbent and writes `quality.json`; one whose stages fail is told there under `failed`.

    A finalist's text that the judge could not read counts as failed where the incumbent's was read: a loss on one side is no
    chance. Raises FileNotFoundError for a folder without a result, SettingsError for runs without work or on another device
    than the run's or with a checkpoint made anew. A stage that fails raises what `run_stage` does: the incumbent's at once; a finalist's after the
    others were compared and written down, where another try may help or none is left.
    """
    plan, result = read_run(folder)
    tuning, task = TuningSettings.model_validate(plan["tuning"]), str(plan["task"])
    if (device := device_name()) != plan["device"]:
        raise SettingsError(f"{folder} was measured on {plan['device']}, and copy is compared there: this is {device}")
    check_checkpoints(folder, plan)
    items = items_of_runs(run_dirs, task, limit=held_out or tuning.held_out, seed=seed)
    if not items:
        raise SettingsError(f"no listing to compare quality on: name finished runs of {task} with --run-dir")
    finalists = {row["candidate"]: row["profile"] for row in result["finalists"] if row["requests_per_s"]}
    runs: dict[str, Run] = {}
    failed: dict[str, RuntimeError | SettingsError] = {}
    for name, profile in {INCUMBENT: plan["incumbent"], **finalists}.items():
        try:
            runs[name] = answer(folder, name, EngineProfile.model_validate(profile), plan, settings, items)
        except (RuntimeError, SettingsError) as error:
            if name == INCUMBENT:
                raise
            log.error("%s is not compared: %s", name, error)
            failed[name] = error
    profiles = {name: profile for name, profile in finalists.items() if name in runs}
    calibration, refused = calibration_in_force(settings, task)
    judge, passes = accuracy_of(calibration), passes_by(calibration)
    refused = [] if settings.task(task).gate.override else refused
    scores = {name: list(run.store.read_rows(run.judged(task), JudgeScore)) for name, run in runs.items()}
    counted = {INCUMBENT: EVALUABLE} | dict.fromkeys(profiles, EVALUABLE | {JudgeVerdict.ERROR})
    passed = {
        name: {
            score.text_id: score.verdict in EVALUABLE and passes(score)
            for score in rows
            if score.verdict in counted[name]
        }
        for name, rows in scores.items()
    }
    rates = {  # the held-out listings stand for a catalogue
        name: estimated_rate(rows, LISTINGS_PER_DAY, judge, passes) for name, rows in scores.items()
    }
    reasons = {name: _reasons(run, task, items) for name, run in runs.items()}
    candidates: dict[str, Row] = {}
    for name, profile in profiles.items():
        judged = compared("judge pass rate", passed[name], passed[INCUMBENT], tuning, judge)
        validators = compared_validators(reasons[name], reasons[INCUMBENT], tuning)
        checks = [judged, *validators.values()]
        why = [f"judge refused: {reason}" for reason in refused] + [check["why"] for check in checks if check["why"]]
        candidates[name] = judged | {
            "pass_rate": rates[name][0],
            "ci95": rates[name][1],
            "incumbent_pass_rate": rates[INCUMBENT][0],
            "holds": not why,
            "why": "; ".join(why) or f"no fall beyond the margin of {100 * tuning.margin:g} points",
            "validators": validators,
            "profile": digest(profile),
        }
    told = {name: str(error) for name, error in failed.items()}
    quality = {"candidates": candidates, "failed": told, "listings": len(items), "runs": {name: run.store.url for name, run in runs.items()},
               "calibration": calibration.version if calibration else None}  # fmt: skip
    write_json(folder / "quality.json", quality)
    again = any(isinstance(error, RuntimeError) for error in failed.values())
    if again or (failed and not profiles):
        names = "; ".join(f"{name}: {error}" for name, error in told.items())
        raise (RuntimeError if again else SettingsError)(f"not compared: {names}")
    return quality
