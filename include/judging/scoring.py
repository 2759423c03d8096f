"""The judge at work: sampled texts in, JudgeScore parts out, with one retry of unreadable answers and resume."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from include.generation.engine import Messages, Output, Request, open_engine
from include.generation.window import run_window
from include.judging.confidence import clean_probability
from include.judging.rubric import (
    answer_schema,
    judge_messages,
    judge_values,
    not_evaluable,
    read_answer,
    rubric_version,
)
from include.partitions import PartWriter
from include.records import JudgeScore, JudgeVerdict, SampledText
from include.runs import Run
from include.settings import EngineProfile, JudgeSettings, Settings, digest

log = logging.getLogger(__name__)

ERRORS_PART = "errors.parquet"  # judged again by the next call; readable answers are kept


class JudgeError(RuntimeError):
    """Too many texts got no readable answer from the judge; nothing can be said about tonight's copy."""


class Ask(Protocol):
    """Sends chat prompts, by key, to the judge's engine and yields the answers as they finish, in any order."""

    def __call__(
        self, prompts: Iterable[tuple[str, Messages]], sampling_params: Mapping[str, Any]
    ) -> Iterator[Output]: ...


OpenJudge = Callable[[Settings], AbstractContextManager[Ask]]


@contextmanager
def open_judge(settings: Settings) -> Iterator[Ask]:
    """Starts the judge's engine profile, offline or an endpoint. Raises EngineStartError with the engine's own reason."""
    with open_engine(settings.engines[settings.judge.engine]) as engine:

        def ask(prompts: Iterable[tuple[str, Messages]], sampling_params: Mapping[str, Any]) -> Iterator[Output]:
            return run_window(
                engine, (Request(id=key, messages=chat, sampling_params=sampling_params) for key, chat in prompts)
            )

        yield ask


def sampling_params(judge: JudgeSettings, attempt: int = 1) -> dict[str, Any]:
    """vLLM sampling parameters: the schema as structured output, and token alternatives.

    A second attempt samples with another seed and more room, since the same greedy answer would fail again.
    """
    wanted = {"temperature": 0.0, "max_tokens": 256, "logprobs": 5, **judge.sampling_params}
    if attempt > 1:
        wanted |= {
            "temperature": max(0.3, float(wanted["temperature"])),
            "max_tokens": attempt * int(wanted["max_tokens"]),
            "seed": int(wanted.get("seed") or 0) + attempt,
        }
    schema = answer_schema(judge.max_claims, judge.max_claim_chars)
    return wanted | {"json_schema": schema}


def judge_texts(
    texts: Mapping[str, Mapping[str, str]], judge: JudgeSettings, ask: Ask
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Judges texts given by id and template values; yields (id, JudgeScore fields and "stated", "attempts").

    Unreadable answers are asked again up to `judge.attempts` times and come last, as JudgeVerdict.ERROR.
    """
    pending = dict(texts)
    for attempt in range(1, max(1, judge.attempts) + 1):
        failed: dict[str, dict[str, Any]] = {}
        prompts = ((key, judge_messages(values, judge)) for key, values in pending.items())
        unanswered = set(pending)
        for raw in ask(prompts, sampling_params(judge, attempt)):
            unanswered.discard(raw.id)
            answer = read_answer(raw.text, judge)
            fields = {
                "verdict": answer.verdict,
                "score": None if answer.verdict is JudgeVerdict.ERROR else clean_probability(raw.logprobs),
                "unsupported": answer.unsupported,
                "contradictory": answer.contradictory,
                "omitted": answer.omitted,
                "raw": raw.text,
                "stated": answer.stated,
                "attempts": attempt,
            }
            if raw.error or answer.verdict is JudgeVerdict.ERROR:
                failed[raw.id] = fields | {"verdict": JudgeVerdict.ERROR, "raw": raw.text or raw.error}
            else:
                yield raw.id, fields
        lost = {"verdict": JudgeVerdict.ERROR, "raw": "no answer", "stated": "", "attempts": attempt}
        failed |= dict.fromkeys(unanswered, lost)
        pending = {key: pending[key] for key in failed}
        if not pending:
            return
        log.info("%d of %d judge answers could not be read (attempt %d)", len(pending), len(texts), attempt)
    yield from failed.items()


def is_self_judged(judge: EngineProfile, writer: EngineProfile) -> bool:
    """Whether the judge is the writer's own model, which is known to favour its own texts."""
    return judge.model_path() == writer.model_path() and judge.lora == writer.lora


def score(run: Run, task: str, judge_opener: OpenJudge = open_judge) -> dict[str, Any]:
    """Judges the sample of one enhancement task; writes JudgeScore parts and manifest(task, "judge").

    No engine is started when every sampled text has its answer already. Raises FileNotFoundError when no sample was
    drawn, and JudgeError, after writing everything, when the share of unreadable answers is above the gate's limit.
    """
    settings = run.spec.settings
    enhancement, judge, store = settings.task(task), settings.judge, run.store
    if not store.exists(run.manifest(task, "sample")):
        raise FileNotFoundError(f"{store.url} has no sample for {task}: run `python -m include.judging sample` first")
    profile, folder = settings.engines[judge.engine], run.judged(task)
    rows: dict[str, list[SampledText]] = {}
    for row in store.read_rows(run.sampled(task), SampledText):
        rows.setdefault(row.text_id, []).append(row)
    identity = [(r.text_id, r.stratum, r.weight, digest(r.output)) for group in rows.values() for r in group]
    model = [profile.model, profile.revision, profile.lora, profile.lineage]
    fingerprint = digest([model, rubric_version(judge), sampling_params(judge), identity])
    store.remove(f"{folder}/{ERRORS_PART}")
    kept = store.valid_parts(folder, fingerprint=fingerprint)
    for path in set(store.list(folder)) - set(kept):
        store.remove(path)
    done = {row.text_id for row in store.read_rows(kept, JudgeScore)}
    pending = {key: judge_values(group[0], enhancement.output_field) for key, group in rows.items() if key not in done}
    tally: Counter[str] = Counter(resumed=len(done))
    errors: list[JudgeScore] = []
    started = time.monotonic()

    def expand(key: str, fields: Mapping[str, Any]) -> list[JudgeScore]:
        known = {name: value for name, value in fields.items() if name not in ("stated", "attempts")}
        return [
            JudgeScore(text_id=key, stratum=r.stratum, weight=r.weight, listings=r.listings, **known) for r in rows[key]
        ]

    parts = {"rows_per_part": settings.pipeline.rows_per_part, "metadata": {"fingerprint": fingerprint}}
    with PartWriter(store, folder, JudgeScore, first=_next_number(kept), **parts) as writer:  # type: ignore[arg-type]
        for key in [key for key, values in pending.items() if not_evaluable(values)]:
            pending.pop(key)
            for judged in expand(key, {"verdict": JudgeVerdict.NOT_EVALUABLE}):
                writer.write(judged)
        if pending:
            with judge_opener(settings) as ask:
                for number, (key, fields) in enumerate(judge_texts(pending, judge, ask), start=1):
                    judged_rows = expand(key, fields)
                    tally["retried"] += fields["attempts"] > 1
                    if fields["verdict"] is JudgeVerdict.ERROR:
                        errors += judged_rows
                    else:
                        tally["disagreements"] += fields["stated"] != fields["verdict"].value
                        for judged in judged_rows:
                            writer.write(judged)
                    if number % 50 == 0 or number == len(pending):
                        log.info("judged %d of %d texts, %.1f/s", number, len(pending), _rate(number, started))
    if errors:
        store.write_part(f"{folder}/{ERRORS_PART}", JudgeScore, errors, {"fingerprint": fingerprint})
    return _finish(run, task, len(rows), len(pending), tally, started)


def _next_number(kept: Sequence[str]) -> int:
    return max((int(path.rsplit("part-", 1)[1].split(".")[0]) for path in kept), default=-1) + 1


def _rate(number: int, started: float) -> float:
    return number / max(time.monotonic() - started, 1e-9)


def _finish(run: Run, task: str, texts: int, asked: int, tally: Counter[str], started: float) -> dict[str, Any]:
    settings = run.spec.settings
    judge, writer = settings.engines[settings.judge.engine], settings.engines[settings.task(task).engine]
    verdicts = {row.text_id: row.verdict for row in run.store.read_rows(run.judged(task), JudgeScore)}
    counts = Counter(verdicts.values())
    manifest = {
        "sampled": texts,
        "evaluable": counts[JudgeVerdict.PASS] + counts[JudgeVerdict.FAIL],
        "passed": counts[JudgeVerdict.PASS],
        "errors": counts[JudgeVerdict.ERROR],
        "not_evaluable": counts[JudgeVerdict.NOT_EVALUABLE],
        "unparsable_share": counts[JudgeVerdict.ERROR] / texts if texts else 0.0,
        "asked": asked,
        "retried": tally["retried"],
        "resumed": tally["resumed"],
        "disagreements": tally["disagreements"],
        "pairs_per_s": _rate(asked, started) if asked else None,
        "model": judge.lineage,
        "writer": writer.lineage,
        "self_judged": is_self_judged(judge, writer),
        "rubric": rubric_version(settings.judge),
    }
    run.store.write_json(run.manifest(task, "judge"), manifest)
    limit = settings.task(task).gate.max_judge_error_share
    if texts and counts[JudgeVerdict.ERROR] / texts > limit:
        raise JudgeError(
            f"the judge gave no readable answer for {counts[JudgeVerdict.ERROR]} of {texts} texts of {task} (allowed "
            f"{limit:.1%}); readable answers are kept, running this again asks for the others only. If it stays so, "
            "raise max_tokens in judge.yaml or use a stronger judge"
        )
    return manifest
