"""The gate of one enhancement task: closes the accounting and decides whether tonight's copy may be published.

It combines completeness, the validators' expectation suite and the judge's statistics. The pass rate is computed before
the failed texts are withheld. Nothing raises for bad data: `status` is "passed", "failed" (the copy is not good enough),
"broken" (the gate could not be trusted: nothing may be published either) or "empty" (there was no work).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from include.expectations import expected_text, observed_text
from include.judging.accounting import Progress, progress, top_reasons
from include.judging.calibration import calibration_in_force, passes_by
from include.judging.decision import JudgeDecision, judge_decision
from include.judging.drift import watch
from include.judging.figures import judge_figures, strata
from include.judging.withheld import add_quarantined, withheld_texts, withhold, worst_first
from include.records import AccountingError, JudgeScore, JudgeVerdict
from include.runs import Run
from include.settings import GateSettings

NEXT_STEPS = {
    "passed": "nothing to do",
    "empty": "nothing to do: no listing needed work",
    "failed": "nothing of this enhancement task was published; the copy of earlier runs stays in place. Look at the "
    "examples; mend the prompt, the model or the limits, then clear open_run (downstream), which takes the settings of "
    "now. Listings are tried again as soon as their staleness key changes; the other enhancement tasks are not affected",
    "broken": "nothing of this enhancement task was published, and its quality is unknown. Mend what the reasons name, "
    "then clear the named stage; finished texts are kept",
}


@dataclass(slots=True)
class _Findings:
    """Checks so far: figures against limits for people, and the worst status among them."""

    status: str = "passed"
    reasons: list[str] = field(default_factory=list)
    checks: list[dict[str, Any]] = field(default_factory=list)

    def require(self, name: str, observed: float | None, limit: float, ok: bool, reason: str, worst: str) -> None:
        self.checks.append({"name": name, "observed": observed, "limit": limit, "ok": ok})
        if not ok:
            self.blame(reason, worst)

    def blame(self, reason: str, status: str) -> None:
        self.reasons.append(reason)
        self.status = "broken" if "broken" in (self.status, status) else status


def suite_result(run: Run, task: str) -> dict[str, Any]:
    """The validators' expectation suite over all bins; anything but an explicit result counts as broken."""
    from include.validation.suite import check

    return check(run, task)


def decide(run: Run, task: str) -> dict[str, Any]:
    """Decides, writes the judge's QuarantinedRow parts and manifest(task, "gate"), and returns the manifest.

    Raises FileNotFoundError when extraction has written no plan, and SettingsError for an unknown enhancement task.
    """
    gate = run.spec.settings.task(task).gate
    run.store.remove(run.manifest(task, "gate"))
    state = progress(run, task)
    scores = list(run.store.read_rows(run.judged(task), JudgeScore)) if state.planned else []
    sampled, scored = (run.store.read_json(run.manifest(task, step)) or {} for step in ("sample", "judge"))
    calibration, refused = calibration_in_force(run.spec.settings, task)
    passes = passes_by(calibration)
    decision = judge_decision(scores, int(sampled.get("population", 0)), gate, calibration)

    findings, suite = _Findings(), {"status": "empty", "expectations": []}
    if state.planned == 0:
        findings.status = "empty"
    else:
        suite = suite_result(run, task)
        _check_completeness(findings, state, gate.min_completeness)
        _check_suite(findings, suite)
        _check_judge(findings, gate, scores, decision, sampled)
        for reason in refused if not gate.override else ():
            findings.blame(f"judge refused: {reason}", "broken")
    failed = withheld_texts(scores, passes)
    withheld = withhold(run, task, failed, worst_first(scores, failed))
    for reason, rows in withheld.by_reason.items():
        state.counts.accepted -= rows
        state.counts.quarantine(reason, rows)
    try:
        state.counts.check_closed()
    except AccountingError as error:
        findings.blame(str(error), "broken")
    examples = withheld.examples
    if findings.status in ("failed", "broken"):
        add_quarantined(run, task, examples)

    manifest: dict[str, Any] = {
        "status": findings.status,
        "mode": gate.mode,
        "override": _override(gate, refused),
        "baseline": gate.baseline,
        "margin": gate.margin,
        "alpha": gate.alpha,
        "power": gate.power,
        "pass_rate": decision.pass_rate,
        "ci95": decision.ci95,
        "lower_bound": decision.lower,
        "reasons": findings.reasons,
        "checks": findings.checks,
        "suite": suite,
        "judge": judge_figures(scores, decision, passes, sampled=sampled, scored=scored)
        | {"calibration": calibration.version if calibration else None},
        "counts": state.counts.to_dict(),
        "missing_bins": state.missing_bins,
        "failed_text_ids": sorted(failed),
        "strata": strata(scores, passes),
        "top_reasons": top_reasons(state),
        "examples": examples,
        "sample_ids": [f"{row['merchant_id']}/{row['listing_id']}" for row in examples],
        "next_step": NEXT_STEPS[findings.status],
    }
    if decision.raw is not None:
        manifest["drift"] = watch(run, task, manifest, decision.raw, calibration)
    run.store.write_json(run.manifest(task, "gate"), manifest)
    return manifest


def _override(gate: GateSettings, refused: Sequence[str]) -> str:
    if gate.mode == "demo":
        return "demo mode: the judge is not calibrated; its plain pass rate is compared with a measured baseline"
    return f"{gate.override} (despite: {'; '.join(refused)})" if refused and gate.override else ""


def _check_completeness(findings: _Findings, state: Progress, limit: float) -> None:
    missing = f" (no validation of bins {state.missing_bins})" if state.missing_bins else ""
    findings.require(
        "completeness",
        state.completeness,
        limit,
        state.completeness >= limit,
        f"incomplete: {state.completeness:.1%} of {state.planned} listings got an answer, needed {limit:.1%}{missing}",
        "failed",
    )
    if state.answered and not state.counts.accepted:
        findings.blame(f"every one of {state.answered} answered listings was rejected", "failed")


def _check_suite(findings: _Findings, suite: dict[str, Any]) -> None:
    status = suite.get("status")
    for expectation in suite.get("expectations", []):
        if not expectation.get("success") and expectation.get("name") != "completeness":  # said above, with the bins
            findings.reasons.append(
                f"validators: {expectation['name']} observed {observed_text(expectation)}, "
                f"expected {expected_text(expectation)}"
            )
    if status == "failed":
        findings.blame("the validators' expectation suite failed", "failed")
    elif status != "passed":
        findings.blame(f"the validators' expectation suite gave no result: {suite.get('error', status)}", "broken")


def _check_judge(
    findings: _Findings,
    gate: GateSettings,
    scores: Sequence[JudgeScore],
    decision: JudgeDecision,
    sampled: dict[str, Any],
) -> None:
    if not sampled:
        findings.blame("no sample was drawn: run `python -m include.judging sample`", "broken")
        return
    texts = {score.text_id for score in scores}
    if len(texts) < int(sampled["texts"]):
        findings.blame(f"the judge answered for {len(texts)} of {sampled['texts']} sampled texts", "broken")
    errors = len({score.text_id for score in scores if score.verdict is JudgeVerdict.ERROR})
    share = errors / len(texts) if texts else 0.0
    findings.require(
        "judge_error_share",
        share,
        gate.max_judge_error_share,
        share <= gate.max_judge_error_share,
        f"the judge gave no readable answer for {share:.1%} of {len(texts)} texts, "
        f"allowed {gate.max_judge_error_share:.1%}",
        "broken",
    )
    if not texts:
        return
    under = "underpowered: " if sampled["underpowered"] else ""
    if decision.raw is None or decision.pass_rate is None:
        findings.blame(f"{under}no sampled text could be evaluated", "failed")
        return
    needed = sampled["needed"] or "more listings or more calibration labels"
    wanted = f"; {decision.raw.evaluable} listings judged, needed {needed}" if under else ""
    findings.require(
        "judge_pass_rate_lower_bound",
        decision.lower,
        decision.floor,
        decision.shown,
        f"{under}judge pass rate {decision.pass_rate:.1%} has lower bound {decision.lower:.1%}, must be above "
        f"{decision.floor:.1%} (baseline {gate.baseline:.1%} - margin {gate.margin:.1%}){wanted}",
        "failed",
    )
