"""A shadow run: our copy beside an incumbent's stored results for the same texts, so that a switch can be judged by numbers.

Both sides go through the same validators and the same judge, and are compared in pairs as a tuning run compares two
engines (include.judging.pairing), with the margin and alpha of the task's gate. Nothing is published.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from include import promotions
from include.batch.figures import cost_figures, drift
from include.batch.joining import Joined, Pair, Stored, answers_of, join
from include.batch.shadow_report import write_report
from include.generation.child import run_stage
from include.generation.leases import device_name
from include.judging.calibration import accuracy_of, calibration_in_force, passes_by
from include.judging.costs import ComparisonSettings
from include.judging.estimation import EVALUABLE
from include.judging.pairing import NO_ANSWER, Row, compared, compared_validators, estimated_rate, run_of_items
from include.judging.rubric import judge_values
from include.judging.scoring import JudgeError, OpenJudge, judge_fingerprint, judge_parts, open_judge
from include.judging.withheld import withheld_texts
from include.partitions import Store
from include.records import Generation, JudgeScore, JudgeVerdict, SampledText, WorkItem
from include.runs import Run
from include.settings import Settings, SettingsError, digest
from include.validation.checker import Checker
from include.validation.stage import storable
from include.validation.view import Source

log = logging.getLogger(__name__)

SIDES = ("ours", "incumbent")
JUDGED = "judged"
_SOURCE = ("title", "description", "brand", "category", "locale", "attributes")


@dataclass(slots=True)
class Copy:
    """One side's text of one listing: what the validators say of it, and by which key the judge's word is found."""

    text: str = ""
    reasons: tuple[str, ...] = (NO_ANSWER,)
    key: str = ""
    values: Mapping[str, str] | None = None  # what the judge is asked; None: not asked, since the validators refuse it


def shadow(
    run: Run,
    task: str,
    results: Path,
    out: Path,
    comparison: ComparisonSettings,
    *,
    listings: int | None = None,
    mapping: Path | None = None,
    seed: int = 8,
    judge_opener: OpenJudge = open_judge,
) -> Row:
    """Compares, writes `shadow.json`, `shadow.html` and `custom_ids.jsonl` into `out`, and returns what shadow.json holds.

    A run without any answer of its own first writes copy for the sample, in a run below `out`. Judged texts are kept, so
    that another call asks for the missing ones only. Raises what `join` raises, SettingsError for a run that was generated
    in part or where no custom id names a text of it, EngineError of the engines, and JudgeError when the judge's unreadable answers pass the gate's limit.
    """
    settings, store = run.spec.settings, Store(str(out.resolve()))
    out.mkdir(parents=True, exist_ok=True)
    check_generated(run, task)
    faults = out / "custom_ids.jsonl"
    joined = join(run, task, results, listings or comparison.held_out, faults, mapping=mapping, seed=seed)
    if not joined.pairs:
        raise SettingsError(
            f"{results} answers no text of {run.store.url}: see {faults}; custom ids that are no text ids need --map"
        )
    writer = run if joined.generated else _generate(run, task, joined, store)
    copies = checked(joined.pairs, settings, task)
    scores = _judge(store, settings, task, copies, judge_opener)
    found = _compare(joined, copies, scores, settings, task, comparison)
    accepted = {side: sum(not copy.reasons for copy in copies[side].values()) for side in SIDES}
    found |= {
        "task": task,
        "run": run.store.url,
        "results": str(results),
        "seed": seed,
        "listings": len(joined.pairs),
        "custom_ids": dict(joined.ids),
        "texts": dict(joined.texts) if joined.generated else None,  # else the run was not generated as a whole
        "named": joined.named,
        "accepted": accepted,
        "drift": drift([(copies["ours"][p.item.text_id].text, copies["incumbent"][p.item.text_id].text) for p in joined.pairs]),
        "costs": cost_figures(writer, task, joined.pairs, accepted, comparison),
    }  # fmt: skip
    store.write_json("shadow.json", found)
    write_report(out)
    log.info("%s: %s", found["verdict"], "; ".join(found["why"]))
    return found


def check_generated(run: Run, task: str) -> None:
    """Raises SettingsError for a run of which only some bins of the task's own engine were generated: what they lack would
    count as refused. A run without any answer is fine.
    """
    bins = run.own_bins(task)
    manifests = {b: run.store.read_json(run.manifest(task, "generate", b)) for b in bins}
    done = [b for b, manifest in manifests.items() if manifest and not manifest.get("stopped")]
    missing = sorted(set(bins) - set(done))
    if missing and (done or any(run.store.list(run.generated(task, b)) for b in missing)):
        raise SettingsError(
            f"{run.store.url}: bins {missing} of {task} were not generated to their end, the other {len(done)} were: clear "
            f"their generate tasks, or run `python -m include.generation run --run-dir {run.store.url} --task {task} "
            f"--bin {missing[0]}` (and so on), then compare again"
        )


def _generate(run: Run, task: str, joined: Joined, store: Store) -> Run:
    """Writes our copy of the sample by the nightly stage, in a run of its own."""
    items = [pair.item for pair in joined.pairs]
    home, settings = store.child("ours"), run.spec.settings
    name = settings.task(task).engine
    if (endpoint := settings.engines[name].connection) and endpoint != settings.engines[
        settings.judge.engine
    ].connection:
        raise SettingsError(
            f"the run holds no copy of {task}, and its engine {name!r} is another endpoint than the judge's: generate the run first"
        )
    in_force = promotions.in_force(settings, name, device_name())  # named here: the run below has a state of its own
    own = run_of_items(
        items,
        task,
        settings.model_copy(update={"engines": settings.engines | {name: in_force}}),
        run.spec.partition_date,
        data_url=home.child("data").url,
        state_url=home.child("state").url,
    )
    wanted = {item.text_id for item in items}
    made = own.store.exists(own.manifest(task, "generate", 0)) and answers_of(own, task, wanted).keys() == wanted
    if not made:  # the stage would write a manifest without its figures
        run_stage("include.generation", "run", "--run-dir", own.store.url, "--task", task, "--bin", "0")
    answers = answers_of(own, task, wanted)
    for pair in joined.pairs:
        pair.ours = answers.get(pair.item.text_id)
    return own


def checked(pairs: Sequence[Pair], settings: Settings, task: str) -> dict[str, dict[str, Copy]]:
    """Both sides' texts after the validators, by side and text id."""
    checker, kind = Checker.of(settings, task), settings.task(task).output_field
    found: dict[str, dict[str, Copy]] = {side: {} for side in SIDES}
    for pair in pairs:
        source = Source.of(pair.item)
        answers: tuple[Generation | Stored | None, ...] = (pair.ours, pair.theirs)
        for side, answer in zip(SIDES, answers, strict=True):
            if answer is None:
                found[side][pair.item.text_id] = Copy()
                continue
            outcome = checker.check(source, answer.text, answer.finish_reason)
            copy = Copy(storable(outcome.output or answer.text), outcome.reasons)
            if outcome.ok:
                copy.values = judge_values(_sampled(pair.item, copy.text), kind)
                copy.key = digest(dict(copy.values))  # equal copies of one listing are one question
            found[side][pair.item.text_id] = copy
    return found


def _sampled(item: WorkItem, output: str) -> SampledText:
    fields = {name: getattr(item, name) for name in _SOURCE}
    return SampledText(text_id=item.text_id, stratum="", weight=1.0, listings=1, output=output, **fields)


def _judge(
    store: Store, settings: Settings, task: str, copies: Mapping[str, Mapping[str, Copy]], judge_opener: OpenJudge
) -> dict[str, JudgeScore]:
    """The judge's answers by key, through the code that scores a night's sample."""
    texts = {copy.key: copy.values for side in copies.values() for copy in side.values() if copy.values is not None}

    def rows_of(key: str) -> list[JudgeScore]:
        return [JudgeScore(text_id=key, stratum="", weight=1.0, verdict=JudgeVerdict.ERROR)]

    judge_parts(store, JUDGED, texts, rows_of, settings, judge_fingerprint(settings), judge_opener)
    scores = {row.text_id: row for row in store.read_rows(JUDGED, JudgeScore) if row.text_id in texts}
    errors = sum(score.verdict is JudgeVerdict.ERROR for score in scores.values())
    limit = settings.task(task).gate.max_judge_error_share
    if texts and errors / len(texts) > limit:
        raise JudgeError(
            f"the judge gave no readable answer for {errors} of {len(texts)} texts (allowed {limit:.1%}); run this again, "
            "which asks for those only, or raise max_tokens in judge.yaml"
        )
    return scores


def _compare(
    joined: Joined,
    copies: Mapping[str, Mapping[str, Copy]],
    scores: Mapping[str, JudgeScore],
    settings: Settings,
    task: str,
    comparison: ComparisonSettings,
) -> Row:
    gate = settings.task(task).gate
    calibration, refused = calibration_in_force(settings, task)
    refused = [] if gate.override else refused
    judge, passes = accuracy_of(calibration), passes_by(calibration)
    failed = withheld_texts([s for s in scores.values() if s.verdict in EVALUABLE], passes)
    judged: dict[str, dict[str, bool]] = {}
    rates: dict[str, Row] = {}
    for side in SIDES:
        own = {text_id: scores[copy.key] for text_id, copy in copies[side].items() if copy.key in scores}
        judged[side] = {key: passes(score) for key, score in own.items() if score.verdict in EVALUABLE}
        rate, bounds = estimated_rate(list(own.values()), comparison.listings_per_day, judge, passes)
        rates[side] = {"pass_rate": rate, "ci95": bounds, "judged": len(judged[side])}
    by_judge = compared("judge pass rate", judged["ours"], judged["incumbent"], gate, judge)
    reasons = {side: {key: copy.reasons for key, copy in copies[side].items()} for side in SIDES}
    validators = compared_validators(reasons["ours"], reasons["incumbent"], gate)
    verdict, why = decided([by_judge, *validators.values()], refused, 100 * gate.margin)
    return {
        "verdict": verdict,
        "why": why,
        "margin": gate.margin,
        "alpha": gate.alpha,
        "judge": by_judge | {"sides": rates, "refused": refused},
        "calibration": calibration.version if calibration else None,
        "validators": validators,
        "disagreements": disagreements(joined.pairs, copies, judged, failed, settings.task(task).output_field),
    }


def decided(checks: Sequence[Row], refused: Sequence[str], margin: float) -> tuple[str, list[str]]:
    """`worse`: some pass rate is shown to fall beyond the margin (points); `not_worse`: every one is shown not to; else `undecided`.

    The first check is the judge's, which a refused judge cannot decide.
    """
    worse = [check["why"] for check in (checks[1:] if refused else checks) if check["worse"]]
    if worse:
        return "worse", worse
    open_ = [f"judge refused: {reason}" for reason in refused] + [
        check["why"] for check in checks if not check["holds"]
    ]
    return ("undecided", open_) if open_ else ("not_worse", [f"no fall beyond the margin of {margin:g} points"])


def disagreements(
    pairs: Sequence[Pair],
    copies: Mapping[str, Mapping[str, Copy]],
    judged: Mapping[str, Mapping[str, bool]],
    failed: Mapping[str, tuple[str, str]],
    field: str,
) -> list[Row]:
    """The listings where one side passes and the other fails, with reasons and the judge's quoted claims."""
    found: list[Row] = []
    for pair in pairs:
        key, sides = pair.item.text_id, dict[str, Any]()
        for side in SIDES:
            copy = copies[side][key]
            ok = False if copy.reasons else judged[side].get(key)  # None: the judge could not say
            why = ", ".join(copy.reasons) or ("" if ok is not False else failed.get(copy.key, ("", ""))[1])
            sides[side] = {"text": copy.text, "ok": ok, "why": why}
        if {sides[side]["ok"] for side in SIDES} == {True, False}:
            row: Row = {"text_id": key, "custom_id": pair.theirs.custom_id, "locale": pair.item.locale}
            listing = f"{pair.item.merchant_id}/{pair.item.listing_id}"
            found.append(row | {"listing": listing, "source": getattr(pair.item, field)} | sides)
    return found
