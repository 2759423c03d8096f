"""A judge's calibration: what it is, where it is kept, and when it may not be used.

Calibrations lie under the state URL as `judging/calibrations/<version>.json`; `judging/current-<task>.json` (or
`current-all.json`) names the one in force and is replaced atomically.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from include.judging.estimation import PERFECT_JUDGE, JudgeAccuracy, passes_verdict
from include.judging.rubric import rubric_version
from include.partitions import Store
from include.records import JudgeScore
from include.settings import Settings, SettingsError, Share, resolve_path

ALL_TASKS = "all"


class Calibration(BaseModel):
    """The measured agreement of one judge with people. Pass is the positive class throughout.

    `passed_pairs` and `failed_pairs` are effective counts, smaller than the labelled pairs where documents repeat.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: str
    created_at: datetime
    judge_model: str  # lineage of the judge's engine profile
    rubric: str
    labels: str  # hash of the labelled pairs
    threshold: float = 0.0  # a text passes if no claim is wrong and its score reaches this
    sensitivity: Share
    specificity: Share
    passed_pairs: float = Field(ge=0)
    failed_pairs: float = Field(ge=0)
    kappa: float
    report: dict[str, Any] = {}  # intervals, error kinds, locales, flips, length bias; for people

    @property
    def accuracy(self) -> JudgeAccuracy:
        return JudgeAccuracy(self.sensitivity, self.specificity, self.passed_pairs, self.failed_pairs)

    def passes(self, score: JudgeScore) -> bool:
        """The calibrated verdict of one text. A row without a score is decided by its claims alone."""
        return passes_verdict(score) and (score.score is None or score.score >= self.threshold)


def judging_state(settings: Settings) -> Store:
    """What the judge keeps from night to night, under the state URL: calibrations, labels and the nights' figures."""
    return Store(resolve_path(settings.pipeline.state_url)).child("judging")


def store_calibration(settings: Settings, calibration: Calibration, task: str = ALL_TASKS) -> str:
    """Stores a calibration under the state URL and makes it the current one of `task`; returns its path."""
    store, path = judging_state(settings), f"calibrations/{calibration.version}.json"
    store.write_bytes(path, calibration.model_dump_json(indent=2).encode())
    store.write_json(f"current-{task}.json", {"version": calibration.version})
    return store.path(path)


def current_calibration(settings: Settings, task: str) -> Calibration | None:
    """The calibration in force for `task`: its own, the one for all tasks, or the configured default file."""
    store = judging_state(settings)
    for name in (task, ALL_TASKS):
        if current := store.read_json(f"current-{name}.json"):
            path = f"calibrations/{current['version']}.json"
            return _read(store.path(path), store.fs.cat_file(store.path(path))) if store.exists(path) else None
    default = settings.judge.calibration
    if default is None or not Path(resolve_path(default)).is_file():
        return None
    return _read(resolve_path(default), Path(resolve_path(default)).read_bytes())


def _read(path: str, content: bytes) -> Calibration:
    try:
        return Calibration.model_validate_json(content)
    except ValueError as error:
        mend = "make it anew with `python -m include.judging calibrate --store`"
        raise SettingsError(f"{path} is not a calibration: {mend} ({error})") from error


def refusals(calibration: Calibration | None, settings: Settings, now: datetime | None = None) -> list[str]:
    """Why this calibration may not gate; empty when it may."""
    judge = settings.judge
    if calibration is None:
        return ["the judge has no calibration: run `python -m include.judging calibrate`, or set gate.override"]
    found = []
    lineage = settings.engines[judge.engine].lineage
    if calibration.judge_model != lineage:
        found.append(f"the calibration is for judge {calibration.judge_model!r}, this run's judge is {lineage!r}")
    if calibration.rubric != (rubric := rubric_version(judge)):
        found.append(f"the calibration is for rubric {calibration.rubric}, this run's rubric is {rubric}")
    age = ((now or datetime.now(UTC)) - calibration.created_at).days
    if age > judge.max_calibration_age_days:
        found.append(f"the calibration is {age} days old; the limit is {judge.max_calibration_age_days}")
    return found + weaknesses(calibration.kappa, calibration.accuracy.youden, settings)


def weaknesses(kappa: float, youden: float, settings: Settings) -> list[str]:
    """Why a judge of this agreement is too weak to gate. NaN (one label only) is weak."""
    judge = settings.judge
    return [
        f"the judge is too weak: {name} {value:.3f} is below {limit}"
        for name, value, limit in (("kappa", kappa, judge.min_kappa), ("Youden index", youden, judge.min_youden))
        if math.isnan(value) or value < limit
    ]


def calibration_in_force(settings: Settings, task: str) -> tuple[Calibration | None, list[str]]:
    """The calibration that the gate corrects with, and why it has none although it should.

    None means that the judge is taken at its word: in demo mode, and where the calibration is refused.
    """
    if settings.task(task).gate.mode == "demo":
        return None, []
    found = current_calibration(settings, task)
    refused = refusals(found, settings)
    return (None if refused else found), refused


def accuracy_of(calibration: Calibration | None) -> JudgeAccuracy:
    return calibration.accuracy if calibration else PERFECT_JUDGE


def passes_by(calibration: Calibration | None) -> Callable[[JudgeScore], bool]:
    """Decides one judged text: by the calibrated threshold, or by the judge's own verdict."""
    return calibration.passes if calibration else passes_verdict
