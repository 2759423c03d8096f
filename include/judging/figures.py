"""What the gate's manifest shows to people, the alert and the load: withheld texts, figures, strata, examples, drift."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from include.judging.accounting import Progress, Withheld, first_quarantined
from include.judging.calibration import Calibration
from include.judging.decision import JudgeDecision
from include.judging.drift import detect, log_evidence, record_night
from include.judging.estimation import SampledRate, passes_verdict
from include.judging.plots import nights_plot
from include.records import JudgeScore, JudgeVerdict
from include.runs import Run
from include.settings import digest

log = logging.getLogger(__name__)

JUDGE_FAILED, JUDGE_NOT_EVALUABLE = "judge_failed", "judge_not_evaluable"
TOP = 5
MAX_STRATA = 50


def _passes(score: JudgeScore, calibration: Calibration | None) -> bool:
    return calibration.passes(score) if calibration else passes_verdict(score)


def withheld_texts(scores: Sequence[JudgeScore], calibration: Calibration | None) -> dict[str, tuple[str, str]]:
    """Texts that may not go out, with reason and quoted claims; judge errors stay, like what was never sampled."""
    found: dict[str, tuple[str, str]] = {}
    for score in scores:
        if score.verdict is JudgeVerdict.NOT_EVALUABLE:
            found[score.text_id] = (JUDGE_NOT_EVALUABLE, "nothing to check the copy against, or nothing in it to check")
        elif score.verdict is not JudgeVerdict.ERROR and not _passes(score, calibration):
            claims = [
                f"{kind}: " + "; ".join(f"“{claim}”" for claim in getattr(score, kind))
                for kind in ("unsupported", "contradictory")
                if getattr(score, kind)
            ]
            low = "" if claims else f"score {score.score:.2f} is below the calibrated threshold"
            found[score.text_id] = (JUDGE_FAILED, " | ".join(claims) or low)
    return found


def worst_first(scores: Sequence[JudgeScore], failed: Mapping[str, object]) -> list[str]:
    """The failed texts: the lowest score first, then those that most listings share."""
    keys: dict[str, tuple[float, float]] = {}
    for row in scores:
        if row.text_id in failed:
            score, weight = keys.get(row.text_id, (1.0, 0.0))
            keys[row.text_id] = (min(score, 1.0 if row.score is None else row.score), weight - row.weight)
    return sorted(keys, key=lambda text_id: (keys[text_id], text_id))


def judge_figures(
    run: Run,
    task: str,
    scores: Sequence[JudgeScore],
    decision: JudgeDecision,
    sampled: dict[str, Any],
    calibration: Calibration | None,
) -> dict[str, Any]:
    """Counts are texts; rates are weighted by listings."""
    by_text = {score.text_id: score for score in scores}
    evaluable = [s for s in by_text.values() if s.verdict in (JudgeVerdict.PASS, JudgeVerdict.FAIL)]
    scored: dict[str, Any] = run.store.read_json(run.manifest(task, "judge")) or {}
    return {
        "status": sampled.get("status", "empty"),
        "sampled": len(by_text),
        "evaluable": len(evaluable),
        "passed": sum(_passes(score, calibration) for score in evaluable),
        "errors": sum(score.verdict is JudgeVerdict.ERROR for score in by_text.values()),
        "not_evaluable": sum(score.verdict is JudgeVerdict.NOT_EVALUABLE for score in by_text.values()),
        "pass_rate": decision.pass_rate,
        "ci95": decision.ci95,
        "raw_pass_rate": decision.raw.rate if decision.raw else None,
        "raw_ci95": decision.raw_ci95,
        "calibration": calibration.version if calibration else None,
        "needed": sampled.get("needed"),
        "power": sampled.get("power"),
        **{
            key: scored.get(key)
            for key in ("model", "writer", "self_judged", "same_base_model", "disagreements", "pairs_per_s")
        },
    }


def strata(scores: Sequence[JudgeScore], calibration: Calibration | None) -> list[dict[str, Any]]:
    """The judge's plain pass rate per stratum, heaviest first."""
    rows: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0])
    for score in scores:
        if score.verdict in (JudgeVerdict.PASS, JudgeVerdict.FAIL):
            row = rows[score.stratum]
            row[0] += score.weight
            row[1] += score.weight * _passes(score, calibration)
            row[2] += 1
    heaviest = sorted(rows.items(), key=lambda item: (-item[1][0], item[0]))[:MAX_STRATA]
    return [
        {"stratum": name, "listings": round(weight, 1), "texts": int(texts), "pass_rate": passed / weight}
        for name, (weight, passed, texts) in heaviest
    ]


def top_reasons(state: Progress) -> list[dict[str, Any]]:
    reasons = {**state.counts.quarantined, **({"errored": state.counts.errored} if state.counts.errored else {})}
    ranked = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))[:TOP]
    return [{"reason": reason, "listings": rows} for reason, rows in ranked]


def examples(run: Run, task: str, withheld: Withheld, status: str) -> dict[str, Any]:
    """Five listings to look at: the judge's worst, filled up with what the validators withheld."""
    found = list(withheld.examples)
    if status not in ("passed", "empty") and len(found) < TOP:
        found += first_quarantined(run, task, TOP - len(found))
    return {"examples": found, "sample_ids": [f"{row['merchant_id']}/{row['listing_id']}" for row in found]}


def drift(
    run: Run, task: str, manifest: Mapping[str, Any], raw: SampledRate, calibration: Calibration | None
) -> dict[str, Any]:
    """Adds tonight to the nights under the state URL, draws their plot, and says whether they drift together.

    An alarm warns; it does not block tonight's copy, which has been shown to be good enough by itself. Evidence starts
    anew when the model, the prompt, the baseline or the calibration changes.
    """
    settings = run.spec.settings
    enhancement = settings.task(task)
    series = digest(
        [
            settings.engines[enhancement.engine].lineage,
            enhancement.template_version,
            [enhancement.gate.baseline, enhancement.gate.margin],
            calibration.version if calibration else enhancement.gate.mode,
        ]
    )
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
        record_night(run, task, night | {"alarm": True})
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
