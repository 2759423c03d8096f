"""Pass rates of the same listings on two sides: the interval of their difference, and when it shows that one is no worse."""

from __future__ import annotations

import re

import numpy as np
import pytest

from include.judging.estimation import JudgeAccuracy
from include.judging.pairing import compared, paired_difference, pairs_needed
from tests.tuned_runs import TUNING


def test_the_paired_interval_is_agresti_and_mins() -> None:
    """794 say yes twice, 150 yes then no, 86 no then yes, 570 no twice: the prime minister's example, by hand.

    (86.5 - 150.5)/1602 = -0.03995; its standard error sqrt(237 - 64^2/1602)/1602 = 0.009558; times 1.95996.
    """
    assert paired_difference(86, 150, 1600) == pytest.approx((-0.05868, -0.02122), abs=1e-5)
    assert paired_difference(0, 0, 0)[0] < -0.9


def test_a_judge_that_errs_stretches_the_interval() -> None:
    plain = paired_difference(86, 150, 1600)
    known = paired_difference(86, 150, 1600, JudgeAccuracy(0.9, 0.7))  # Youden index 0.6
    assert known == pytest.approx([bound / 0.6 for bound in plain])
    measured = paired_difference(86, 150, 1600, JudgeAccuracy(0.9, 0.7, 50, 50))
    assert measured[0] < known[0]
    assert measured[1] > known[1]
    assert paired_difference(86, 150, 1600, JudgeAccuracy(0.4, 0.5)) == (-1.0, 1.0)


@pytest.mark.parametrize(("gained", "lost"), [(0.05, 0.08), (0.02, 0.02), (0.01, 0.10), (0.2, 0.25)])
def test_the_interval_covers_the_truth_as_often_as_it_says(gained: float, lost: float) -> None:
    draws = np.random.default_rng(5).multinomial(150, [gained, lost, 1 - gained - lost], size=4000)
    bounds = [paired_difference(int(g), int(b), 150) for g, b, _ in draws]
    covered = np.mean([low <= gained - lost <= high for low, high in bounds])
    assert 0.94 < covered < 0.985


def test_too_few_pairs_are_refused_with_the_number_that_is_needed() -> None:
    passed = {str(n): n % 6 != 0 for n in range(60)}
    other = {str(n): n % 6 != 1 for n in range(60)}  # as good, on other listings: ten gained, ten lost
    found = compared("x", other, passed, TUNING)
    assert not found["holds"]
    needed = int(re.search(r"x: too few pairs, 60 of about (\d+) needed", found["why"])[1])  # type: ignore[index]
    assert needed > 60
    lows = [paired_difference(10 / 60 * n, 10 / 60 * n, n)[0] for n in (needed - 1, needed)]
    assert lows[0] <= -0.1 < lows[1]
    tenfold = ({f"{key}/{n}": ok for key, ok in side.items() for n in range(10)} for side in (other, passed))
    assert compared("x", *tenfold, TUNING)["holds"]
    assert compared("x", {}, passed, TUNING)["why"].startswith("x: too few pairs, 0 of")
    assert pairs_needed(0, 1, 10, TUNING) == 0  # a fall of ten points: no number shows that it stays below ten
    coarse = JudgeAccuracy(0.9, 0.9, 8, 8)  # so few labels that a fall seen may be any
    assert pairs_needed(100, 105, 600, TUNING) > 600
    assert (
        pairs_needed(100, 130, 600, TUNING, coarse) == 0 < pairs_needed(100, 130, 600, TUNING, JudgeAccuracy(0.9, 0.9))
    )
    assert pairs_needed(0, 0, 0, TUNING, JudgeAccuracy(0.5, 0.5)) == 0
    worse = compared("x", dict.fromkeys(passed, False), passed, TUNING)
    assert worse["why"].startswith("x may fall by 9")
