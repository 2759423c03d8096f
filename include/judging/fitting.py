"""Fitting a calibration: the threshold is picked on some documents and its accuracy measured on others.

Documents are dealt into folds; each fold is decided with the threshold that the other folds pick (cross-fitting), so every
pair counts and none is measured with a threshold that has seen its document. The stored threshold is picked on all.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

from include.judging.agreement import (
    Comparison,
    by_group,
    caught_by_error_kind,
    clustered_rate,
    describe,
    kappa,
    length_bias,
    measured_accuracy,
    table,
)
from include.judging.calibration import Calibration, weaknesses
from include.judging.estimation import EVALUABLE
from include.judging.labels import LabelledPair, labels_hash
from include.judging.rubric import KINDS
from include.judging.sampling import draw_key
from include.partitions import plain_json
from include.records import JudgeScore, JudgeVerdict
from include.settings import Settings, digest

FOLDS = 5


def compare(pair: LabelledPair, judge: bool, score: float | None = None) -> Comparison:
    return Comparison(
        document=pair.document,
        human=pair.passed,
        judge=judge,
        weight=pair.weight,
        length=len(pair.output),
        locale=pair.locale,
        origin=pair.origin,
        error_type=pair.error_type,
        score=score,
    )


def judged_rows(pairs: Sequence[LabelledPair], scores: Mapping[str, JudgeScore]) -> list[Comparison]:
    """Person and judge side by side for every pair with a readable answer; the judge by its claims alone."""
    return [
        compare(pair, score.verdict is JudgeVerdict.PASS, score.score)
        for pair in pairs
        if (score := scores.get(pair.id)) is not None and score.verdict in EVALUABLE
    ]


def pick_threshold(rows: Sequence[Comparison]) -> float:
    """The score threshold with the highest Youden index (Youden 1950) for the rule "no wrong claim and score >= it".

    `judge` of a row is its verdict by claims alone. 0 where there are no scores; the lowest of equals, so that the
    threshold never rejects more than it must.
    """
    passed, failed = ([r for r in rows if r.human is human and r.weight > 0] for human in (True, False))
    if not passed or not failed:
        return 0.0
    scores = sorted({row.score for row in rows if row.judge and row.score is not None})
    candidates = [0.0, *((low + high) / 2 for low, high in pairwise(scores))]
    weights = sum(r.weight for r in passed), sum(r.weight for r in failed)

    def youden(threshold: float) -> float:
        kept = [sum(r.weight for r in group if decides(r, threshold)) for group in (passed, failed)]
        return kept[0] / weights[0] - kept[1] / weights[1]

    return max(candidates, key=lambda threshold: (round(youden(threshold), 12), -threshold))


def decides(row: Comparison, threshold: float) -> bool:
    return row.judge and (row.score is None or row.score >= threshold)


def cross_fitted(rows: Sequence[Comparison]) -> list[Comparison]:
    """The rows with their out-of-fold decisions, split by document."""
    ranked = sorted({row.document for row in rows}, key=lambda document: draw_key("0", document))
    fold = {document: place % min(FOLDS, len(ranked)) for place, document in enumerate(ranked)}
    thresholds = {
        number: pick_threshold([row for row in rows if fold[row.document] != number]) for number in set(fold.values())
    }
    return [replace(row, judge=decides(row, thresholds[fold[row.document]])) for row in rows]


def fit(
    pairs: Sequence[LabelledPair],
    scores: Mapping[str, JudgeScore],
    settings: Settings,
    *,
    judge_model: str,
    rubric: str,
    now: datetime | None = None,
    extra: Mapping[str, Any] | None = None,
) -> Calibration:
    """Fits a calibration to labelled pairs and the judge's answers to them (by pair id).

    Pairs without a readable answer, and those that cannot be evaluated, are counted and left out. A judge too weak to
    gate gets its calibration all the same, with the reasons under report["refusals"]; the gate refuses it.
    """
    now = now or datetime.now(UTC)
    verdicts = Counter(str(scores[p.id].verdict) if p.id in scores else "unanswered" for p in pairs)
    rows = judged_rows(pairs, scores)
    threshold, held_out = pick_threshold(rows), cross_fitted(rows)
    accuracy, agreement = measured_accuracy(held_out), kappa(table(held_out))
    labels = labels_hash(pairs)
    identity = digest([judge_model, rubric, labels, sorted((p.id, str(scores.get(p.id))) for p in pairs)], 8)
    found = describe(held_out)
    report = {
        "pairs": len(pairs),
        "verdicts": dict(sorted(verdicts.items())),
        **{name: found[name] for name in found if name != "pairs"},
        "judged": len(rows),
        "by_claims_alone": describe(rows, bootstrap=False),
        "locales": by_group(held_out, lambda row: row.locale),
        "origins": by_group(held_out, lambda row: row.origin),
        "error_kinds": caught_by_error_kind(held_out),
        "claims_by_kind": _claims(scores),
        "length_bias": length_bias(held_out),
        "labellers": _labellers(pairs),
        "published_judges": published_judges(pairs, settings),
        "refusals": weaknesses(agreement, accuracy.youden, settings),
        **(extra or {}),
    }
    return Calibration(
        version=f"{now:%Y%m%d}-{identity}",
        created_at=now,
        judge_model=judge_model,
        rubric=rubric,
        labels=labels,
        threshold=threshold,
        sensitivity=_or_zero(accuracy.sensitivity),
        specificity=_or_zero(accuracy.specificity),
        passed_pairs=accuracy.passed_pairs,
        failed_pairs=accuracy.failed_pairs,
        kappa=_or_zero(agreement),
        report=plain_json(report),
    )


def stored_verdicts(pairs: Sequence[LabelledPair], judge: str) -> dict[str, JudgeScore]:
    """The verdicts of a judge whose labels are stored with the pairs, as if it had just answered."""
    return {
        pair.id: JudgeScore(
            text_id=pair.id,
            stratum="",
            weight=1.0,
            verdict=JudgeVerdict.PASS if pair.judges[judge] else JudgeVerdict.FAIL,
        )
        for pair in pairs
        if judge in pair.judges
    }


def published_judges(pairs: Sequence[LabelledPair], settings: Settings) -> dict[str, dict[str, Any]]:
    """Agreement with people of every judge whose labels are stored with the pairs, and why it may not gate."""
    found = {}
    for name in sorted({name for pair in pairs for name in pair.judges}):
        figures = describe(judged_rows(pairs, stored_verdicts(pairs, name)))
        found[name] = figures | {"refusals": weaknesses(figures["kappa"], figures["youden"], settings)}
    return found


def flips(
    pairs: Sequence[LabelledPair], first: Mapping[str, JudgeScore], second: Mapping[str, JudgeScore]
) -> dict[str, Any]:
    """Share of pairs whose verdict changes when the source's lines are read in reverse order."""
    rows = [
        compare(pair, first[pair.id].verdict is not second[pair.id].verdict)
        for pair in pairs
        if all(pair.id in found and found[pair.id].verdict in EVALUABLE for found in (first, second))
    ]
    return {"pairs": len(rows), "share": clustered_rate(rows, lambda row: row.judge)[0]}


def _claims(scores: Mapping[str, JudgeScore]) -> dict[str, int]:
    return {kind: sum(bool(getattr(score, kind)) for score in scores.values()) for kind in KINDS}


def _labellers(pairs: Sequence[LabelledPair]) -> dict[str, Any]:
    """Agreement of two people where a second one has labelled the pair."""
    rows = [compare(pair, pair.second) for pair in pairs if pair.second is not None]
    agreement = clustered_rate(rows, lambda row: row.human == row.judge)[0]
    return {"pairs": len(rows), "agreement": agreement, "kappa": kappa(table(rows))}


def _or_zero(value: float) -> float:
    return 0.0 if math.isnan(value) else value
