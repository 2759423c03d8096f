"""The judge's part of the gate: is tonight's copy shown to be no worse than the baseline, less a margin?

Non-inferiority: a night passes when the one-sided lower bound (level alpha) of its pass rate lies above baseline -
margin. So a night whose true rate is baseline - margin passes with probability alpha (a *false pass*), and a night at the
baseline itself fails with probability 1 - power (a *false alarm*) when the sample has the size that was asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from include.judging.calibration import Calibration, accuracy_of, passes_by
from include.judging.estimation import SampledRate, corrected_rate, interval, lower_bound, sampled_rate
from include.records import JudgeScore
from include.settings import GateSettings


@dataclass(frozen=True, slots=True)
class JudgeDecision:
    """`shown`: the lower bound lies above the floor. Rates are None when no text could be evaluated."""

    shown: bool
    floor: float
    raw: SampledRate | None
    pass_rate: float | None = None
    ci95: tuple[float, float] | None = None
    raw_ci95: tuple[float, float] | None = None
    lower: float | None = None


def judge_decision(
    scores: Sequence[JudgeScore], population: int, gate: GateSettings, calibration: Calibration | None = None
) -> JudgeDecision:
    """Decides one night from its judged rows; without a calibration the judge is taken at its word."""
    floor = gate.baseline - gate.margin
    raw = sampled_rate(scores, population, passes_by(calibration))
    if raw is None:
        return JudgeDecision(False, floor, None)
    judge = accuracy_of(calibration)
    lower = lower_bound(raw, judge, gate.alpha)
    return JudgeDecision(
        shown=lower > floor,
        floor=floor,
        raw=raw,
        pass_rate=corrected_rate(raw.rate, judge) if judge.youden > 0 else None,
        ci95=interval(raw, judge),
        raw_ci95=interval(raw),
        lower=lower,
    )
