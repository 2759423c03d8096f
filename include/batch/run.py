"""Runs one request file on an engine: results and errors in the Batch API's format, only what is missing, memory flat."""

from __future__ import annotations

import hashlib
import logging
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from include import promotions
from include.batch.requests import LineError, custom_id_of, lines, parsed, request_of
from include.batch.results import GrowingFile, completion, error_line, result_line
from include.generation.engine import Output, Request
from include.generation.fingerprint import model_identity
from include.generation.leases import device_name
from include.generation.preflight import check_profile
from include.generation.progress import Progress
from include.generation.session import Session
from include.partitions import Store, TornPartError
from include.settings import EngineProfile, Settings, SettingsError, digest

log = logging.getLogger(__name__)

ATTEMPTS = 3  # of a request that failed by no fault of its own
TOLD = 20  # faulty lines that the log shows one by one; the error file holds all
# The API's code of a request that the engine refuses, and what to do about it.
_REFUSED = {
    "input_too_long": ("context_length_exceeded", "shorten the messages or lower max_tokens"),
    "request_rejected": ("invalid_request", "mend the request"),
}


@dataclass(slots=True)
class _Pending:
    custom_id: str
    model: str
    request: Request
    attempts: int = 1


@dataclass(slots=True)
class _Counts:
    completed: int = 0
    failed: int = 0
    resumed: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    errors: Counter[str] = field(default_factory=Counter)


class BatchRun:
    """See `run_batch`."""

    def __init__(self, profile: EngineProfile, source: Path, out: Path, errors: Path, aliases: Sequence[str]) -> None:
        if not source.is_file():
            raise FileNotFoundError(f"no request file {source}: give --in a file in the Batch API's request format")
        if len({source.resolve(), out.resolve(), errors.resolve()}) < 3:
            raise SettingsError("--in, --out and --errors name one file twice: give each its own")
        self.profile, self.source, self.out, self.errors, self.aliases = profile, source, out, errors, aliases
        check_profile(profile)
        sha256, total = _digest(source)
        identity = [sha256, model_identity(profile), profile.lineage, profile.sampling_params, sorted(aliases)]
        self.fingerprint = digest(identity)
        self.told: dict[str, Any] = {"input": str(source), "sha256": sha256, "fingerprint": self.fingerprint}
        self.counts = _Counts()
        self.progress = Progress(log, source.name, total)
        self.pending: dict[str, _Pending] = {}
        self.done: set[int] = set()
        self.model = ""

    def run(self, session: Session) -> dict[str, Any]:
        """Answers what is missing and publishes the files; see `run_batch`."""
        manifest = Store(str(self.out.parent)), f"{self.out.name}.manifest.json"
        with ExitStack() as held:
            self.results = GrowingFile(self.out, self.fingerprint)
            held.callback(self.results.close)
            self.faults = GrowingFile(self.errors, self.fingerprint)
            held.callback(self.faults.close)
            if (finished := self._finished(*manifest)) is not None:
                log.info("%s is complete; nothing to do", self.out)
                for file in (self.results, self.faults):
                    file.close(drop=True)
                return finished
            self.results.recover(self._recovered)
            self.faults.recover(self._recovered)
            self.progress.skip(len(self.done))
            self.counts.resumed = len(self.done)
            again: deque[Request] = deque()
            for output in session.run(self._requests(), again=again, progress=self.progress):
                self._take(output, again)
            self.progress.report()
            manifest[0].remove(manifest[1])  # an earlier batch's: it must not stand beside this one's files
            for file in (self.faults, self.results):
                file.publish()
            found = self._manifest(session)
            manifest[0].write_json(manifest[1], found)
        return found

    def _finished(self, store: Store, name: str) -> dict[str, Any] | None:
        """The manifest of an earlier run of the same, whose files are still there."""
        try:
            found = store.read_json(name)
        except TornPartError:
            return None
        current = isinstance(found, dict) and found.get("fingerprint") == self.fingerprint
        return found if current and self.out.exists() and self.errors.exists() else None

    def _recovered(self, number: int, line: Mapping[str, Any]) -> None:
        self.done.add(number)
        if (response := line.get("response")) and response["status_code"] == 200:
            usage = response["body"]["usage"]
            self._count(usage["prompt_tokens"], usage["completion_tokens"])
        else:
            self.counts.failed += 1
            self.counts.errors[line["error"]["code"]] += 1

    def _count(self, prompt_tokens: int, output_tokens: int) -> None:
        self.counts.completed += 1
        self.counts.prompt_tokens += prompt_tokens
        self.counts.output_tokens += output_tokens

    def _requests(self) -> Iterator[Request]:
        """One request per line that has no result yet; a faulty line goes to the error file on the way.

        An id is remembered as its 16-byte digest: about 100 bytes a line whatever the ids' length, 5 MB for the API's
        50,000, and no second place on disk to keep.
        """
        seen: set[bytes] = set()
        with open(self.source, "rb") as file:
            for number, raw in lines(file):
                try:
                    pending = self._checked(number, raw, seen)
                except LineError as error:
                    if number not in self.done:
                        self._fail(number, custom_id_of(raw), error)
                    continue
                if number in self.done:
                    continue
                self.pending[pending.request.id] = pending
                yield pending.request

    def _checked(self, number: int, raw: bytes | None, seen: set[bytes]) -> _Pending:
        line = parsed(raw)
        key = hashlib.blake2b(line.custom_id.encode(), digest_size=16).digest()
        if key in seen:
            raise LineError(
                "duplicate_custom_id",
                f"custom_id {line.custom_id!r} stands on an earlier line: make it its own",
                param="custom_id",
            )
        seen.add(key)
        model = line.body.get("model")
        if not isinstance(model, str) or not model:
            raise LineError(
                "missing_required_parameter",
                "body.model is missing or no text: name the model",
                param="model",
                answered=True,
            )
        if self.aliases and model not in self.aliases:
            raise LineError("model_not_found", f"model {model!r} is not served here: name one of {', '.join(self.aliases)}, or add --model-alias {model}", param="model", answered=True)  # fmt: skip
        self.model = self.model or model
        if model != self.model:
            raise LineError("mismatched_model", f"model {model!r} differs from {self.model!r}, the first one: one file, one model; split the file", param="model")  # fmt: skip
        return _Pending(
            line.custom_id, model, request_of(number, line.body, self.profile.sampling_params, self._check_schema)
        )

    def _check_schema(self, schema: Mapping[str, Any]) -> None:
        """Where the engine is ours, the grammar is made here: one that cannot be made must not reach the engine."""
        if self.profile.kind != "vllm":
            return
        import json

        from include.generation.vllm_engine import json_grammar

        try:
            json_grammar(json.dumps(schema))
        except Exception as error:  # xgrammar's own kinds
            told = " ".join(str(error).split())[:200]
            raise LineError("invalid_json_schema", f"response_format: no grammar can be made of the schema ({told}): simplify it", param="response_format", answered=True) from error  # fmt: skip

    def _take(self, output: Output, again: deque[Request]) -> None:
        pending, number = self.pending[output.id], int(output.id)
        if output.error and not output.row_at_fault and pending.attempts < ATTEMPTS:
            pending.attempts += 1
            again.append(pending.request)
            return
        del self.pending[output.id]
        if output.error:
            code, advice = _REFUSED.get(output.error, (output.error, "send the line again in a new file"))
            message = f"{output.detail or output.error}: {advice}"
            self._fail(number, pending.custom_id, LineError(code, message, answered=output.error in _REFUSED))
            return
        name = f"{self.fingerprint}-{number}"
        alternatives = int(pending.request.sampling_params.get("logprobs", 0))
        body = completion(output, pending.model, name, self.fingerprint, alternatives)
        self.results.write(result_line(name, pending.custom_id, body))
        self._count(output.prompt_tokens, output.output_tokens)
        self.progress.add(output.output_tokens)

    def _fail(self, number: int, custom_id: str | None, error: LineError) -> None:
        self.counts.failed += 1
        self.counts.errors[error.code] += 1
        if self.counts.failed <= TOLD:
            log.warning("line %d: %s: %s", number, error.code, error)
        self.faults.write(error_line(f"{self.fingerprint}-{number}", number, custom_id, error))
        self.progress.skip()

    def _manifest(self, session: Session) -> dict[str, Any]:
        counts, report = self.counts, session.report()
        total = counts.completed + counts.failed
        log.info(
            "%s: %d requests, %d completed, %d failed %s",
            self.out,
            total,
            counts.completed,
            counts.failed,
            dict(counts.errors),
        )
        return self.told | {
            "output": str(self.out),
            "errors": str(self.errors),
            "model": self.model,
            "request_counts": {"total": total, "completed": counts.completed, "failed": counts.failed},
            "error_codes": dict(counts.errors),
            "resumed": counts.resumed,
            "usage": {
                "input_tokens": counts.prompt_tokens,
                "output_tokens": counts.output_tokens,
                "total_tokens": counts.prompt_tokens + counts.output_tokens,
            },
            "seconds": report["busy_s"],
            "requests_per_s": report["requests_per_s"],
            "session": report,
        }


def _digest(path: Path) -> tuple[str, int]:
    """SHA-256 of a file and about how many lines it has."""
    found, count = hashlib.sha256(), 0
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            found.update(block)
            count += block.count(b"\n")
    return found.hexdigest(), count


def run_batch(
    settings: Settings, engine: str, source: Path, out: Path, errors: Path, aliases: Sequence[str] = ()
) -> dict[str, Any]:
    """Runs a Batch API request file on an engine profile; writes results, errors and `<out>.manifest.json`, returns the latter.

    The files grow as `.part` and get their names when every line has its result or error. An interrupted run keeps what
    it wrote, and the same call does the rest; another input, profile or list of model names does everything again.
    `aliases` are the model names that the file may ask for; none: any one. Counts and `usage` are of the whole file,
    `seconds` and `requests_per_s` of this call, engine starts left out.

    Raises SettingsError for an unknown profile, FileNotFoundError without an input, EngineError when the engine cannot
    do it or another process writes the same files.
    """
    if engine not in settings.engines:
        raise SettingsError(f"no engine profile {engine!r}; configured are {sorted(settings.engines)}")
    batch = BatchRun(promotions.in_force(settings, engine, device_name()), source, out, errors, aliases)
    with Session(batch.profile) as session:
        return batch.run(session)
