"""One reader's work: every row of its part of the source gets its state for every enhancement task.

The states are decided in this order: quarantined (the row cannot be a listing, or its key came before), deferred (its
merchant opted out), holdout, deferred (pinned by a person), unchanged (current copy or an earlier quarantine under the same
staleness key), quarantined (no text to work from), deferred (row limit); the rest is work.

A row whose source hash stands beside its current copy, for every enhancement task, would come out as unchanged: that is
asked first, and of such a row nothing is cleaned or hashed but its key.
"""

from __future__ import annotations

import gc
import logging
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

from include.extraction import keys as keying
from include.extraction.catalog import Window
from include.extraction.cleaning import LoneSurrogateError, clean, is_plain
from include.extraction.keys import Keys, says_something, short_hash
from include.extraction.listings import MAX_ID_CHARS, CleanListing, RowError, as_text, to_listing, to_utc
from include.extraction.shards import ShardWriter
from include.extraction.sources import Source
from include.partitions import PartWriter
from include.records import EndedCopy, QuarantinedRow, RunCounts, SameCopy
from include.runs import Run
from include.warehouse.known import Lookup, Standing
from include.warehouse.seen import SeenListings

log = logging.getLogger(__name__)

STAGE = "extract"
MISSING_TEXT, DUPLICATE = "missing_text", "duplicate_listing"
CHANGED_SINCE = "changed_since"
_BATCHES_PER_COLLECTION = 8  # hardly anything of a batch is in a cycle
_PARTS_PER_READER = 100_000  # part numbers of reader n start at n times this
# Types whose representation is their whole value; another's may be a mere address, which some day another value has.
_SHOWN_WHOLE = frozenset([str, type(None), int, float, bool, bytes, Decimal, UUID, dict, list])
_NOTED_PER_READER = 200_000  # source hashes that one night adds to standing copy, each an update of a published row


def ended_folder(task: str) -> str:
    """Where the listings of one enhancement task stand whose copy ends without a new one."""
    return f"{Run.work(task)}/ended"


def ended(listing: CleanListing, reason: str) -> EndedCopy:
    return EndedCopy(
        merchant_id=listing.merchant_id,
        listing_id=listing.listing_id,
        locale=listing.locale,
        source_updated_at=listing.source_updated_at,
        reason=reason,
    )


class _Refused(NamedTuple):
    """A row that cannot be a listing, with a key that stays the same as long as the row does."""

    merchant_id: str
    listing_id: str
    staleness_key: str
    reason: str
    detail: str


class _Row(NamedTuple):
    """A row on its way; its listing is None as long as it need not be cleaned."""

    raw: Sequence[object]
    merchant_id: str
    listing_id: str
    updated: datetime
    hashes: list[str]  # source hashes, by enhancement task
    listing: CleanListing | None = None


class _Chosen(NamedTuple):
    listing: CleanListing
    texts: dict[str, str]
    keys: list[tuple[int, Keys]]  # route and keys, by enhancement task
    hashes: list[str]


class _TaskWork:
    """What one enhancement task collects in one reader."""

    def __init__(self, run: Run, task: str, shards: int, first_part: int, may_note: int) -> None:
        self.may_note = may_note
        store, settings = run.store, run.spec.settings
        self.name, self.counts = task, RunCounts()
        found = settings.task(task)
        self.routing, self.required = found.routing, found.required_fields
        routes = range(len(found.routes))
        self._keys = [keying.key_function(settings, task, route) for route in routes]
        self._hashes = [keying.source_hash_function(settings, task, route) for route in routes]
        self.work = ShardWriter(store, task, shards, first_part, routes=len(found.routes))
        self.refused = PartWriter(store, run.quarantine(task, STAGE), QuarantinedRow, 5_000, first=first_part)
        self.ended = PartWriter(store, ended_folder(task), EndedCopy, 20_000, first=first_part)
        self.same = PartWriter(store, f"{Run.work(task)}/same", SameCopy, 20_000, first=first_part)
        self.limit = run.spec.row_limit
        self.accepted = self.over_limit = 0

    def keys(self, listing: CleanListing, texts: dict[str, str]) -> tuple[int, Keys]:
        """The listing's route and its keys there."""
        route = keying.route_of(listing.merchant_id, listing.listing_id, self.routing)
        return route, self._keys[route](texts)

    def source_hash(self, merchant_id: str, listing_id: str, row: bytes) -> str:
        return self._hashes[keying.route_of(merchant_id, listing_id, self.routing)](row)

    def refuse(self, row: _Refused) -> None:
        self.counts.quarantine(row.reason)
        self.refused.write(QuarantinedRow(**row._asdict(), stage=STAGE))

    def hold_out(self, listing: CleanListing, standing: Standing) -> None:
        self.counts.holdout += 1
        if standing is not Standing.HOLDOUT:
            self.ended.write(ended(listing, "holdout"))

    def place(
        self, chosen: _Chosen, route: int, keys: Keys, source_hash: str, standing: Standing, *, force: bool
    ) -> None:
        """Decides the state of a listing in the treatment arm."""
        if standing is Standing.PINNED:
            self.counts.deferred += 1
        elif not force and standing in (Standing.CURRENT, Standing.QUARANTINED):
            self.counts.unchanged += 1
            if source_hash and standing is Standing.CURRENT and self.same.rows < self.may_note:
                self.same.write(SameCopy(*chosen.listing[:2], keys.staleness_key, source_hash))
        elif not says_something(chosen.texts, self.required):
            detail = f"no letter or digit in {', '.join(self.required)}"
            self.refuse(_Refused(*chosen.listing[:2], keys.staleness_key, MISSING_TEXT, detail))
        elif self.limit is not None and self.accepted >= self.limit:
            self.counts.deferred += 1
            self.over_limit += 1
        else:
            self.work.write((*chosen.listing, *keys, source_hash), route)
            self.accepted += 1

    def finish(self) -> dict[str, Any]:
        """Writes what is buffered, and returns this reader's part of the task's accounting."""
        for writer in (self.work, self.refused, self.ended, self.same):
            writer.flush()
        return {"counts": self.counts.to_dict(), "shards": self.work.rows, "over_limit": self.over_limit}


@contextmanager
def _collected_by_batch() -> Iterator[None]:
    """Leaves it to the caller when garbage is collected, and leaves out all that lives already.

    Hundreds of thousands of small tuples would otherwise start the collector again and again: a third of a reader's time.
    """
    enabled = gc.isenabled()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if enabled:
            gc.enable()


class Reading:
    """One reader: takes batches from a source and returns what it found as plain values."""

    def __init__(
        self, run: Run, window: Window, shards: int, warehouse_url: str, seen: SeenListings | None, reader: int
    ) -> None:
        self.run, self.window, self.seen = run, window, seen
        self.pipeline = run.spec.settings.pipeline
        first_part = reader * _PARTS_PER_READER
        self.tells_known = window.start is None and not run.spec.force
        may_note = _NOTED_PER_READER if self.tells_known else 0
        self.tasks = [_TaskWork(run, task, shards, first_part, may_note) for task in run.spec.enhancement_tasks]
        self.out_of_reach = PartWriter(run.store, CHANGED_SINCE, EndedCopy, 20_000, first=first_part)
        self.cleaned: Counter[str] = Counter()
        self.warehouse_url = warehouse_url

    def read(self, source: Source) -> dict[str, Any]:
        """Reads the source to its end. Returns counts by task, rows by shard and what is to be reported."""
        expected, started, done = source.expected(self.window), time.monotonic(), 0
        with Lookup(self.warehouse_url) as self.lookup, _collected_by_batch():
            for number, batch in enumerate(source.batches(self.window), start=1):
                self._take(batch)
                if number % _BATCHES_PER_COLLECTION == 0:
                    gc.collect()
                done += len(batch)
                rate = max(done, 1) / max(time.monotonic() - started, 1e-6)
                log.info("%d of %d listings, %.0f/s, %.0f s left", done, expected, rate, max(expected - done, 0) / rate)
        self.out_of_reach.flush()
        return {
            "tasks": {task.name: task.finish() for task in self.tasks},
            "cleaned": dict(self.cleaned),
            CHANGED_SINCE: self.out_of_reach.rows,
            "files": [asdict(report) for report in source.reports],
        }

    def _take(self, batch: Sequence[object]) -> None:
        """Tells known rows, cleans the others, asks the warehouse about them once per task, and places every listing."""
        chosen: list[_Chosen] = []
        refused: list[_Refused] = []
        known = 0
        for row in self._rows(batch, refused):
            listing = row.listing
            if listing is None:
                known += 1
            elif row.updated >= self.window.end:
                self.out_of_reach.write(ended(listing, CHANGED_SINCE))
            elif self.window.start is None or row.updated >= self.window.start:
                texts = keying.prompt_texts(listing)
                keys = [task.keys(listing, texts) for task in self.tasks]
                chosen.append(_Chosen(listing, texts, keys, row.hashes))
        for number, task in enumerate(self.tasks):
            questions = [(r.merchant_id, r.listing_id, r.staleness_key) for r in refused]
            questions += [(*c.listing[:2], c.keys[number][1].staleness_key) for c in chosen]
            standings = self.lookup.standings(task.name, questions)
            task.counts.extracted += known + len(standings)
            task.counts.unchanged += known
            for bad, standing in zip(refused, standings, strict=False):
                if standing is Standing.QUARANTINED and not self.run.spec.force:
                    task.counts.unchanged += 1
                else:
                    task.refuse(bad)
            self._place(task, number, chosen, standings[len(refused) :])

    def _glance(self, raw: Any) -> _Row | None:
        """What a row tells before it is cleaned; None where only cleaning tells its key and its time."""
        if isinstance(raw, RowError):
            return None
        merchant_id, listing_id = as_text(raw[0]), as_text(raw[1])
        if not (is_plain(merchant_id) and is_plain(listing_id)):
            return None
        merchant_id, listing_id = merchant_id.strip(), listing_id.strip()
        try:
            updated = to_utc(raw[8], self.run.spec.interval_start)
        except RowError:
            return None
        values = tuple(raw[:8])
        if not _SHOWN_WHOLE.issuperset(map(type, values)):
            return None
        row = repr(values).encode()
        hashes = [task.source_hash(merchant_id, listing_id, row) for task in self.tasks]
        return _Row(raw, merchant_id, listing_id, updated, hashes)

    def _known(self, rows: Sequence[_Row | None]) -> set[int]:
        """Places of the rows that are unchanged for every enhancement task by their source hash alone.

        A hash that stands beside a copy already is taken from its row: it need not be noted.
        """
        if not self.tells_known or self.lookup.empty:
            return set()
        merchants, pipeline = self.run.spec.merchants, self.pipeline
        asked = [
            (n, row)
            for n, row in enumerate(rows)
            if row
            and row.updated < self.window.end
            and (not merchants or row.merchant_id in merchants)
            and row.merchant_id not in pipeline.opted_out_merchants
            and not keying.in_holdout(row.merchant_id, row.listing_id, pipeline.holdout_share)
        ]
        for number, task in enumerate(self.tasks):
            questions = [(row.merchant_id, row.listing_id, row.hashes[number]) for _, row in asked]
            unknown = self.lookup.unknown(task.name, questions)
            for place, (_, row) in enumerate(asked):
                if place not in unknown:
                    row.hashes[number] = ""
        return {n for n, row in asked if not any(row.hashes)}

    def _rows(self, batch: Sequence[object], refused: list[_Refused]) -> list[_Row]:
        """The batch's rows, cleaned unless known; what cannot be a listing, and keys that came before, go to `refused`."""
        glances = [self._glance(raw) for raw in batch]
        known, merchants, rows = self._known(glances), self.run.spec.merchants, []
        for n, (raw, glance) in enumerate(zip(batch, glances, strict=True)):
            if glance and n in known:
                rows.append(glance)
                continue
            try:
                row = self._cleaned(raw, glance)
                if not merchants or row.merchant_id in merchants:
                    rows.append(row)
            except RowError as error:
                bad = _refused(error, raw)
                if not merchants or bad.merchant_id in merchants:
                    refused.append(bad)
        if self.seen is None:
            return rows
        keys = [bad[:2] for bad in refused]
        if not self.seen.unique:
            self.seen.add([*keys, *(row[1:3] for row in rows)])
            return rows
        rows.sort(key=lambda row: row.updated, reverse=True)  # of twins the newest comes first
        new = self.seen.add_new([*(row[1:3] for row in rows), *keys])
        kept = []
        for row, is_new in zip(rows, new, strict=False):
            if is_new:
                kept.append(row)
            else:
                listing: Any = row.listing or self._cleaned(row.raw, row).listing
                key = short_hash("\x1f".join(map(str, listing)))
                refused.append(_Refused(*row[1:3], key, DUPLICATE, "another row of the source has the same key"))
        return kept

    def _cleaned(self, raw: Any, glance: _Row | None) -> _Row:
        """The row with its listing. Raises RowError. One in which cleaning met something is never known, so that it counts."""
        if isinstance(raw, RowError):
            raise raw
        met, locale = self.cleaned.total(), self.pipeline.catalog.default_locale
        listing = to_listing(raw, absent_time=self.run.spec.interval_start, default_locale=locale, seen=self.cleaned)
        hashes = glance.hashes if glance and self.cleaned.total() == met else [""] * len(self.tasks)
        return _Row(raw, *listing[:2], listing.source_updated_at, hashes, listing)

    def _place(self, task: _TaskWork, number: int, chosen: Sequence[_Chosen], standings: Sequence[Standing]) -> None:
        force, opted_out, shares = self.run.spec.force, self.pipeline.opted_out_merchants, self.pipeline.holdout_share
        for row, standing in zip(chosen, standings, strict=True):
            listing = row.listing
            if listing.merchant_id in opted_out:
                task.counts.deferred += 1
            elif keying.in_holdout(listing.merchant_id, listing.listing_id, shares):
                task.hold_out(listing, standing)
            else:
                task.place(row, *row.keys[number], row.hashes[number], standing, force=force)


def _refused(error: RowError, raw: Any) -> _Refused:
    if isinstance(raw, RowError):
        merchant_id, listing_id, content = raw.merchant_id, raw.listing_id, str(error)
    else:
        merchant_id, listing_id = (_identifier(as_text(value)) for value in raw[:2])
        content = "\x1f".join(map(as_text, raw))
    return _Refused(merchant_id, listing_id, short_hash(content), error.reason, str(error))


def _identifier(text: str) -> str:
    """The cleaned identifier of a row that is quarantined, or one that any database takes in its place."""
    try:
        return clean(text)[:MAX_ID_CHARS]
    except LoneSurrogateError:
        return text.encode("utf-8", "backslashreplace").decode().replace("\0", "")[:MAX_ID_CHARS]
