"""Extraction: one read of the catalog for all enhancement tasks; each gets its work items, its plan and closed accounting.

Every listing ends in one state per enhancement task, decided in this order: quarantined (the row cannot be a listing),
deferred (its merchant opted out), holdout, deferred (pinned by a person), unchanged (current copy or an earlier quarantine
under the same staleness key), quarantined (no text to work from), deferred (row limit); the rest is work.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from include.extraction.catalog import Catalog, Window
from include.extraction.cleaning import LoneSurrogateError, clean
from include.extraction.keys import Keys, in_holdout, key_function, prompt_texts, says_something, scope_of, short_hash
from include.extraction.listings import MAX_ID_CHARS, CleanListing, RowError, as_text, to_listing
from include.extraction.shards import ShardWriter, plan_bins, shard_count
from include.measurements import rows_worth_a_start
from include.partitions import PartWriter
from include.records import EndedCopy, QuarantinedRow, RunCounts
from include.runs import Run
from include.warehouse import leases
from include.warehouse.known import Lookup, Standing, complete_until
from include.warehouse.migrate import check_schema

log = logging.getLogger(__name__)

STAGE = "extract"
MISSING_TEXT = "missing_text"


class _TaskWork:
    """What one enhancement task collects while the catalog is read."""

    def __init__(self, run: Run, task: str, shards: int) -> None:
        store, settings = run.store, run.spec.settings
        for folder in (run.work(task), run.quarantine(task, STAGE), run.manifest(task, STAGE)):
            store.remove(folder)
        self.name, self.run, self.counts = task, run, RunCounts()
        self.keys = key_function(settings, task)
        self.required = settings.task(task).required_fields
        self.work = ShardWriter(store, task, shards)
        self.refused = PartWriter(store, run.quarantine(task, STAGE), QuarantinedRow, rows_per_part=5_000)
        self.ended = PartWriter(store, f"{run.work(task)}/ended", EndedCopy, rows_per_part=20_000)
        self.limit = run.spec.row_limit
        self.accepted = self.over_limit = 0

    def refuse(self, listing: tuple[str, str], staleness_key: str, reason: str, detail: str = "") -> None:
        self.counts.quarantine(reason)
        self.refused.write(
            QuarantinedRow(
                merchant_id=listing[0],
                listing_id=listing[1],
                staleness_key=staleness_key,
                stage=STAGE,
                reason=reason,
                detail=detail,
            )
        )

    def hold_out(self, listing: CleanListing, standing: Standing) -> None:
        self.counts.holdout += 1
        if standing is not Standing.HOLDOUT:
            self.end(listing, "holdout")

    def end(self, listing: CleanListing, reason: str) -> None:
        self.ended.write(
            EndedCopy(
                merchant_id=listing.merchant_id,
                listing_id=listing.listing_id,
                locale=listing.locale,
                source_updated_at=listing.source_updated_at,
                reason=reason,
            )
        )

    def place(
        self, listing: CleanListing, texts: dict[str, str], keys: Keys, standing: Standing, *, force: bool
    ) -> None:
        """Decides the state of a listing in the treatment arm."""
        if standing is Standing.PINNED:
            self.counts.deferred += 1
        elif not force and standing in (Standing.CURRENT, Standing.QUARANTINED):
            self.counts.unchanged += 1
        elif not says_something(texts, self.required):
            self.refuse(
                listing[:2], keys.staleness_key, MISSING_TEXT, f"no letter or digit in {', '.join(self.required)}"
            )
        elif self.limit is not None and self.accepted >= self.limit:
            self.counts.deferred += 1
            self.over_limit += 1
        else:
            self.work.write((*listing, *keys))
            self.accepted += 1

    def retire(self, lookup: Lookup) -> dict[str, Any]:
        """Ends the copy of withdrawn listings: those of the merchants read whose key the source no longer holds."""
        spec = self.run.spec
        share = spec.settings.pipeline.catalog.max_withdrawn_share
        withdrawn, refused = lookup.withdrawn(self.name, spec.interval_end, share)
        before = self.ended.rows
        for merchant_id, listing_id, locale in withdrawn:
            self.ended.write(
                EndedCopy(
                    merchant_id=merchant_id,
                    listing_id=listing_id,
                    locale=locale,
                    source_updated_at=spec.interval_end,
                    reason="retired",
                )
            )
        for merchant, found in refused.items():
            log.warning("%s: %s of merchant %s; not retired (limit %s)", self.name, found, merchant, share)
        return {"withdrawn": self.ended.rows - before, "withdrawn_refused": refused}

    def finish(self, facts: dict[str, Any]) -> dict[str, Any]:
        """Writes what is buffered, the plan and the manifest."""
        self.work.flush()
        self.refused.flush()
        self.ended.flush()
        settings = self.run.spec.settings
        pipeline = settings.pipeline
        least = max(pipeline.min_rows_per_bin, rows_worth_a_start(settings, settings.task(self.name).engine))
        bins, rows = plan_bins(self.work.rows, max_bins=pipeline.max_bins, min_rows_per_bin=least)
        check = RunCounts.from_dict(self.counts.to_dict())
        check.accepted = self.accepted
        check.check_closed()
        counts = self.counts.to_dict()
        self.run.store.write_json(self.run.plan(self.name), {"bins": bins, "rows": rows, "counts": counts})
        manifest = {
            "rows": self.accepted,
            "bins": len(bins),
            "counts": counts,
            "scope": scope_of(self.run.spec.settings, self.name),
            # False: some listings were left for later, so the next windowed read must start where this one did.
            "complete": not self.over_limit and not self.run.spec.merchants,
            **facts,
        }
        self.run.store.write_json(self.run.manifest(self.name, STAGE), manifest)
        return manifest


class _Extraction:
    """The state of one read."""

    def __init__(self, run: Run, lookup: Lookup, shards: int) -> None:
        self.run, self.lookup = run, lookup
        self.pipeline = run.spec.settings.pipeline
        self.tasks = [_TaskWork(run, task, shards) for task in run.spec.enhancement_tasks]
        self.cleaned: Counter[str] = Counter()
        run.store.remove("changed_since")
        self.out_of_reach = PartWriter(run.store, "changed_since", EndedCopy, rows_per_part=20_000)

    def take(self, batch: Sequence[Sequence[object]], window: Window) -> None:
        """Cleans one batch, asks the warehouse about it once, and places every listing."""
        chosen: list[tuple[CleanListing, dict[str, str], list[Keys]]] = []
        refused: list[tuple[str, str, str, RowError]] = []
        absent_time, locale = self.run.spec.interval_start, self.pipeline.catalog.default_locale
        remembered: list[tuple[str, str]] = []
        for raw in batch:
            try:
                listing = to_listing(raw, absent_time=absent_time, default_locale=locale, seen=self.cleaned)
            except RowError as error:
                merchant_id, listing_id = (_identifier(as_text(value)) for value in raw[:2])
                refused.append((merchant_id, listing_id, short_hash("\x1f".join(map(as_text, raw))), error))
                remembered.append((merchant_id, listing_id))
                continue
            remembered.append(listing[:2])
            if listing.source_updated_at >= window.end:
                self._note_out_of_reach(listing)
            elif window.start is None or listing.source_updated_at >= window.start:
                texts = prompt_texts(listing)
                chosen.append((listing, texts, [task.keys(texts) for task in self.tasks]))
        if window.start is None:  # a complete read: what it does not hold is withdrawn
            self.lookup.remember(remembered)
        for number, task in enumerate(self.tasks):
            questions = [(m, n, task.name, key) for m, n, key, _ in refused]
            questions += [(c[0], c[1], task.name, keys[number].staleness_key) for c, _, keys in chosen]
            standings = self.lookup.standings(questions)
            task.counts.extracted += len(standings)
            self._refuse(task, refused, standings)
            self._place(task, number, chosen, standings[len(refused) :])

    def _place(
        self,
        task: _TaskWork,
        number: int,
        chosen: Sequence[tuple[CleanListing, dict[str, str], list[Keys]]],
        standings: Sequence[Standing],
    ) -> None:
        force, opted_out, shares = self.run.spec.force, self.pipeline.opted_out_merchants, self.pipeline.holdout_share
        for (listing, texts, keys), standing in zip(chosen, standings, strict=True):
            if listing.merchant_id in opted_out:
                task.counts.deferred += 1
            elif in_holdout(listing.merchant_id, listing.listing_id, shares):
                task.hold_out(listing, standing)
            else:
                task.place(listing, texts, keys[number], standing, force=force)

    def _refuse(
        self, task: _TaskWork, rows: Sequence[tuple[str, str, str, RowError]], standings: Sequence[Standing]
    ) -> None:
        for (merchant_id, listing_id, key, error), standing in zip(rows, standings, strict=False):
            if standing is Standing.QUARANTINED and not self.run.spec.force:
                task.counts.unchanged += 1
            else:
                task.refuse((merchant_id, listing_id), key, error.reason, str(error))

    def _note_out_of_reach(self, listing: CleanListing) -> None:
        self.out_of_reach.write(
            EndedCopy(
                merchant_id=listing.merchant_id,
                listing_id=listing.listing_id,
                locale=listing.locale,
                source_updated_at=listing.source_updated_at,
                reason="changed_since",
            )
        )


def _identifier(text: str) -> str:
    """The cleaned identifier of a row that is quarantined, or one that any database takes in its place."""
    try:
        return clean(text)[:MAX_ID_CHARS]
    except LoneSurrogateError:
        return text.encode("utf-8", "backslashreplace").decode().replace("\0", "")[:MAX_ID_CHARS]


def _window(run: Run, warehouse_url: str) -> Window:
    """Everything before the interval's end; in `window` mode only what changed since the last complete run."""
    spec, catalog = run.spec, run.spec.settings.pipeline.catalog
    if catalog.read == "all":
        return Window(None, spec.interval_end)
    known = [complete_until(warehouse_url, task, scope_of(spec.settings, task)) for task in spec.enhancement_tasks]
    if any(moment is None for moment in known):
        return Window(None, spec.interval_end)
    since = min([spec.interval_start, *(moment for moment in known if moment is not None)])
    return Window(since - timedelta(hours=catalog.lateness_hours), spec.interval_end)


def extract(run: Run, *, catalog_url: str, warehouse_url: str) -> dict[str, dict[str, Any]]:
    """Reads the catalog once and plans the work of every enhancement task; running it again starts afresh.

    Returns manifest(task, "extract") by task. Raises LeaseHeldError, CatalogError, UnreachableError or OldSchemaError,
    each with what to do; no part is left behind that another stage would take for a plan.
    """
    check_schema(warehouse_url)
    leases.acquire(run, warehouse_url=warehouse_url)
    pipeline = run.spec.settings.pipeline
    extracted_at = datetime.now(UTC)
    catalog = Catalog(catalog_url, pipeline.catalog, run.spec.merchants)
    window = _window(run, warehouse_url)
    expected = catalog.count(window)
    shards = shard_count(expected, pipeline.rows_per_shard, pipeline.max_bins)
    log.info("reading %d listings of %s, changed in [%s, %s)", expected, pipeline.catalog.table, *window)
    started = time.monotonic()
    with Lookup(warehouse_url) as lookup:
        extraction = _Extraction(run, lookup, shards)
        done = 0
        for batch in catalog.batches(window):
            extraction.take(batch, window)
            done += len(batch)
            rate = done / max(time.monotonic() - started, 1e-6)
            log.info("%d of %d listings, %.0f/s, %.0f s left", done, expected, rate, max(expected - done, 0) / rate)
        retired = {task.name: task.retire(lookup) if window.start is None else {} for task in extraction.tasks}
    extraction.out_of_reach.flush()
    lateness = timedelta(hours=pipeline.catalog.lateness_hours)
    facts = {
        "extracted_at": extracted_at.isoformat(),
        "read_from": (window.start + lateness).isoformat() if window.start else None,
        "changed_since": extraction.out_of_reach.rows,
        "cleaned": dict(sorted(extraction.cleaned.items())),
    }
    if extraction.out_of_reach.rows:
        log.warning(
            "%d listings changed after %s; this run cannot see what they were (see changed_since in the run's folder)",
            extraction.out_of_reach.rows, run.spec.interval_end,
        )  # fmt: skip
    manifests = {task.name: task.finish(facts | retired[task.name]) for task in extraction.tasks}
    for name, manifest in manifests.items():
        log.info("%s: %s", name, manifest)
    return manifests
