"""Validation of one bin: work items joined with their generations, one verdict per listing, one aggregate for the gate."""

from __future__ import annotations

import logging
import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeGuard

from include.partitions import PartWriter
from include.records import ESCALATED, Generation, QuarantinedRow, RunCounts, Verdict, WorkItem
from include.runs import Run
from include.validation.breaker import trip
from include.validation.checker import Checker, Outcome
from include.validation.view import Source

log = logging.getLogger(__name__)

STAGE = "validate"
PROGRESS_SECONDS = 15.0
# Validated at once. What is known of more rows leaves the processor's caches; of texts of the most characters that extraction lets
# through, these hold some 160 MB.
BATCH_ROWS = 64


_Answer = tuple[str, str, str, bool]  # text, finish reason, error, and whether the row is at fault for it
_COLUMNS = "text_id TEXT PRIMARY KEY, text BLOB, finish_reason TEXT, error TEXT, quarantine INT"
_INSERT = (  # later rows win, but an error never replaces an answer
    "INSERT INTO answers VALUES (?, ?, ?, ?, ?) ON CONFLICT (text_id) DO UPDATE SET text = excluded.text, "
    "finish_reason = excluded.finish_reason, error = excluded.error, quarantine = excluded.quarantine "
    "WHERE excluded.error = '' OR answers.error <> ''"
)


@contextmanager
def _answers(generations: Iterator[Generation]) -> Iterator[Callable[[str], _Answer | None]]:
    """Looks generations up by text_id, in a temporary SQLite file so that memory does not grow with the bin."""
    with (
        tempfile.TemporaryDirectory(prefix="answers-") as folder,
        closing(sqlite3.connect(Path(folder) / "answers.sqlite", isolation_level=None)) as database,
    ):
        database.executescript(
            f"PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; CREATE TABLE answers ({_COLUMNS}) WITHOUT ROWID"
        )
        rows = (
            (g.text_id, g.text.encode("utf-8", "surrogatepass"), g.finish_reason, g.error, g.quarantine)
            for g in generations
        )
        database.executemany(_INSERT, rows)

        def get(text_id: str) -> _Answer | None:
            found = database.execute("SELECT * FROM answers WHERE text_id = ?", (text_id,)).fetchone()
            return found and (found[1].decode("utf-8", "surrogatepass"), found[2], found[3], bool(found[4]))

        yield get


def _no_answer(text_id: str) -> _Answer | None:
    return None


class _Tally:
    """What the manifest says of the bin."""

    def __init__(self) -> None:
        self.counts = RunCounts()
        self.aggregate: Counter[tuple[str, str, str]] = Counter()
        self.reasons: Counter[str] = Counter()  # every reason of every row; a row can have several
        self.repairs: Counter[str] = Counter()
        self.flags: Counter[str] = Counter()
        self.rejected = 0  # by validators, of the answered

    def add(self, item: WorkItem, reason: str) -> None:
        """`reason` is empty for an accepted row and "errored" for one without an answer."""
        self.counts.extracted += 1
        self.aggregate[item.merchant_id, item.locale, reason] += 1
        if reason == "":
            self.counts.accepted += 1
        elif reason == "errored":
            self.counts.errored += 1
        else:
            self.counts.quarantine(reason)


@dataclass
class _Results:
    """Where the rows of one bin go."""

    tally: _Tally
    verdicts: PartWriter
    quarantine: PartWriter

    def unanswered(self, item: WorkItem, answer: _Answer | None) -> None:
        """A listing without an answer, or with an error; where the engine found the row at fault, it is quarantined."""
        text, _, error, row_at_fault = answer or ("", "", "", False)
        if not row_at_fault:
            self.tally.add(item, "errored")
            return
        reason, _, detail = error.partition(":")
        self.tally.add(item, reason.strip())
        self.quarantine.write(_quarantined(item, "generate", reason.strip(), detail.strip(), text))

    def judged(self, item: WorkItem, outcome: Outcome, finish_reason: str, *flags: str) -> None:
        """A listing with what the validators say of its answer; a rejected one is quarantined, too."""
        ok, reasons, output = outcome.ok, outcome.reasons, storable(outcome.output)
        flags += outcome.flags
        judged: dict[str, Any] = {"output": output, "finish_reason": finish_reason, "ok": ok, "reasons": reasons}
        of_item = {name: getattr(item, name) for name in WorkItem.__dataclass_fields__}
        self.verdicts.write(Verdict(**of_item, **judged, repairs=outcome.repairs, flags=flags))
        self.tally.repairs.update(outcome.repairs)
        self.tally.flags.update(flags)
        self.tally.reasons.update(reasons)
        self.tally.add(item, "" if ok else reasons[0])
        if not ok:
            self.tally.rejected += 1
            self.quarantine.write(_quarantined(item, STAGE, reasons[0], ", ".join(reasons[1:]), output))


def validate(run: Run, task: str, bin_index: int) -> dict[str, Any]:
    """Validates one bin and returns its manifest, which is also written; run again, it replaces all that it wrote.

    A work item without a generation, or with an error that is ours, is `errored`; one whose own fault the engine found is
    quarantined under that reason; the others get the validators' verdict.
    """
    started = time.monotonic()
    store, folders = run.store, (run.verdicts(task, bin_index), run.quarantine(task, STAGE, bin_index))
    for stale in (run.manifest(task, STAGE, bin_index), *folders):
        store.remove(stale)
    larger = store.list(run.escalated(task, bin_index)) if run.spec.settings.task(task).escalation else []
    checker = Checker.of(run.spec.settings, task)
    rows_per_part = max(run.spec.settings.pipeline.rows_per_part, 10_000)
    tally, last = _Tally(), started
    with (
        _answers(store.read_rows(run.generated(task, bin_index), Generation)) as answer_of,
        _answers(store.read_rows(larger, Generation)) if larger else nullcontext(_no_answer) as larger_answer_of,
        PartWriter(store, folders[0], Verdict, rows_per_part) as verdicts,
        PartWriter(store, folders[1], QuarantinedRow, rows_per_part) as quarantine,
    ):
        results = _Results(tally, verdicts, quarantine)
        items = store.read_rows(run.work_parts(task, bin_index), WorkItem)
        while batch := list(islice(items, BATCH_ROWS)):
            rows = [(item, Source.of(item), answer_of(item.text_id)) for item in batch]
            outcomes = iter(checker.check_all((s, a[0], a[1]) for _, s, a in rows if _is_text(a)))
            for item, source, answer in rows:
                if not _is_text(answer):
                    results.unanswered(item, answer)
                    continue
                outcome = next(outcomes)
                if not outcome.ok and (larger_answer := larger_answer_of(item.text_id)) is not None:
                    # A merchant's own rules may refuse a text that others' accept.
                    mended = checker.check(source, larger_answer[0], larger_answer[1])
                    if mended.ok:
                        results.judged(item, mended, larger_answer[1], ESCALATED)
                        continue
                results.judged(item, outcome, answer[1])
            if time.monotonic() - last > PROGRESS_SECONDS:
                last = time.monotonic()
                rate = tally.counts.extracted / (last - started)
                log.info("%s bin %d: %d listings validated, %.0f/s", task, bin_index, tally.counts.extracted, rate)
    return _finish(run, task, bin_index, tally, time.monotonic() - started)


def _is_text(answer: _Answer | None) -> TypeGuard[_Answer]:
    """Whether there is something to validate: an answer that is no error."""
    return answer is not None and not answer[2]


def storable(text: str) -> str:
    """Text that Parquet and databases can hold: lone surrogates become U+FFFD. Only rejected texts can hold any."""
    return text.encode("utf-8", "replace").decode() if not text.isascii() else text


def _quarantined(item: WorkItem, stage: str, reason: str, detail: str, output: str) -> QuarantinedRow:
    keys = {name: getattr(item, name) for name in ("merchant_id", "listing_id", "staleness_key")}
    return QuarantinedRow(**keys, stage=stage, reason=reason, detail=detail, output=storable(output))


def _finish(run: Run, task: str, bin_index: int, tally: _Tally, seconds: float) -> dict[str, Any]:
    tally.counts.check_closed()
    answered = tally.counts.accepted + tally.rejected
    top = max(tally.counts.quarantined.items(), key=lambda pair: pair[1], default=("", 0))[0]
    marker = trip(run, task, bin_index, answered=answered, rejected=tally.rejected, reason=top)
    if marker is not None:
        log.error(
            "%s bin %d: %.0f%% of %d answers rejected, mostly %s, with engine profile %s: the other bins are told to stop",
            task, bin_index, 100 * marker.reject_rate, answered, marker.reason, marker.engine,
        )  # fmt: skip
    manifest = {
        "counts": tally.counts.to_dict(),
        "aggregate": [
            {"bin": bin_index, "merchant_id": merchant, "locale": locale, "reason": reason, "rows": rows}
            for (merchant, locale, reason), rows in sorted(tally.aggregate.items())
        ],
        "reasons": dict(sorted(tally.reasons.items())),
        "repairs": dict(sorted(tally.repairs.items())),
        "flags": dict(sorted(tally.flags.items())),
        "answered": answered,
        "rejected": tally.rejected,
        "stopped": None if marker is None else marker.model_dump(),
        "engine": run.engines(task)[bin_index],
        "seconds": round(seconds, 3),
    }
    run.store.write_json(run.manifest(task, STAGE, bin_index), manifest)
    log.info("%s bin %d: %d accepted, %d rejected, %d without an answer in %.1f s (run %s)", task, bin_index,
             tally.counts.accepted, tally.counts.quarantined_total, tally.counts.errored, seconds, run.spec.run_id)  # fmt: skip
    return manifest
