"""A hosted batch's stored results beside a run's own copy, joined by text id.

The ids of both sides stand in a temporary SQLite file, so that memory holds the sample and no more.
"""

from __future__ import annotations

import json
import os
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from include.batch.requests import custom_id_of, lines
from include.judging.sampling import draw_key
from include.records import ESCALATED, Generation, WorkItem
from include.runs import Run
from include.settings import SettingsError
from include.validation.stage import storable

NAMED = 10  # custom ids of each fault that the report names; the file has all
_MISSING, _FAILED, _ANSWERED = 0, 1, 2
_ANSWERERS = {(0, 0): "neither", (0, 1): "only_incumbent", (1, 0): "only_ours", (1, 1): "both"}
_TABLES = """
PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF;
CREATE TABLE texts (text_id TEXT PRIMARY KEY, draw INT, ours INT DEFAULT 0, theirs INT DEFAULT 0) WITHOUT ROWID;
CREATE TABLE names (custom_id TEXT PRIMARY KEY, text_id TEXT) WITHOUT ROWID;
"""


class Stored(NamedTuple):
    """One line of a result file; `fault` says why it holds no copy."""

    custom_id: str | None
    text: str = ""
    finish_reason: str = ""
    prompt_tokens: int = 0
    output_tokens: int = 0
    fault: str = ""


@dataclass(slots=True)
class Pair:
    """One text on both sides; ours may lack an answer, the incumbent's never does."""

    item: WorkItem
    theirs: Stored
    ours: Generation | None = None


@dataclass(slots=True)
class Joined:
    """`ids` counts custom ids by what became of them, `texts` the run's texts by who answered."""

    pairs: list[Pair] = field(default_factory=list)
    ids: Counter[str] = field(default_factory=Counter)
    texts: Counter[str] = field(default_factory=Counter)
    named: dict[str, list[str]] = field(default_factory=dict)
    generated: bool = False  # whether the run has any answer of its own


@dataclass(frozen=True, slots=True)
class _Text:
    text_id: str


@dataclass(frozen=True, slots=True)
class _Own:
    text_id: str
    error: str


@dataclass(frozen=True, slots=True)
class _Flagged:
    text_id: str
    flags: tuple[str, ...]


def stored(raw: bytes | None) -> Stored:
    """Reads one line as the Batch API writes it. Never raises."""
    custom_id = custom_id_of(raw)
    try:
        line = json.loads(raw or b"null")
        response, error = line.get("response") or {}, line.get("error")
        body, status = response.get("body") or {}, response.get("status_code")
        if error or status != 200:
            told = error or body.get("error") or {}
            return Stored(custom_id, fault=f"status {status}: {told.get('code')}: {told.get('message')}"[:300])
        choice, usage = body["choices"][0], body.get("usage") or {}
        if not isinstance(text := choice["message"].get("content"), str):
            return Stored(custom_id, fault=f"no text: {choice['message'].get('refusal')}"[:300])
        read, written = (int(usage.get(name) or 0) for name in ("prompt_tokens", "completion_tokens"))
        return Stored(custom_id, storable(text), str(choice.get("finish_reason") or "stop"), read, written)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
        return Stored(custom_id, fault=f"not a result line of the Batch API: {error!r}"[:300])


class _Faults:
    """Every custom id that gives no pair, in a JSON Lines file that gets its name when it is whole."""

    def __init__(self, path: Path, found: Joined) -> None:
        self.path, self.part, self.found = path, path.with_name(f".{path.name}.{os.getpid()}"), found
        self.file = open(self.part, "w", encoding="utf-8", errors="replace")  # noqa: SIM115

    def add(self, fault: str, custom_id: str | None, line: int | None, detail: str = "") -> None:
        row = {"fault": fault, "custom_id": custom_id, "line": line, "detail": detail}
        self.file.write(json.dumps(row, ensure_ascii=False) + "\n")
        self.found.ids[fault] += 1
        if len(names := self.found.named.setdefault(fault, [])) < NAMED:
            names.append(custom_id if custom_id is not None else f"line {line}")

    def publish(self) -> None:
        self.file.close()
        os.replace(self.part, self.path)


@contextmanager
def _database() -> Iterator[sqlite3.Connection]:
    with (
        tempfile.TemporaryDirectory(prefix="shadow-") as folder,
        closing(sqlite3.connect(Path(folder) / "texts.sqlite", isolation_level=None)) as database,
    ):
        database.executescript(_TABLES)
        yield database


def _names(mapping: Path) -> Iterator[tuple[str, str]]:
    with open(mapping, encoding="utf-8-sig") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    row = json.loads(line)
                    yield str(row["custom_id"]), str(row["text_id"])
                except (ValueError, KeyError, TypeError) as error:
                    raise SettingsError(
                        f"{mapping}, line {number}: {error!r}; needs an object with custom_id and text_id"
                    ) from error


def answers_of(run: Run, task: str, wanted: Collection[str]) -> dict[str, Generation]:
    """A run's answers to these texts, a larger model's where validation took it; the latest of several, none for an error."""
    found: dict[str, Generation] = {}
    for index in run.own_bins(task):
        verdicts = run.store.read_rows(run.verdicts(task, index), _Flagged)
        mended = {row.text_id for row in verdicts if ESCALATED in row.flags}
        for folder, taken in ((run.generated(task, index), wanted), (run.escalated(task, index), mended)):
            for row in run.store.read_rows(folder, Generation):
                if row.text_id in wanted and row.text_id in taken and not row.error:
                    found[row.text_id] = row
    return found


def join(
    run: Run, task: str, results: Path, listings: int, faults: Path, *, mapping: Path | None = None, seed: int = 8
) -> Joined:
    """Draws at most `listings` of the texts of the run's own engine that the result file answers, evenly, by a seeded
    hash (bottom-k).

    `mapping` is a JSON Lines file of custom_id and text_id; without one the custom id is the text id. Every other line,
    and every text without a line, goes to the file `faults` with its reason. The first answer to a text counts. Raises
    FileNotFoundError without a result file or a plan, SettingsError for an unknown task or a line of `mapping` that is none.
    """
    run.spec.settings.task(task)
    bins, found = run.own_bins(task), Joined()
    with _database() as database, open(results, "rb") as file:
        ids = (row.text_id for index in bins for row in run.store.read_rows(run.work_parts(task, index), _Text))
        rows: Iterator[tuple[Any, ...]] = ((key, draw_key(str(seed), key) >> 1) for key in ids)
        database.executemany("INSERT OR IGNORE INTO texts (text_id, draw) VALUES (?, ?)", rows)
        answered = (row for index in bins for row in run.store.read_rows(run.generated(task, index), _Own))
        rows = ((row.text_id,) for row in answered if not row.error)
        database.executemany("UPDATE texts SET ours = 1 WHERE text_id = ?", rows)
        if mapping:
            database.executemany("INSERT OR REPLACE INTO names VALUES (?, ?)", _names(mapping))

        def text_of(custom_id: str | None) -> str | None:
            if custom_id is None or not mapping:
                return custom_id
            row = database.execute("SELECT text_id FROM names WHERE custom_id = ?", (custom_id,)).fetchone()
            return str(row[0]) if row else None

        out = _Faults(faults, found)
        for number, raw in lines(file):
            _take(database, number, stored(raw), text_of, found, out)
        for (text_id,) in database.execute("SELECT text_id FROM texts WHERE theirs = ?", (_MISSING,)):
            out.add("missing", text_id, None, "the run has this text, the file no line of it")
        out.publish()
        who = "SELECT ours, theirs = ?, COUNT(*) FROM texts GROUP BY 1, 2"
        for ours, theirs, count in database.execute(who, (_ANSWERED,)):
            found.texts[_ANSWERERS[ours, theirs]] = count
        found.generated = found.texts["both"] + found.texts["only_ours"] > 0
        drawn = "SELECT text_id FROM texts WHERE theirs = ? ORDER BY draw, text_id LIMIT ?"
        wanted = dict.fromkeys(row[0] for row in database.execute(drawn, (_ANSWERED, listings)))
        items: dict[str, WorkItem] = {}
        for index in bins:
            for item in run.store.read_rows(run.work_parts(task, index), WorkItem):
                if item.text_id in wanted:
                    items.setdefault(item.text_id, item)
        taken: dict[str, Stored] = {}
        file.seek(0)
        for _, raw in lines(file):
            line = stored(raw)
            if not line.fault and (text_id := text_of(line.custom_id)) in wanted:
                taken.setdefault(str(text_id), line)
    own = answers_of(run, task, wanted)
    found.pairs = [Pair(items[key], taken[key], own.get(key)) for key in wanted]
    return found


def _take(database: sqlite3.Connection, number: int, line: Stored, text_of: Any, found: Joined, out: _Faults) -> None:
    """Sorts one line in; each is counted exactly once."""
    if line.custom_id is None:
        return out.add("unreadable", None, number, line.fault or "no custom_id")
    text_id = text_of(line.custom_id)
    known = database.execute("SELECT theirs FROM texts WHERE text_id = ?", (text_id,)).fetchone()
    if known is None:
        return out.add("unknown", line.custom_id, number, "no text of the run")
    state = _FAILED if line.fault else _ANSWERED
    if state > known[0]:
        database.execute("UPDATE texts SET theirs = ? WHERE text_id = ?", (state, text_id))
    if known[0] != _MISSING:
        told = "an earlier line failed, this answer counts" if state > known[0] else "an earlier line counts"
        return out.add("duplicated", line.custom_id, number, told)
    if line.fault:
        return out.add("failed", line.custom_id, number, line.fault)
    found.ids["answered"] += 1
    return None
