"""The judge at work: sampled texts in, JudgeScore parts out, with one retry of unreadable answers and resume."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, Protocol

from include.generation.engine import EngineError, Messages, Output, Request
from include.generation.metrics import device_seconds
from include.generation.progress import Progress
from include.generation.session import Session
from include.judging.confidence import clean_probability
from include.judging.rubric import (
    answer_schema,
    judge_messages,
    judge_values,
    not_evaluable,
    read_answer,
    rubric_version,
)
from include.partitions import PartWriter, Store
from include.records import JudgeScore, JudgeVerdict, SampledText
from include.runs import Run
from include.settings import EngineProfile, JudgeSettings, Settings, digest

log = logging.getLogger(__name__)

EXAMPLE_CHARS = 200  # of an unreadable answer, in the error
ERRORS_PART = "errors.parquet"  # judged again by the next call; readable answers are kept


class JudgeError(EngineError):
    """Too many texts got no readable answer from the judge; nothing can be said about tonight's copy."""

    def __init__(self, message: str) -> None:
        super().__init__(message, kind="judge_unreadable", retryable=True)


class Ask(Protocol):
    """Sends chat prompts, by key, to the judge's engine and yields the answers as they finish, in any order."""

    def __call__(
        self,
        prompts: Iterable[tuple[str, Messages]],
        sampling_params: Mapping[str, Any],
        progress: Progress | None = None,
    ) -> Iterator[Output]: ...

    def report(self) -> dict[str, Any]:
        """Figures of the session so far, for a manifest, with "requests_per_s"."""


OpenJudge = Callable[[Settings], AbstractContextManager[Ask]]


class SessionAsk:
    """Asks through a generation session."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def __call__(
        self,
        prompts: Iterable[tuple[str, Messages]],
        sampling_params: Mapping[str, Any],
        progress: Progress | None = None,
    ) -> Iterator[Output]:
        requests = (Request(id=key, messages=chat, sampling_params=sampling_params) for key, chat in prompts)
        return self._session.run(requests, progress=progress)

    def report(self) -> dict[str, Any]:
        return self._session.report()


@contextmanager
def open_judge(settings: Settings) -> Iterator[Ask]:
    """A session with the judge's engine profile, offline or an endpoint; the engine starts with the first prompt.

    Asking raises EngineError with the engine's own reason.
    """
    with Session(settings.engines[settings.judge.engine]) as session:
        yield SessionAsk(session)


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
    texts: Mapping[str, Mapping[str, str]], judge: JudgeSettings, ask: Ask, progress: Progress | None = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Judges texts given by id and template values; yields (id, JudgeScore fields and "stated", "attempts").

    Unreadable answers are asked again up to `judge.attempts` times and come last, as JudgeVerdict.ERROR.
    """
    pending = dict(texts)
    for attempt in range(1, max(1, judge.attempts) + 1):
        failed: dict[str, dict[str, Any]] = {}
        prompts = ((key, judge_messages(values, judge)) for key, values in pending.items())
        unanswered = set(pending)
        for raw in ask(prompts, sampling_params(judge, attempt), progress):
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
                failure = f"[engine: {raw.error}, {raw.detail}] " if raw.error else ""
                failed[raw.id] = fields | {"verdict": JudgeVerdict.ERROR, "raw": (failure + raw.text).strip()}
            else:
                yield raw.id, fields
        lost = {"verdict": JudgeVerdict.ERROR, "raw": "no answer", "stated": "", "attempts": attempt}
        failed |= dict.fromkeys(unanswered, lost)
        pending = {key: pending[key] for key in failed}
        if not pending:
            return
        log.info("%d of %d judge answers could not be read (attempt %d)", len(pending), len(texts), attempt)
    yield from failed.items()


def family(judge: EngineProfile, *writers: EngineProfile) -> dict[str, bool]:
    """Whether the judge is a writer itself, or another adapter of the same base: judges favour their own family."""
    same = [writer for writer in writers if judge.model_path() == writer.model_path()]
    return {"self_judged": any(judge.lora == writer.lora for writer in same), "same_base_model": bool(same)}


def judge_fingerprint(settings: Settings) -> str:
    """Everything about the judge that changes its answers: model, adapter, rubric, schema and sampling."""
    profile = settings.engines[settings.judge.engine]
    model = [profile.model, profile.revision, profile.lora, profile.lineage]
    return digest([model, rubric_version(settings.judge), sampling_params(settings.judge)])


def judge_parts(
    store: Store,
    folder: str,
    texts: Mapping[str, Mapping[str, str]],
    rows_of: Callable[[str], Iterable[JudgeScore]],
    settings: Settings,
    fingerprint: str,
    open_judge: OpenJudge,
) -> tuple[Counter[str], dict[str, Any]]:
    """Judges texts (template values by id) into JudgeScore parts of a folder.

    Returns what it did, as counts, and the engine session's figures (empty when no engine was needed).

    `rows_of` gives the rows that one text's answer fills. Texts that an earlier call with this fingerprint has answered
    are kept, other parts are removed, and no engine starts when nothing is left to ask.
    """
    store.remove(f"{folder}/{ERRORS_PART}")
    kept = store.valid_parts(folder, fingerprint=fingerprint)
    for path in set(store.list(folder)) - set(kept):
        store.remove(path)
    done = {row.text_id for row in store.read_rows(kept, JudgeScore)} & set(texts)
    pending = {key: values for key, values in texts.items() if key not in done}
    tally: Counter[str] = Counter(resumed=len(done))
    session: dict[str, Any] = {}
    errors: list[JudgeScore] = []
    metadata = {"fingerprint": fingerprint}
    first = max((int(path.rsplit("part-", 1)[1].split(".")[0]) for path in kept), default=-1) + 1

    def filled(key: str, fields: Mapping[str, Any]) -> list[JudgeScore]:
        known = {name: value for name, value in fields.items() if name not in ("stated", "attempts")}
        return [replace(row, **known) for row in rows_of(key)]

    with PartWriter(store, folder, JudgeScore, settings.pipeline.rows_per_part, metadata, first) as writer:
        for key in [key for key, values in pending.items() if not_evaluable(values)]:
            del pending[key]
            for row in filled(key, {"verdict": JudgeVerdict.NOT_EVALUABLE}):
                writer.write(row)
        if pending:
            with open_judge(settings) as ask:
                progress = Progress(log, "judge", len(pending))
                for key, fields in judge_texts(pending, settings.judge, ask, progress):
                    tally["retried"] += fields["attempts"] > 1
                    if fields["verdict"] is JudgeVerdict.ERROR:
                        errors += filled(key, fields)
                    else:
                        tally["disagreements"] += fields["stated"] != fields["verdict"].value
                        for row in filled(key, fields):
                            writer.write(row)
                    progress.add()
                progress.report()
                session = ask.report()
    tally["asked"] = len(pending)
    if errors:
        store.write_part(f"{folder}/{ERRORS_PART}", JudgeScore, errors, metadata)
    return tally, session


def score(run: Run, task: str, judge_opener: OpenJudge = open_judge) -> dict[str, Any]:
    """Judges the sample of one enhancement task; writes JudgeScore parts and manifest(task, "judge").

    Raises FileNotFoundError when no sample was drawn, and JudgeError, after writing everything, when the share of
    unreadable answers is above the gate's limit.
    """
    settings, store = run.spec.settings, run.store
    enhancement = settings.task(task)
    if not store.exists(run.manifest(task, "sample")):
        raise FileNotFoundError(f"{store.url} has no sample for {task}: run `python -m include.judging sample` first")
    drawn: dict[str, list[SampledText]] = {}
    for row in store.read_rows(run.sampled(task), SampledText):
        drawn.setdefault(row.text_id, []).append(row)
    identity = [(r.text_id, r.stratum, r.weight, digest(r.output)) for group in drawn.values() for r in group]

    def rows_of(key: str) -> Iterator[JudgeScore]:
        for r in drawn[key]:
            yield JudgeScore(
                text_id=key, stratum=r.stratum, weight=r.weight, listings=r.listings, verdict=JudgeVerdict.ERROR
            )

    tally, session = judge_parts(
        store,
        run.judged(task),
        {key: judge_values(group[0], enhancement.output_field) for key, group in drawn.items()},
        rows_of,
        settings,
        digest([judge_fingerprint(settings), identity]),
        judge_opener,
    )
    return _finish(run, task, len(drawn), tally, session)


def _finish(run: Run, task: str, texts: int, tally: Counter[str], session: Mapping[str, Any]) -> dict[str, Any]:
    settings = run.spec.settings
    judge = settings.engines[settings.judge.engine]
    writers = [settings.engines[name] for name in settings.task(task).routes]
    verdicts, unread = dict[str, JudgeVerdict](), ""
    for row in run.store.read_rows(run.judged(task), JudgeScore):
        verdicts[row.text_id] = row.verdict
        if row.verdict is JudgeVerdict.ERROR and not unread:
            unread = row.raw[:EXAMPLE_CHARS]
    counts = Counter(verdicts.values())
    manifest = {
        "sampled": texts,
        "evaluable": counts[JudgeVerdict.PASS] + counts[JudgeVerdict.FAIL],
        "passed": counts[JudgeVerdict.PASS],
        "errors": counts[JudgeVerdict.ERROR],
        "not_evaluable": counts[JudgeVerdict.NOT_EVALUABLE],
        "unparsable_share": counts[JudgeVerdict.ERROR] / texts if texts else 0.0,
        **{name: tally[name] for name in ("asked", "retried", "resumed", "disagreements")},
        "pairs_per_s": session.get("requests_per_s"),
        "session": dict(session),
        "device_s": device_seconds(run.store.read_json(run.manifest(task, "judge")), session),
        "model": judge.lineage,
        "writer": " and ".join(writer.lineage for writer in writers),
        **family(judge, *writers),
        "rubric": rubric_version(settings.judge),
    }
    run.store.write_json(run.manifest(task, "judge"), manifest)
    limit = settings.task(task).gate.max_judge_error_share
    if texts and counts[JudgeVerdict.ERROR] / texts > limit:
        raise JudgeError(
            f"the judge gave no readable answer for {counts[JudgeVerdict.ERROR]} of {texts} texts of {task} (allowed "
            f"{limit:.1%}), such as {unread or 'an empty one'!r}; readable answers are kept, running this again asks for the "
            "others only. If it stays so, raise max_tokens in judge.yaml or use a stronger judge; where the engine failed, "
            "its own lines say why"
        )
    return manifest
