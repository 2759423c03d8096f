"""The quarantined listings of one run and enhancement task, filtered, a page at a time or as a stream of CSV.

They are read from the run's parts, which hold every refusal of the run, also of one that published nothing. (The
warehouse's table holds a listing's last refusal, of runs that were loaded.)
"""

from __future__ import annotations

import csv
import dataclasses
import io
import posixpath
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from include.partitions import Store
from include.records import QuarantinedRow
from include.runs import Run

ROWS = 50  # on a page
MAX_SEARCHED = 500_000  # rows that one page reads at most: about two seconds
_COLUMNS = [f.name for f in dataclasses.fields(QuarantinedRow)]
# What spreadsheets take for a formula, with the full-width forms that some of them accept.
_FORMULA, _CONTROL = tuple("=+-@＝＋－＠"), tuple("\t\r\n")


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which rows: of this reason, and with this text in the merchant's or the listing's id; empty takes all."""

    reason: str = ""
    text: str = ""

    def rows(self, batch: pa.RecordBatch) -> list[int]:
        """Positions of the wanted rows within a batch."""
        mask = pa.repeat(True, batch.num_rows)
        if self.reason:
            mask = pc.and_(mask, pc.equal(batch["reason"], self.reason))
        if self.text:
            found = [
                pc.match_substring(batch[name], self.text, ignore_case=True) for name in ("merchant_id", "listing_id")
            ]
            mask = pc.and_(mask, pc.or_(*found))
        return list(pc.indices_nonzero(mask).to_pylist())


@dataclass(frozen=True, slots=True)
class RefusedPage:
    """`after` continues behind these rows and is empty at the end; `searched` counts the rows that were looked at."""

    rows: list[QuarantinedRow]
    after: str
    searched: int


def parts(store: Store, task: str) -> list[str]:
    """Quarantine parts of every stage and bin, in a stable order. One listing of the folder tree."""
    folder = posixpath.dirname(Run.quarantine(task, ""))
    store.fs.invalidate_cache()
    found = (path.removeprefix(store.root).lstrip("/") for path in store.fs.find(store.path(folder)))
    return sorted(p for p in found if p.endswith(".parquet") and not posixpath.basename(p).startswith("."))


def parse_after(after: str) -> tuple[str, int]:
    """The cursor `part:row`. Raises ValueError when it is none."""
    part, _, row = after.rpartition(":")
    return part, int(row) if after else 0


def refused_page(store: Store, task: str, wanted: Wanted, *, after: str = "", limit: int = ROWS) -> RefusedPage:
    """The next `limit` wanted rows. Stops early, with a cursor to go on from, once it has read MAX_SEARCHED rows.

    Raises ValueError for a cursor that is none and TornPartError for a part that cannot be read.
    """
    first, skip = parse_after(after)
    rows: list[QuarantinedRow] = []
    searched = 0
    for part in parts(store, task):
        if part < first:
            continue
        start = 0
        for batch in store.read_batches([part], _COLUMNS):
            done = skip - start if part == first else 0
            end = start + batch.num_rows
            if done >= batch.num_rows:
                start = end
                continue
            for index in wanted.rows(batch):
                if index < done:
                    continue
                if len(rows) == limit:
                    return RefusedPage(rows, f"{part}:{start + index}", searched + index - max(done, 0))
                rows.extend(QuarantinedRow(**values) for values in batch.slice(index, 1).to_pylist())
            searched += batch.num_rows - max(done, 0)
            start = end
            if searched >= MAX_SEARCHED:
                return RefusedPage(rows, f"{part}:{start}", searched)
    return RefusedPage(rows, "", searched)


def _cell(text: str) -> str:
    """Text that no spreadsheet runs as a formula: an apostrophe stands before what looks like one."""
    return f"'{text}" if text.startswith(_CONTROL) or text.lstrip().startswith(_FORMULA) else text


def csv_lines(store: Store, task: str, wanted: Wanted) -> Iterator[str]:
    """All wanted rows as CSV, one chunk for each batch that is read; holds one batch at a time."""
    yield ",".join(_COLUMNS) + "\r\n"
    for batch in store.read_batches(parts(store, task), _COLUMNS):
        if chosen := wanted.rows(batch):
            text = io.StringIO()
            writer = csv.writer(text)
            for values in batch.take(pa.array(chosen)).to_pylist():
                writer.writerow([_cell(values[name]) for name in _COLUMNS])
            yield text.getvalue()
