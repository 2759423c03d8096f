"""The corrected interval against known formulas and by simulation."""

import math

import numpy as np
import pytest
from statsmodels.stats.power import normal_sample_size_one_tail
from statsmodels.stats.proportion import proportion_confint

from include.judging.estimation import (
    PERFECT_JUDGE,
    JudgeAccuracy,
    SampledRate,
    corrected_rate,
    decision_power,
    interval,
    lower_bound,
    sample_size,
    sampled_rate,
)
from include.records import JudgeScore, JudgeVerdict

PASS, FAIL = JudgeVerdict.PASS, JudgeVerdict.FAIL
HUGE = 10**9


def row(text, verdict, weight=1.0, listings=1):
    return JudgeScore(text_id=text, stratum="s", weight=weight, listings=listings, verdict=verdict)


def rows(passed, failed, weight=1.0):
    return [row(f"p{i}", PASS, weight) for i in range(passed)] + [row(f"f{i}", FAIL, weight) for i in range(failed)]


def test_a_perfect_judge_on_a_large_population_gives_wilsons_interval():
    found = interval(sampled_rate(rows(45, 15, HUGE / 60), HUGE))
    assert found == pytest.approx(proportion_confint(45, 60, method="wilson"), abs=1e-6)


def test_a_census_by_a_perfect_judge_leaves_nothing_open():
    assert interval(sampled_rate(rows(45, 15), 60)) == pytest.approx((0.75, 0.75))


def test_a_census_by_an_imperfect_judge_still_carries_its_errors():
    judge = JudgeAccuracy(0.9, 0.8, 1e9, 1e9)
    low, high = interval(sampled_rate(rows(45, 15), 60), judge)
    assert high - low > 0.2


def test_weights_count_listings():
    found = sampled_rate([row("a", PASS, 9.0, 3), row("b", FAIL, 1.0, 1)], 10)
    assert found.rate == pytest.approx(0.9)
    assert found.evaluable == 4


def test_errors_leave_the_denominator_and_widen_the_interval():
    clean, with_errors = rows(40, 10), [*rows(40, 10)[5:], *(row(f"e{i}", JudgeVerdict.ERROR) for i in range(5))]
    assert sampled_rate(with_errors, 50).rate == pytest.approx(35 / 45)
    assert sampled_rate(with_errors, 50).fraction == pytest.approx(0.9), "unread texts are not a census"
    assert sampled_rate(clean, 50).fraction == 1.0


def test_not_evaluable_texts_leave_the_population():
    aside = [row(f"n{i}", JudgeVerdict.NOT_EVALUABLE) for i in range(10)]
    assert sampled_rate(rows(40, 10) + aside, 60).fraction == pytest.approx(1.0)


def test_nothing_evaluable_gives_no_rate():
    assert sampled_rate([row("a", JudgeVerdict.ERROR)], 5) is None
    assert sampled_rate([], 5) is None


def test_rogan_gladen_by_hand():
    assert corrected_rate(0.75, JudgeAccuracy(0.9, 0.8, 1, 1)) == pytest.approx((0.75 - 0.2) / 0.7)
    assert corrected_rate(0.1, JudgeAccuracy(0.9, 0.8, 1, 1)) == 0.0


def test_a_judge_that_ignores_the_text_bounds_nothing():
    sample = sampled_rate(rows(30, 30, 100.0), 6000)
    assert interval(sample, JudgeAccuracy(0.5, 0.5, 100, 100)) == (0.0, 1.0)
    assert interval(sample, JudgeAccuracy(0.4, 0.5, 100, 100)) == (0.0, 1.0)


def test_calibration_error_is_carried():
    sample = sampled_rate(rows(150, 50, 100.0), 20_000)
    widths = []
    for pairs in (50, 200, 1e9):
        low, high = interval(sample, JudgeAccuracy(0.9, 0.8, pairs, pairs))
        widths.append(high - low)
    assert widths[0] > widths[1] > widths[2]


def test_bounds_are_nested_and_hold_the_estimate():
    sample = SampledRate(0.8, 120.0, 0.1, 0.001, 120)
    judge = JudgeAccuracy(0.9, 0.85, 150, 90)
    low, high = interval(sample, judge)
    assert low < corrected_rate(0.8, judge) < high
    assert low < lower_bound(sample, judge, 0.05) < corrected_rate(0.8, judge)


@pytest.mark.parametrize("duplicates", [1, 8])
def test_coverage_with_sampling_judging_and_calibration_error(duplicates):
    """600 replications of 95% intervals: between 93% and 97.5% hold the truth, and both tails are used."""
    random = np.random.default_rng(5)
    texts, size, rate, se, sp = 800 // duplicates, 250, 0.8, 0.88, 0.75
    below = above = 0
    for _ in range(600):
        good = np.arange(texts) < rate * texts
        said = np.where(good, random.random(texts) < se, random.random(texts) >= sp)
        drawn = random.permutation(np.repeat(np.arange(texts), duplicates))[:size]
        found, counts = np.unique(drawn, return_counts=True)
        each = texts * duplicates / size
        judged = [row(str(t), PASS if said[t] else FAIL, each * c, int(c)) for t, c in zip(found, counts, strict=True)]
        judge = JudgeAccuracy(random.binomial(400, se) / 400, random.binomial(200, sp) / 200, 400, 200)
        low, high = interval(sampled_rate(judged, texts * duplicates), judge)
        below, above = below + (good.mean() < low), above + (good.mean() > high)
    assert 0.025 <= (below + above) / 600 <= 0.07
    assert min(below, above) > 3


def size_of(population=HUGE, **values):
    defaults = {"baseline": 0.9, "margin": 0.1, "alpha": 0.05, "power": 0.8, "max_size": HUGE}
    return sample_size(population, **(defaults | values))


def test_size_is_statsmodels_for_an_unlimited_population():
    expected = normal_sample_size_one_tail(0.1, 0.8, 0.05, math.sqrt(0.8 * 0.2), math.sqrt(0.9 * 0.1))
    assert size_of().needed == math.ceil(expected)


def test_a_smaller_population_needs_fewer_and_a_worse_judge_needs_more():
    judge = JudgeAccuracy(0.9, 0.8, 2000, 1000)
    assert size_of(300).needed < size_of().needed < size_of(judge=judge).needed


def test_a_calibration_too_small_for_any_sample_is_underpowered():
    found = size_of(10_000, judge=JudgeAccuracy(0.9, 0.8, 60, 10), margin=0.05)
    assert found.needed is None
    assert found.underpowered
    assert found.size == 10_000


def test_bounds_of_the_size():
    assert size_of(20, margin=0.01).size == 20, "the needed size exceeds the population: all are judged"
    assert size_of(min_size=150).size == 150
    capped = size_of(max_size=20)
    assert (capped.size, capped.underpowered) == (20, True)
    assert size_of(0).underpowered


def test_power_is_what_the_decision_really_has():
    """Decided 3,000 times at the baseline, the share of passes is the computed power within 3 points."""
    random, size, population = np.random.default_rng(2), 150, 100_000
    wanted = decision_power(size, population, 0.9, 0.1, 0.05, PERFECT_JUDGE)
    passes = 0
    for passed in random.binomial(size, 0.9, 3000):
        sample = SampledRate(passed / size, size, size / population, 1 / population, size)
        passes += lower_bound(sample, PERFECT_JUDGE, 0.05) > 0.8
    assert passes / 3000 == pytest.approx(wanted, abs=0.03)
