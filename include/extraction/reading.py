"""One reader's work: every row of its part of the source gets its state for every enhancement task.

The states are decided in this order: quarantined (the row cannot be a listing, or its key came before), deferred (its
merchant opted out), holdout, deferred (pinned by a person), unchanged (current copy or an earlier quarantine under the same
staleness key), quarantined (no text to work from), deferred (row limit); the rest is work.
"""

from __future__ import annotations

import gc
import logging
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, NamedTuple

from include.extraction.catalog import Window
from include.extraction.cleaning import LoneSurrogateError, clean
from include.extraction.keys import Keys, in_holdout, key_function, prompt_texts, route_of, says_something, short_hash
from include.extraction.listings import MAX_ID_CHARS, CleanListing, RowError, as_text, to_listing
from include.extraction.shards import ShardWriter
from include.extraction.sources import Source
from include.partitions import PartWriter
from include.records import EndedCopy, QuarantinedRow, RunCounts
from include.runs import Run
from include.warehouse.known import Lookup, Standing
from include.warehouse.seen import SeenListings

log = logging.getLogger(__name__)

STAGE = "extract"
MISSING_TEXT, DUPLICATE = "missing_text", "duplicate_listing"
CHANGED_SINCE = "changed_since"
_BATCHES_PER_COLLECTION = 8  # hardly anything of a batch is in a cycle
_PARTS_PER_READER = 100_000  # part numbers of reader n start at n times this


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


class _Chosen(NamedTuple):
    listing: CleanListing
    texts: dict[str, str]
    keys: list[tuple[int, Keys]]  # route and keys, by enhancement task


class _TaskWork:
    """What one enhancement task collects in one reader."""

    def __init__(self, run: Run, task: str, shards: int, first_part: int) -> None:
        store, settings = run.store, run.spec.settings
        self.name, self.counts = task, RunCounts()
        found = settings.task(task)
        self.routing, self.required = found.routing, found.required_fields
        self._keys = [key_function(settings, task, route) for route in range(len(found.routes))]
        self.work = ShardWriter(store, task, shards, first_part, routes=len(found.routes))
        self.refused = PartWriter(store, run.quarantine(task, STAGE), QuarantinedRow, 5_000, first=first_part)
        self.ended = PartWriter(store, ended_folder(task), EndedCopy, 20_000, first=first_part)
        self.limit = run.spec.row_limit
        self.accepted = self.over_limit = 0

    def keys(self, listing: CleanListing, texts: dict[str, str]) -> tuple[int, Keys]:
        """The listing's route and its keys there."""
        route = route_of(listing.merchant_id, listing.listing_id, self.routing)
        return route, self._keys[route](texts)

    def refuse(self, row: _Refused) -> None:
        self.counts.quarantine(row.reason)
        self.refused.write(QuarantinedRow(**row._asdict(), stage=STAGE))

    def hold_out(self, listing: CleanListing, standing: Standing) -> None:
        self.counts.holdout += 1
        if standing is not Standing.HOLDOUT:
            self.ended.write(ended(listing, "holdout"))

    def place(self, chosen: _Chosen, route: int, keys: Keys, standing: Standing, *, force: bool) -> None:
        """Decides the state of a listing in the treatment arm."""
        if standing is Standing.PINNED:
            self.counts.deferred += 1
        elif not force and standing in (Standing.CURRENT, Standing.QUARANTINED):
            self.counts.unchanged += 1
        elif not says_something(chosen.texts, self.required):
            detail = f"no letter or digit in {', '.join(self.required)}"
            self.refuse(_Refused(*chosen.listing[:2], keys.staleness_key, MISSING_TEXT, detail))
        elif self.limit is not None and self.accepted >= self.limit:
            self.counts.deferred += 1
            self.over_limit += 1
        else:
            self.work.write((*chosen.listing, *keys), route)
            self.accepted += 1

    def finish(self) -> dict[str, Any]:
        """Writes what is buffered, and returns this reader's part of the task's accounting."""
        for writer in (self.work, self.refused, self.ended):
            writer.flush()
        return {"counts": self.counts.to_dict(), "shards": self.work.rows, "over_limit": self.over_limit}


@contextmanager
def _collected_by_batch() -> Iterator[None]:
    """Leaves it to the caller when garbage is collected, and leaves out all that lives already.

    Hundreds of thousands of small tuples would otherwise start the collector again and again: a third of a reader's time.
    """
    enabled = gc.isenabled()
    gc.collect()
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
        self.tasks = [_TaskWork(run, task, shards, first_part) for task in run.spec.enhancement_tasks]
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
        """Cleans one batch, asks the warehouse about it once per task, and places every listing."""
        chosen: list[_Chosen] = []
        refused: list[_Refused] = []
        keys: list[tuple[str, str]] = []
        for listing in self._listings(batch, refused, keys):
            if listing.source_updated_at >= self.window.end:
                self.out_of_reach.write(ended(listing, CHANGED_SINCE))
            elif self.window.start is None or listing.source_updated_at >= self.window.start:
                texts = prompt_texts(listing)
                chosen.append(_Chosen(listing, texts, [task.keys(listing, texts) for task in self.tasks]))
        for number, task in enumerate(self.tasks):
            questions = [(r.merchant_id, r.listing_id, task.name, r.staleness_key) for r in refused]
            questions += [(*c.listing[:2], task.name, c.keys[number][1].staleness_key) for c in chosen]
            standings = self.lookup.standings(questions)
            task.counts.extracted += len(standings)
            for row, standing in zip(refused, standings, strict=False):
                if standing is Standing.QUARANTINED and not self.run.spec.force:
                    task.counts.unchanged += 1
                else:
                    task.refuse(row)
            self._place(task, number, chosen, standings[len(refused) :])

    def _listings(
        self, batch: Sequence[object], refused: list[_Refused], keys: list[tuple[str, str]]
    ) -> list[CleanListing]:
        """The batch's listings; rows that cannot be one, and keys that came before, go to `refused`."""
        absent_time, locale = self.run.spec.interval_start, self.pipeline.catalog.default_locale
        merchants, listings = self.run.spec.merchants, []
        for raw in batch:
            try:
                if isinstance(raw, RowError):
                    raise raw
                assert isinstance(raw, Sequence)
                listing = to_listing(raw, absent_time=absent_time, default_locale=locale, seen=self.cleaned)
                if not merchants or listing.merchant_id in merchants:
                    listings.append(listing)
            except RowError as error:
                row = _refused(error, raw)
                if not merchants or row.merchant_id in merchants:
                    refused.append(row)
                    keys.append(row[:2])
        if self.seen is None:
            return listings
        if not self.seen.unique:
            self.seen.add([*keys, *(listing[:2] for listing in listings)])
            return listings
        listings.sort(key=lambda listing: listing.source_updated_at, reverse=True)  # of twins the newest comes first
        new = self.seen.add_new([*(listing[:2] for listing in listings), *keys])
        kept = []
        for listing, is_new in zip(listings, new, strict=False):
            if is_new:
                kept.append(listing)
            else:
                key = short_hash("\x1f".join(map(str, listing)))
                refused.append(_Refused(*listing[:2], key, DUPLICATE, "another row of the source has the same key"))
        return kept

    def _place(self, task: _TaskWork, number: int, chosen: Sequence[_Chosen], standings: Sequence[Standing]) -> None:
        force, opted_out, shares = self.run.spec.force, self.pipeline.opted_out_merchants, self.pipeline.holdout_share
        for row, standing in zip(chosen, standings, strict=True):
            listing = row.listing
            if listing.merchant_id in opted_out:
                task.counts.deferred += 1
            elif in_holdout(listing.merchant_id, listing.listing_id, shares):
                task.hold_out(listing, standing)
            else:
                task.place(row, *row.keys[number], standing, force=force)


def _refused(error: RowError, raw: object) -> _Refused:
    if isinstance(raw, RowError):
        merchant_id, listing_id, content = raw.merchant_id, raw.listing_id, str(error)
    else:
        assert isinstance(raw, Sequence)
        merchant_id, listing_id = (_identifier(as_text(value)) for value in raw[:2])
        content = "\x1f".join(map(as_text, raw))
    return _Refused(merchant_id, listing_id, short_hash(content), error.reason, str(error))


def _identifier(text: str) -> str:
    """The cleaned identifier of a row that is quarantined, or one that any database takes in its place."""
    try:
        return clean(text)[:MAX_ID_CHARS]
    except LoneSurrogateError:
        return text.encode("utf-8", "backslashreplace").decode().replace("\0", "")[:MAX_ID_CHARS]
