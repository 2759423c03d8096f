"""What the judging benchmarks share: simulated calibrations and judge answers, and writing a result."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from include.judging.agreement import Comparison, measured_accuracy
from include.judging.calibration import Calibration
from include.records import JudgeScore, JudgeVerdict

Flags = npt.NDArray[np.bool_]


def said_by_judge(
    truth: Flags, sensitivity: float, specificity: float, random: np.random.Generator, spread: Any = 0.0
) -> Flags:
    """A judge's word on each text: right with its sensitivity or specificity, give or take `spread`."""
    right = np.where(truth, sensitivity, specificity) + spread
    return np.where(random.random(len(truth)) < right, truth, ~truth)


def calibrated_on(rows: Sequence[Comparison]) -> Calibration:
    """The calibration that these labelled pairs give a judge without a threshold."""
    judge = measured_accuracy(rows)
    return Calibration(
        version="simulated",
        created_at=datetime.now(UTC),
        judge_model="simulated",
        rubric="simulated",
        labels="simulated",
        sensitivity=judge.sensitivity,
        specificity=judge.specificity,
        passed_pairs=judge.passed_pairs,
        failed_pairs=judge.failed_pairs,
        kappa=0.0,
    )


def answer(text_id: str, passed: bool, *, stratum: str = "", weight: float = 1.0, listings: int = 1) -> JudgeScore:
    verdict = JudgeVerdict.PASS if passed else JudgeVerdict.FAIL
    return JudgeScore(text_id=text_id, stratum=stratum, weight=weight, listings=listings, verdict=verdict)


def write_result(result: Mapping[str, Any], out: Path) -> None:
    """Writes a benchmark's result as JSON, creating its folder, and prints it."""
    text = json.dumps(result, indent=2)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text + "\n", encoding="utf-8")
    print(text)
    print(f"written to {out}")
