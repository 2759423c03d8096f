"""How well a judge agrees with people: rates with intervals that respect documents and weights.

Pass is the positive class: sensitivity = share of the texts that people pass which the judge passes; specificity = share
of those that people fail which the judge fails.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from include.judging.estimation import JudgeAccuracy

BOOTSTRAP_REPLICATIONS = 1000
MANY_DOCUMENTS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One pair judged by both: a person and the judge."""

    document: str
    human: bool
    judge: bool
    weight: float = 1.0
    length: int = 0
    locale: str = ""
    origin: str = ""
    error_type: str = ""
    score: float | None = None


def clustered_rate(rows: Sequence[Comparison], hit: Callable[[Comparison], bool]) -> tuple[float, float]:
    """Weighted share of hits and its effective count of independent rows.

    The variance is the linearised one for a ratio of cluster totals (Cochran 1977, chapter 11), with documents as
    clusters; the effective count is p(1-p)/variance. With few documents that estimate is shaky, and it is held to Kish's
    (1965) count for the weights; with many it may reach twice that, since a tighter bound would widen every interval.
    With no variance to be seen (all hits, or none) the count is the number of documents. (nan, 0.0) without rows.
    """
    total = sum(row.weight for row in rows)
    if not rows or total <= 0:
        return math.nan, 0.0
    rate = sum(row.weight for row in rows if hit(row)) / total
    kish = total**2 / sum(row.weight**2 for row in rows)
    residuals: defaultdict[str, float] = defaultdict(float)
    for row in rows:
        residuals[row.document] += row.weight * (hit(row) - rate)
    documents = len(residuals)
    if documents < 2 or not 0 < rate < 1:
        return rate, min(kish, float(documents))
    variance = documents / (documents - 1) * sum(r * r for r in residuals.values()) / total**2
    if variance <= 0:
        return rate, kish
    return rate, min(kish * (1 if documents < MANY_DOCUMENTS else 2), rate * (1 - rate) / variance)


def measured_accuracy(rows: Sequence[Comparison]) -> JudgeAccuracy:
    """Sensitivity and specificity with effective counts."""
    sensitivity, passed = clustered_rate([r for r in rows if r.human], lambda r: r.judge)
    specificity, failed = clustered_rate([r for r in rows if not r.human], lambda r: not r.judge)
    return JudgeAccuracy(sensitivity, specificity, passed, failed)


def wilson(rate: float, effective_n: float, confidence: float = 0.95) -> tuple[float, float] | None:
    """Wilson's (1927) interval on an effective count; None without data."""
    from statsmodels.stats.proportion import proportion_confint

    if effective_n <= 0 or math.isnan(rate):
        return None
    low, high = proportion_confint(rate * effective_n, effective_n, alpha=1 - confidence, method="wilson")
    return float(low), float(high)


def table(rows: Sequence[Comparison]) -> list[list[float]]:
    """Weighted 2x2 table, rows = person (fail, pass), columns = judge (fail, pass)."""
    found = np.zeros((2, 2))
    np.add.at(found, ([int(r.human) for r in rows], [int(r.judge) for r in rows]), [r.weight for r in rows])
    return [[float(value) for value in line] for line in found]


def kappa(counts: Sequence[Sequence[float]]) -> float:
    """Cohen's (1960) kappa of a 2x2 table; nan where a rater says one thing only about rows of one label."""
    from statsmodels.stats.inter_rater import cohens_kappa

    found = np.asarray(counts, dtype=float)
    rows, columns, total = found.sum(axis=1), found.sum(axis=0), found.sum()
    if total == 0 or math.isclose(float(rows @ columns), float(total**2)):
        return math.nan
    return float(cohens_kappa(found, return_results=False))


def bootstrap_by_document(
    rows: Sequence[Comparison], statistic: Callable[[Sequence[Sequence[float]]], float], seed: int = 0
) -> tuple[float, float] | None:
    """95% percentile interval of a statistic of the 2x2 table, resampling whole documents (Efron and Tibshirani 1993)."""
    documents: defaultdict[str, list[Comparison]] = defaultdict(list)
    for row in rows:
        documents[row.document].append(row)
    if len(documents) < 2:
        return None
    tables = np.array([table(group) for group in documents.values()])
    random = np.random.default_rng(seed)
    values = []
    for _ in range(BOOTSTRAP_REPLICATIONS):
        drawn = np.bincount(random.integers(len(tables), size=len(tables)), minlength=len(tables))
        values.append(statistic(np.tensordot(drawn, tables, axes=1).tolist()))
    kept = [value for value in values if not math.isnan(value)]
    if not kept:
        return None
    low, high = np.quantile(kept, [0.025, 0.975])
    return float(low), float(high)


def describe(rows: Sequence[Comparison], *, bootstrap: bool = True) -> dict[str, Any]:
    """Agreement, kappa, sensitivity and specificity with 95% intervals, as plain values for a report.

    Without `bootstrap` kappa, whose interval takes a thousand resamples, has none.
    """
    judge = measured_accuracy(rows)
    agreement, agreement_n = clustered_rate(rows, lambda r: r.human == r.judge)
    counts = table(rows)
    return {
        "pairs": len(rows),
        "documents": len({row.document for row in rows}),
        "human_pass_rate": clustered_rate(rows, lambda r: r.human)[0],
        "judge_pass_rate": clustered_rate(rows, lambda r: r.judge)[0],
        "table": counts,
        "agreement": agreement,
        "agreement_ci95": wilson(agreement, agreement_n),
        "kappa": kappa(counts),
        "kappa_ci95": bootstrap_by_document(rows, kappa) if bootstrap else None,
        "sensitivity": judge.sensitivity,
        "sensitivity_ci95": wilson(judge.sensitivity, judge.passed_pairs),
        "specificity": judge.specificity,
        "specificity_ci95": wilson(judge.specificity, judge.failed_pairs),
        "youden": judge.youden,
        "effective_pairs": {"passed": judge.passed_pairs, "failed": judge.failed_pairs},
    }


def by_group(rows: Sequence[Comparison], key: Callable[[Comparison], str]) -> dict[str, dict[str, Any]]:
    """`describe` per group; groups without a name are left out."""
    groups: defaultdict[str, list[Comparison]] = defaultdict(list)
    for row in rows:
        if name := key(row):
            groups[name].append(row)
    return {name: describe(group, bootstrap=False) for name, group in sorted(groups.items())}


def caught_by_error_kind(rows: Sequence[Comparison]) -> dict[str, dict[str, Any]]:
    """For each kind of fault that people named: how many failed texts have it and what share the judge fails too."""
    kinds: defaultdict[str, list[Comparison]] = defaultdict(list)
    for row in rows:
        for kind in row.error_type.split("+") if row.error_type and not row.human else ():
            kinds[kind].append(row)
    found = {}
    for kind, group in sorted(kinds.items()):
        rate, n = clustered_rate(group, lambda r: not r.judge)
        found[kind] = {"pairs": len(group), "caught": rate, "ci95": wilson(rate, n)}
    return found


def length_bias(rows: Sequence[Comparison]) -> dict[str, Any]:
    """Whether longer copy is judged more kindly than people judge it.

    Spearman's correlation of the copy's length with (judge passes) - (person passes): 0 for a judge whose errors do not
    depend on length, positive for one that favours long copy; with the pass rates of both in thirds of length.
    """
    from scipy.stats import spearmanr

    difference = [int(row.judge) - int(row.human) for row in rows]
    lengths = [row.length for row in rows]
    if len(set(difference)) < 2 or len(set(lengths)) < 2:
        correlation, p_value = math.nan, math.nan
    else:
        result = spearmanr(lengths, difference)
        correlation, p_value = float(result.statistic), float(result.pvalue)
    ordered = sorted(rows, key=lambda row: row.length)
    thirds = [list(part) for part in np.array_split(np.array(ordered, dtype=object), 3)]
    return {
        "spearman": correlation,
        "p_value": p_value,
        "thirds": [
            {
                "up_to_chars": part[-1].length,
                "human_pass_rate": clustered_rate(part, lambda r: r.human)[0],
                "judge_pass_rate": clustered_rate(part, lambda r: r.judge)[0],
            }
            for part in thirds
            if part
        ],
    }
