"""The sequential alarm for slow drift: many nights that each pass, but together lie below the baseline.

Each night gives an e-value, the likelihood ratio of its judged sample between "lower than the baseline by delta" and "at
the baseline", for several sizes of drift delta. The detector multiplies them up from every night on at which drift may
have begun and sums over those beginnings (Shiryaev and Roberts; e-detectors of Shin, Ramdas and Rinaldo 2023).

While the rate is at the baseline or above, the sum minus the number of nights is a supermartingale; by Doob's inequality
the chance of any alarm within `horizon` nights is at most a with the threshold horizon / a.

What is expected at the baseline is known only up to the calibration's error, which all nights share; the alarm therefore
compares with the lower end of that expectation, so that an unlucky calibration does not raise it. `drift_false_alarm` is
spent half on that bound and half on the nights (Bonferroni).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

from include.judging.calibration import Calibration, accuracy_of, judging_state
from include.judging.estimation import SampledRate
from include.judging.plots import nights_plot
from include.runs import Run
from include.settings import GateSettings, digest

log = logging.getLogger(__name__)

DRIFT_SHARES = (0.25, 0.5, 1.0)  # of the gate's margin
MAX_NIGHTS = 365
_EDGE = 1e-3


def log_evidence(raw: SampledRate, gate: GateSettings, calibration: Calibration | None) -> list[float]:
    """One night's log e-value for each size of drift.

    The sample's log likelihood ratio is scaled to its effective size (weights and shared texts); a power below 1 of an
    e-value is an e-value (Jensen).
    """
    se, sp, var_se, var_sp = accuracy_of(calibration).shrunk()
    error = math.sqrt(gate.baseline**2 * var_se + (1 - gate.baseline) ** 2 * var_sp)
    allowed = NormalDist().inv_cdf(1 - gate.drift_false_alarm / 2) * error
    expected = gate.baseline * se + (1 - gate.baseline) * (1 - sp) - allowed
    expected = min(1 - _EDGE, max(2 * _EDGE, expected))
    size = 1 / max(1 / raw.effective_n, raw.shared)
    found = []
    for share in DRIFT_SHARES:
        lower = max(_EDGE, expected - share * gate.margin * max(0.0, se + sp - 1))
        passed, failed = math.log(lower / expected), math.log((1 - lower) / (1 - expected))
        found.append(size * (raw.rate * passed + (1 - raw.rate) * failed))
    return found


@dataclass(frozen=True, slots=True)
class Detector:
    """After some nights: the summed evidence of all nights at which drift may have begun, by size of drift."""

    nights: int = 0
    evidence: tuple[float, ...] = (0.0,) * len(DRIFT_SHARES)

    def after(self, night: Sequence[float]) -> Detector:
        """One more night with these log e-values."""
        grown = [(sum_ + 1) * math.exp(min(log, 300.0)) for sum_, log in zip(self.evidence, night, strict=True)]
        return Detector(self.nights + 1, tuple(min(value, 1e100) for value in grown))

    def alarm(self, gate: GateSettings) -> bool:
        return sum(self.evidence) / len(self.evidence) >= gate.drift_horizon / (gate.drift_false_alarm / 2)


def detect(nights: Iterable[Sequence[float]]) -> Detector:
    found = Detector()
    for night in nights:
        found = found.after(night)
    return found


def record_night(run: Run, task: str, night: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Writes one night under the state URL (again for a re-run of its date) and returns all nights in date order."""
    store = judging_state(run.spec.settings)
    folder = f"nights/{task}"
    store.write_json(f"{folder}/{run.spec.partition_date}.json", dict(night))
    return [store.read_json(path) for path in store.list(folder, ".json")[-MAX_NIGHTS:]]


def watch(
    run: Run, task: str, manifest: Mapping[str, Any], raw: SampledRate, calibration: Calibration | None
) -> dict[str, Any]:
    """Adds tonight to the nights under the state URL, draws their plot, and says whether they drift together.

    An alarm warns; it does not block tonight's copy, which has been shown to be good enough by itself. Evidence starts
    anew when the model, the routing, the prompt, the baseline or the calibration changes.
    """
    settings = run.spec.settings
    enhancement = settings.task(task)
    of_series = [
        settings.engines[enhancement.engine].lineage,
        enhancement.template_version,
        [enhancement.gate.baseline, enhancement.gate.margin],
        calibration.version if calibration else enhancement.gate.mode,
    ]
    if enhancement.routing:
        of_series.append([settings.engines[enhancement.routing.hosted].lineage, enhancement.routing.share])
    series = digest(of_series)
    night = {
        "date": str(run.spec.partition_date),
        "series": series,
        **{name: manifest[name] for name in ("status", "pass_rate", "ci95")},
        "evidence": log_evidence(raw, enhancement.gate, calibration),
    }
    nights = record_night(run, task, night)
    same = [n for n in nights if n["series"] == series and n["date"] <= night["date"]]
    detector = detect(n["evidence"] for n in same)
    alarm = detector.alarm(enhancement.gate)
    if alarm:
        nights = record_night(run, task, night | {"alarm": True})
    plot = f"nights-{task}.png"
    try:
        run.store.write_bytes(plot, nights_plot(nights, enhancement.gate.baseline, enhancement.gate.margin, task))
    except Exception as error:  # a picture must not cost a night
        log.warning("no plot of the nights: %s", error)
    return {
        "alarm": alarm,
        "nights": detector.nights,
        "reason": f"over {detector.nights} nights the pass rate lies below the baseline, although each night may have "
        "passed: look at the newest model, prompt and listings"
        if alarm
        else "",
        "plot": run.store.path(plot),
    }
