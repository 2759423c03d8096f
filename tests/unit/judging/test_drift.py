"""The alarm for slow drift over nights."""

import numpy as np
import pytest

from include.judging.drift import Detector, detect, log_evidence
from include.judging.estimation import JudgeAccuracy, SampledRate
from include.settings import GateSettings

GATE = GateSettings(baseline=0.9, margin=0.1, min_validator_pass_rate=0.5, drift_horizon=100, drift_false_alarm=0.1)
SIZE = 120


def night(passed, size=SIZE):
    return SampledRate(passed / size, float(size), 0.01, 1e-6, size)


EVIDENCE = {passed: log_evidence(night(passed), GATE, None) for passed in range(SIZE + 1)}


def alarms(rates, random):
    """The first night with an alarm, or None."""
    detector = Detector()
    for passed in random.binomial(SIZE, rates):
        detector = detector.after(EVIDENCE[int(passed)])
        if detector.alarm(GATE):
            return detector.nights
    return None


def test_false_alarms_stay_below_the_configured_rate():
    """400 series of 100 nights at the baseline: at most 10% may raise any alarm."""
    random = np.random.default_rng(1)
    false = sum(alarms([0.9] * 100, random) is not None for _ in range(400))
    assert false / 400 <= 0.1


@pytest.mark.parametrize(("rate", "within"), [(0.86, 60), (0.82, 20)])
def test_drift_that_each_night_would_pass_is_found(rate, within):
    random = np.random.default_rng(2)
    found = [alarms([0.9] * 20 + [rate] * within, random) for _ in range(40)]
    late = [n for n in found if n is not None and n > 20]
    assert len(late) >= 34


def test_better_nights_never_alarm():
    assert not detect([log_evidence(night(SIZE), GATE, None)] * 300).alarm(GATE)


def test_an_unlucky_calibration_is_allowed_for(monkeypatch):
    """A judge that looks better in calibration than it is depresses every night; the shared error must not alarm."""

    class Measured:
        accuracy = JudgeAccuracy(0.95, 0.9, 150, 100)

    observed = 0.9 * 0.93 + 0.1 * 0.12  # its true sensitivity is 0.93, specificity 0.88
    nights = [log_evidence(night(round(SIZE * observed)), GATE, Measured)] * 30
    assert not detect(nights).alarm(GATE)
