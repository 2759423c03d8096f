"""The Python tasks of `tune_task_model` and `roll_back_profile`; engines run as children through GPUTaskOperator."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import get_current_context
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

if TYPE_CHECKING:
    from airflow.sdk import Context

log = logging.getLogger(__name__)

DOC = """
### Tune a task model's engine

Measures which engine settings answer the prompts of recent nights fastest on this GPU, compares the finalists' copy with the
incumbent's on held-out listings, and, once a person approves (*Required Actions* in the UI), puts the fastest finalist
whose quality holds in force. Nothing changes for a listing: no promotion makes one stale.

- **run_dirs**: finished runs whose prompts count; empty: the newest ones.
- **config**: laid over `tuning.yaml`, such as `{"repeats": 5}`.
- **auto_approve**: promote without asking.

A refusal skips the last tasks; the log of `report` says why. Retry or clear anything: what was measured is kept. To undo a
promotion, trigger `roll_back_profile`.
"""
ROLL_BACK_DOC = """
### Put the former engine profile back

Trigger it with the enhancement task: what stood before the last promotion is in force from the next bin on, in the end the
configured profile. Safe at any time; the log says what is in force now.
"""


def prepare() -> dict[str, Any]:
    """Writes this run's tuning settings; returns its folder and the arguments of the next steps."""
    from include.settings import PROJECT_ROOT, SettingsError, load_settings
    from include.tuning.plan import load_tuning
    from include.tuning.workload import newest_runs

    context = get_current_context()
    params = context["params"]
    task, folder = params["task"], PROJECT_ROOT / "build" / "tuning" / re.sub(r"[^A-Za-z0-9_-]", "_", context["run_id"])
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "tuning.yaml"
    try:
        run_dirs = params["run_dirs"] or newest_runs(load_settings(), task)
        config.write_text(json.dumps(load_tuning().model_dump(mode="json") | params["config"]), encoding="utf-8")
        load_tuning(config)
    except SettingsError as error:
        raise AirflowFailException(str(error)) from error
    if not run_dirs:
        raise AirflowFailException(f"no finished run of {task} to take prompts from: name some in run_dirs")
    common = ["--dir", str(folder), *(part for run_dir in run_dirs for part in ("--run-dir", run_dir))]
    return {
        "folder": str(folder),
        "run": ["include.tuning", "run", "--task", task, "--config", str(config), *common],
        "quality": ["include.tuning", "quality", *common],
    }


def report(folder: str) -> str:
    """Writes report.html and returns its path; the log says what may be promoted, or why nothing is."""
    from include.tuning.report import write_report

    path = write_report(Path(folder))
    try:
        log.info("%s", proposal(folder))
    except ValueError as refusal:
        log.warning("%s", refusal)
    return str(path)


def proposal(folder: str) -> str:
    """What is put to the approver. Raises ValueError that says why nothing may be promoted."""
    from include.tuning.promotion import choose

    row = choose(Path(folder))
    found, bounds = row["quality"], row["speedup_ci95"]
    low, high = (100 * bound for bound in found["difference_ci95"])
    return (
        f"Put {row['candidate']} in force: {row['speedup']} times as fast as the profile in force (95%: {bounds[0]} to "
        f"{bounds[1]}). Judge pass rate "
        f"{found['pass_rate']:.1%} against {found['incumbent_pass_rate']:.1%}, difference {low:+.1f} to {high:+.1f} points "
        f"over {found['pairs']} listings; no validator's rate falls beyond the margin. Report: {folder}/report.html"
        + "".join(f" Passed over: {why}." for why in row["passed_over"])
    )


class ApprovePromotion(ApprovalOperator):
    """Asks a person whether the chosen finalist goes in force; skipped with `auto_approve`, and where there is none.

    :param folder: folder of the tuning run; templated. The figures are read when the task runs, never from XCom.
    """

    template_fields = (*ApprovalOperator.template_fields, "folder")

    def __init__(self, *, folder: str, **kwargs: Any) -> None:
        super().__init__(subject="Promote a tuned engine profile?", defaults=self.REJECT, **kwargs)
        self.folder = folder

    def execute(self, context: Context) -> Any:
        from include.tuning.promotion import note_question

        try:
            self.body = proposal(self.folder)
        except ValueError as refusal:
            raise AirflowSkipException(str(refusal)) from refusal
        if context["params"]["auto_approve"]:
            raise AirflowSkipException("approved in advance by auto_approve")
        note_question(Path(self.folder))
        return super().execute(context)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> str:
        answer = super().execute_complete(context, event)
        return str((answer["responded_by_user"] or {}).get("id", "unknown"))


def promote(folder: str, approved_by: str | None) -> str:
    """Puts the chosen finalist in force; skipped where there is none, or where nobody has approved it."""
    from include.settings import load_settings
    from include.tuning.promotion import promote_best

    if approved_by is None and not get_current_context()["params"]["auto_approve"]:
        raise AirflowSkipException("nobody has approved it")
    try:
        return promote_best(
            Path(folder), load_settings(), approved_by or "auto_approve", as_asked=approved_by is not None
        )
    except ValueError as refusal:
        raise AirflowSkipException(str(refusal)) from refusal


def roll_back() -> list[str]:
    """Takes the task's promotion back on every device; returns what is in force now."""
    from include.settings import load_settings
    from include.tuning.promotion import roll_back_task

    params = get_current_context()["params"]
    try:
        told = roll_back_task(load_settings(), params["task"], params["device"])
    except (ValueError, RuntimeError) as error:
        raise AirflowFailException(str(error)) from error
    log.info("%s", "\n".join(told))
    return told
