"""The statistics as a whole, by small simulations of the benchmarks' kind: fixed seeds, row-level records."""

from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks import calibration as coverage
from benchmarks import gate as nights
from include.judging.drift import Detector, log_evidence
from include.judging.estimation import JudgeAccuracy, SampledRate
from include.judging.labels import LabelledPair
from include.settings import GateSettings


@pytest.fixture(scope="module")
def simulated():
    """60 nights at the floor and 60 at the baseline."""
    gate = nights.GATE
    bad = [nights.night(gate.baseline - gate.margin, seed) for seed in range(60)]
    return bad, [nights.night(gate.baseline, 1000 + seed) for seed in range(60)]


def test_the_gate_keeps_its_error_rates(simulated):
    """At most 7 false passes (binomial, 5% of 60: 99% of the time) and 18 false alarms (20% of 60)."""
    bad, fine = simulated
    assert sum(night.corrected_passes for night in bad) <= 7
    assert sum(not night.corrected_passes for night in fine) <= 18
    assert np.mean([night.covered for night in bad + fine]) >= 0.9


def test_a_gate_that_takes_the_judge_at_its_word_raises_false_alarms(simulated):
    _, fine = simulated
    plain = sum(not night.plain_passes for night in fine)
    assert plain > 0.23 * 60
    assert plain > 1.5 * sum(not night.corrected_passes for night in fine)


def test_a_simulated_night_has_the_wanted_pass_rate_and_shared_texts():
    strata, texts, good = nights.catalogue(0.8, np.random.default_rng(3))
    assert good[texts].mean() == 0.8
    assert len(set(texts)) < 0.8 * len(texts)
    assert len(set(strata.tolist())) > 20


def test_the_corrected_interval_covers_the_human_rate_and_the_raw_one_does_not():
    """400 replications on 30 documents of 25 pairs, documents of unlike quality: coverage 95% within Monte Carlo error."""
    random = np.random.default_rng(6)
    quality = random.beta(3, 2, 30)
    pairs = [
        LabelledPair(
            id=f"{document}/{number}",
            document=str(document),
            source={},
            output="x",
            passed=bool(random.random() < quality[document]),
        )
        for document in range(30)
        for number in range(25)
    ]
    found = [coverage.replication(pairs, seed) for seed in range(400)]
    assert 0.92 <= np.mean([one.covered for one in found]) <= 0.98
    assert np.mean([one.raw_covered for one in found]) < 0.8
    assert abs(np.mean([one.error for one in found])) < 0.02


def test_the_drift_alarm_allows_for_the_calibrations_error():
    """300 series of 100 nights at the baseline, each with its own calibration: at most 10% raise any alarm."""
    gate = GateSettings(baseline=0.9, margin=0.1, min_validator_pass_rate=0.5, drift_horizon=100, drift_false_alarm=0.1)
    random, size, se, sp = np.random.default_rng(12), 150, 0.93, 0.85
    observed = gate.baseline * se + (1 - gate.baseline) * (1 - sp)
    alarms = 0
    for _ in range(300):
        judge = JudgeAccuracy(random.binomial(300, se) / 300, random.binomial(150, sp) / 150, 300, 150)
        measured = SimpleNamespace(accuracy=judge)
        evidence = {
            passed: log_evidence(SampledRate(passed / size, size, 0.01, 1e-6, size), gate, measured)
            for passed in range(95, size + 1)
        }
        detector = Detector()
        for passed in random.binomial(size, observed, 100).tolist():
            detector = detector.after(evidence[passed])
            if detector.alarm(gate):
                alarms += 1
                break
    assert alarms / 300 <= 0.1
