"""The pass rate of a judged sample, corrected for the judge's errors, and the sample size that a decision needs.

One interval serves every case. For a true pass rate pi the judge says "pass" at the rate q(pi) = pi*Se + (1-pi)*(1-Sp)
(Rogan and Gladen 1978). All pi whose distance from the observed rate is within z standard errors *computed at pi* form the
interval: the score principle of Wilson (1927), solved in closed form as in Fieller (1954). The variance at pi is

    (1-f) q(1-q)/n_eff  +  kappa * [pi Se(1-Se) + (1-pi) Sp(1-Sp)]  +  pi^2 Var(Se) + (1-pi)^2 Var(Sp)

- sampling without replacement of listings, with Kish's (1965) effective size and the finite-population correction f;
- the judge's own errors, which a census does not remove; kappa is the chance that two listings share one judgement;
- calibration error, with the "+1, +2" counts of Lang and Reiczigel (2014) so that it is never zero.

With a perfect judge and a large population it is Wilson's interval.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import NormalDist

from include.records import JudgeScore, JudgeVerdict


@dataclass(frozen=True, slots=True)
class JudgeAccuracy:
    """How often the judge agrees with people: `sensitivity` on texts that people pass, `specificity` on those they fail.

    The counts are effective numbers of labelled pairs (clustered by document); infinite means known exactly.
    """

    sensitivity: float = 1.0
    specificity: float = 1.0
    passed_pairs: float = math.inf
    failed_pairs: float = math.inf

    @property
    def youden(self) -> float:
        """Sensitivity + specificity - 1: 0 for a judge that ignores the text, 1 for a perfect one."""
        return self.sensitivity + self.specificity - 1

    def shrunk(self) -> tuple[float, float, float, float]:
        """(Se', Sp', Var Se', Var Sp') with one success and one failure added (Lang and Reiczigel 2014)."""
        found: list[float] = []
        for rate, n in ((self.sensitivity, self.passed_pairs), (self.specificity, self.failed_pairs)):
            shrunk = rate if math.isinf(n) else (rate * n + 1) / (n + 2)
            found += [shrunk, 0.0 if math.isinf(n) else shrunk * (1 - shrunk) / (n + 2)]
        return found[0], found[2], found[1], found[3]


PERFECT_JUDGE = JudgeAccuracy()


@dataclass(frozen=True, slots=True)
class SampledRate:
    """The judge's weighted pass rate over the evaluable part of a sample, with what its variance needs."""

    rate: float
    effective_n: float
    fraction: float  # share of the population that was judged
    shared: float  # kappa: chance that two listings of the population carry one judgement
    evaluable: int  # listings


EVALUABLE = frozenset({JudgeVerdict.PASS, JudgeVerdict.FAIL})


def passes_verdict(score: JudgeScore) -> bool:
    """The judge's own verdict, without a threshold on its score."""
    return score.verdict is JudgeVerdict.PASS


def sampled_rate(
    scores: Iterable[JudgeScore], population: int, passes: Callable[[JudgeScore], bool] = passes_verdict
) -> SampledRate | None:
    """Weighted pass rate of the rows with verdict pass or fail; None when there is no such row.

    `population` is the number of listings that the sample was drawn from. Judge errors count as not judged (they lower
    the judged fraction); texts that cannot be evaluated leave the population as well.
    """
    weight = passed_weight = squares = error_weight = aside_weight = 0.0
    listings = 0
    by_text: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for score in scores:
        if score.verdict is JudgeVerdict.ERROR:
            error_weight += score.weight
        elif score.verdict is JudgeVerdict.NOT_EVALUABLE:
            aside_weight += score.weight
        else:
            each = score.weight / score.listings
            weight += score.weight
            squares += score.listings * each**2
            listings += score.listings
            by_text[score.text_id][0] += score.weight
            by_text[score.text_id][1] += score.listings * each**2
            if passes(score):
                passed_weight += score.weight
    if not listings:
        return None
    concerned = max(population * (1 - aside_weight / (weight + error_weight + aside_weight)), float(listings))
    pairs = weight**2 - squares
    coincident = sum(total**2 - own for total, own in by_text.values()) / pairs if pairs > 0 else 0.0
    return SampledRate(
        rate=passed_weight / weight,
        effective_n=weight**2 / squares,
        fraction=min(1.0, listings / concerned),
        shared=1 / concerned + (1 - 1 / concerned) * max(0.0, coincident),
        evaluable=listings,
    )


def corrected_rate(rate: float, judge: JudgeAccuracy) -> float:
    """Rogan and Gladen's (1978) estimate of the true pass rate, kept within [0, 1].

    Raises ZeroDivisionError for a judge whose Youden index is 0.
    """
    return min(1.0, max(0.0, (rate + judge.specificity - 1) / judge.youden))


def interval(
    sample: SampledRate, judge: JudgeAccuracy = PERFECT_JUDGE, confidence: float = 0.95
) -> tuple[float, float]:
    """Two-sided interval of the true pass rate; see the module's docstring. [0, 1] where the data bound nothing."""
    z2 = NormalDist().inv_cdf((1 + confidence) / 2) ** 2
    se, sp, var_se, var_sp = judge.shrunk()
    youden, spurious = se + sp - 1, 1 - sp
    design, shared = (1 - sample.fraction) / sample.effective_n, sample.shared
    error_se, error_sp = se * (1 - se), sp * (1 - sp)
    gap = sample.rate - spurious
    a = youden**2 + z2 * (design * youden**2 - var_se - var_sp)
    b = -2 * gap * youden - z2 * (design * youden * (1 - 2 * spurious) + shared * (error_se - error_sp) - 2 * var_sp)
    c = gap**2 - z2 * (design * spurious * (1 - spurious) + shared * error_sp + var_sp)
    if youden <= 0 or a <= 0:
        return 0.0, 1.0
    root = math.sqrt(max(0.0, b * b - 4 * a * c))
    return min(1.0, max(0.0, (-b - root) / (2 * a))), min(1.0, max(0.0, (-b + root) / (2 * a)))


def lower_bound(sample: SampledRate, judge: JudgeAccuracy, alpha: float) -> float:
    """One-sided lower bound: the true pass rate is below it at most `alpha` of the time."""
    return interval(sample, judge, 1 - 2 * alpha)[0]


@dataclass(frozen=True, slots=True)
class SampleSize:
    """How many listings to draw. `power` is what `size` gives; below the wanted power the night is underpowered."""

    needed: int | None  # None: no size is enough, because the population or the calibration is too small
    size: int
    power: float
    underpowered: bool


def decision_power(
    size: int, population: int, baseline: float, margin: float, alpha: float, judge: JudgeAccuracy
) -> float:
    """Chance that `size` listings show the pass rate to be above baseline - margin when it is the baseline itself."""
    from statsmodels.stats.power import normal_power_het

    floor = max(0.0, baseline - margin)
    se, sp, var_se, var_sp = judge.shrunk()
    fixed = floor**2 * var_se + (1 - floor) ** 2 * var_sp

    def variance(true_rate: float) -> float:
        q = true_rate * se + (1 - true_rate) * (1 - sp)
        errors = true_rate * se * (1 - se) + (1 - true_rate) * sp * (1 - sp)
        return (1 - size / population) * q * (1 - q) / size + errors / population + fixed

    null, alternative = variance(floor), variance(baseline)
    if alternative <= 0:
        return 1.0
    difference = (se + sp - 1) * (baseline - floor)
    if difference <= 0:
        return 0.0
    scale = math.sqrt(size)
    return float(
        normal_power_het(
            difference, size, alpha, scale * math.sqrt(null), scale * math.sqrt(alternative), alternative="larger"
        )
    )


def sample_size(
    population: int,
    *,
    baseline: float,
    margin: float,
    alpha: float,
    power: float,
    max_size: int,
    min_size: int = 1,
    judge: JudgeAccuracy = PERFECT_JUDGE,
) -> SampleSize:
    """The smallest sample whose one-sided test has `power` at the baseline, at least `min_size`, bounded by the population and `max_size`.

    Power by statsmodels' normal approximation with the variance of each hypothesis and the finite-population correction.
    """
    if population <= 0:
        return SampleSize(0, 0, 0.0, True)

    def reached(size: int) -> float:
        return decision_power(size, population, baseline, margin, alpha, judge)

    needed: int | None = None
    if reached(population) >= power:
        needed = 1 + bisect_left(range(1, population), power, key=reached)
    size = min(population, max_size, max(min_size, needed) if needed is not None else population)
    found = reached(size)
    return SampleSize(needed, size, found, found < power)
