"""What the gate's manifest shows of the judge to people, the alert and the report: counts, rates and strata."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from include.judging.decision import JudgeDecision
from include.judging.estimation import EVALUABLE
from include.records import JudgeScore, JudgeVerdict

MAX_STRATA = 50
_SCORED = ("model", "writer", "self_judged", "same_base_model", "disagreements", "pairs_per_s")


def judge_figures(
    scores: Sequence[JudgeScore],
    decision: JudgeDecision,
    passes: Callable[[JudgeScore], bool],
    *,
    sampled: Mapping[str, Any],
    scored: Mapping[str, Any],
) -> dict[str, Any]:
    """Counts are texts; rates are weighted by listings. `sampled` and `scored` are the manifests of those two steps."""
    by_text = {score.text_id: score for score in scores}
    verdicts = Counter(score.verdict for score in by_text.values())
    return {
        "status": sampled.get("status", "empty"),
        "sampled": len(by_text),
        "evaluable": sum(verdicts[verdict] for verdict in EVALUABLE),
        "passed": sum(passes(score) for score in by_text.values() if score.verdict in EVALUABLE),
        "errors": verdicts[JudgeVerdict.ERROR],
        "not_evaluable": verdicts[JudgeVerdict.NOT_EVALUABLE],
        "pass_rate": decision.pass_rate,
        "ci95": decision.ci95,
        "raw_pass_rate": decision.raw.rate if decision.raw else None,
        "raw_ci95": decision.raw_ci95,
        "needed": sampled.get("needed"),
        "power": sampled.get("power"),
        **{name: scored.get(name) for name in _SCORED},
    }


def strata(scores: Sequence[JudgeScore], passes: Callable[[JudgeScore], bool]) -> list[dict[str, Any]]:
    """The judge's plain pass rate per stratum, heaviest first."""
    rows: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0])
    for score in scores:
        if score.verdict in EVALUABLE:
            row = rows[score.stratum]
            row[0] += score.weight
            row[1] += score.weight * passes(score)
            row[2] += 1
    heaviest = sorted(rows.items(), key=lambda item: (-item[1][0], item[0]))[:MAX_STRATA]
    return [
        {"stratum": name, "listings": round(weight, 1), "texts": int(texts), "pass_rate": passed / weight}
        for name, (weight, passed, texts) in heaviest
    ]
