"""From a tuning run to the nightly engine: which finalist may replace the incumbent, and its promotion."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from include import promotions
from include.settings import EngineProfile, Settings, SettingsError, digest
from include.tuning.run import Row, check_checkpoints, ratio
from include.tuning.trials import write_json

ASKED = "asked.json"  # what a person was asked to approve


def _read(folder: Path, name: str) -> Any:
    path = folder / name
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def choose(folder: Path) -> Row:
    """The fastest finalist that is faster than the incumbent, by the 95% interval, and whose quality holds.

    Its row of `result.json`, with `quality`, the rate over the incumbent's as `speedup` and `speedup_ci95`, and why faster ones were
    `passed_over`. Every repeat
    of both must have been measured: those that an engine survived say nothing of it in a night. Raises ValueError that
    says of every finalist why not.
    """
    result, compared = _read(folder, "result.json"), _read(folder, "quality.json")
    quality, failed = compared.get("candidates", {}), compared.get("failed", {})
    if not result.get("complete", bool(result)):
        raise ValueError(f"nothing is promoted: {folder} holds no finished tuning run")
    if not (incumbent := result.get("incumbent")) or not incumbent["rates"]:
        raise ValueError(
            "nothing is promoted: the incumbent was not measured, so that no finalist is known to be faster"
        )
    if incumbent.get("error"):
        raise ValueError(f"nothing is promoted: the incumbent failed in a repeat: {incumbent['error']}")
    why = []
    for row in sorted(result["finalists"], key=lambda row: -(row["requests_per_s"] or 0.0)):
        speedup, bounds = ratio(row["rates"], incumbent["rates"])
        found, name = quality.get(row["candidate"], {}), row["candidate"]
        if speedup is None:
            why.append(f"{name} could not be measured")
        elif row.get("error"):
            why.append(f"{name} failed in a repeat: {row['error']}")
        elif bounds is None:
            why.append(f"{name} has no interval, for want of repeats: measure with `repeats` of 2 or more")
        elif not bounds[0] > 1:  # not a number, where the repeats do not vary, is no proof
            why.append(f"{name} is not shown to be faster: {speedup} ({bounds[0]} to {bounds[1]}) times the incumbent")
        elif name in failed:
            why.append(f"quality of {name} could not be compared: {failed[name]}")
        elif found.get("profile") != digest(row["profile"]):
            why.append(f"quality of {name} was not compared: run `python -m include.tuning quality`")
        elif not found["holds"]:
            why.append(f"{name}: {found['why']}")
        else:
            return {**row, "quality": found, "speedup": speedup, "speedup_ci95": bounds, "passed_over": why}
    raise ValueError(f"nothing is promoted: {'; '.join(why) or 'there is no finalist'}")


def verdict(folder: Path) -> str:
    """What `choose` makes of a run, in a sentence."""
    try:
        row = choose(folder)
    except ValueError as error:
        return str(error)
    low, high = row["speedup_ci95"]
    told = f"{row['candidate']} may be promoted: {row['speedup']} ({low} to {high}) times the incumbent, and {row['quality']['why']}"
    return "; ".join([told, *row["passed_over"]])


def note_question(folder: Path) -> None:
    """Writes down which profile a person is asked to approve; raises as `choose` does."""
    write_json(folder / ASKED, {"profile": digest(choose(folder)["profile"])})


def promote_best(folder: Path, settings: Settings, approved_by: str, *, as_asked: bool = False) -> str:
    """Puts the chosen finalist in force for the device that it was measured on; says so in one line.

    With `as_asked`, only what `note_question` wrote down. Raises ValueError where there is no choice or, since a person was
    asked, another one, where a checkpoint was made anew, where the task's model is no longer the one that was tuned, and where another
    profile is in force than the finalist was compared with.
    """
    row, plan, result = choose(folder), _read(folder, "plan.json"), _read(folder, "result.json")
    base, name = EngineProfile.model_validate(plan["base"]), settings.task(plan["task"]).engine
    if base.name != name or promotions.identity(base) != promotions.identity(settings.engines[name]):
        raise ValueError(f"nothing is promoted: {plan['task']} was given another model since, tune that one")
    try:
        check_checkpoints(folder, plan)
    except SettingsError as error:
        raise ValueError(f"nothing is promoted: {error}") from error
    evidence = {"result": result, "quality": row["quality"], "versions": result["versions"], "folder": str(folder)}
    profile, incumbent = (EngineProfile.model_validate(found) for found in (row["profile"], plan["incumbent"]))
    if as_asked and _read(folder, ASKED).get("profile") != digest(row["profile"]):
        raise ValueError(
            f"nothing is promoted: the choice is {row['candidate']} now, and the approver was asked about another: clear"
            " `approve` to ask again"
        )
    if not promotions.runs_as(settings, name, plan["device"], incumbent, profile):
        raise ValueError(
            f"nothing is promoted: another profile is in force on {plan['device']} since than the one that {row['candidate']}"
            " was compared with: tune again"
        )
    version = promotions.promote(settings, name, plan["device"], profile, evidence, approved_by)
    return f"{name} on {plan['device']}: {row['candidate']} is in force as {version}, {row['speedup']} times as fast"


def roll_back_task(settings: Settings, task: str, device: str | None = None) -> list[str]:
    """Takes the task's promotions back by one on the device, or on all that have one; a line for each.

    Raises ValueError where nothing is promoted, RuntimeError that names the devices done and the others where a write failed:
    to try all again would take the former back by two.
    """
    name = settings.task(task).engine
    devices = [device] if device else promotions.promoted_devices(settings, name)
    if not devices:
        raise ValueError(f"nothing is promoted for {name}: the configured profile is in force")
    done, failed = list[str](), dict[str, OSError]()
    for at in devices:
        try:
            done.append(
                f"{name} on {at}: {promotions.roll_back(settings, name, at) or 'the configured profile'} is in force"
            )
        except OSError as error:
            failed[at] = error
    if failed:
        left = "; ".join(f"{at}: {error}" for at, error in failed.items())
        raise RuntimeError(f"{'; '.join([*done, f'not rolled back: {left}'])}. Roll these back by name, one by one")
    return done
