"""Extraction: one read of the source for all enhancement tasks; each gets its work items, its plan and closed accounting."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from include.extraction.catalog import Window
from include.extraction.keys import scope_of
from include.extraction.reading import CHANGED_SINCE, STAGE, Reading, ended_folder
from include.extraction.shards import plan_routes, shard_count
from include.extraction.sources import Source, has_unique_keys, open_source, reader_count
from include.measurements import rows_worth_a_start
from include.partitions import PartWriter
from include.records import EndedCopy, RunCounts
from include.runs import CATALOG_URL_VARIABLE, WAREHOUSE_URL_VARIABLE, Run
from include.warehouse import leases
from include.warehouse.known import complete_until
from include.warehouse.migrate import check_schema
from include.warehouse.seen import SeenListings

log = logging.getLogger(__name__)

_READING = "work/reading.json"
_ENDED_BY_RETIREMENT = 90_000  # part numbers of the first reader that its own parts never reach


class ReaderFailedError(RuntimeError):
    """A reader process ended badly; its own message stands above in the log."""


def _window(run: Run, warehouse_url: str) -> Window:
    """Everything before the interval's end; in `window` mode only what changed since the last complete run."""
    spec, pipeline = run.spec, run.spec.settings.pipeline
    if pipeline.catalog.read == "all" or pipeline.feeds:
        return Window(None, spec.interval_end)
    known = [complete_until(warehouse_url, task, scope_of(spec.settings, task)) for task in spec.enhancement_tasks]
    if any(moment is None for moment in known):
        return Window(None, spec.interval_end)
    since = min([spec.interval_start, *(moment for moment in known if moment is not None)])
    return Window(since - timedelta(hours=pipeline.catalog.lateness_hours), spec.interval_end)


def extract(run: Run, *, catalog_url: str, warehouse_url: str) -> dict[str, dict[str, Any]]:
    """Reads the source once and plans the work of every enhancement task; running it again starts afresh.

    Returns manifest(task, "extract") by task. Raises LeaseHeldError, CatalogError, FeedError, UnreachableError, SeenLostError
    or OldSchemaError, each with what to do; no plan is left behind then.
    """
    check_schema(warehouse_url)
    leases.acquire(run, warehouse_url=warehouse_url)
    extracted_at, pipeline = datetime.now(UTC), run.spec.settings.pipeline
    window, source = _window(run, warehouse_url), open_source(run, catalog_url)
    readers, unique = reader_count(run, catalog_url), has_unique_keys(source)
    _clear(run)
    seen = (
        SeenListings(warehouse_url, run.spec.run_id, unique=not unique) if window.start is None or not unique else None
    )
    if seen:
        seen.start()
    shown = [window.start.isoformat() if window.start else None, window.end.isoformat()]
    plan = {
        "window": shown,
        "shards": shard_count(source.expected(window), pipeline.rows_per_shard, pipeline.max_bins),
        "readers": readers,
        "seen": None if seen is None else {"unique": seen.unique},
    }
    run.store.write_json(_READING, plan)
    log.info("reading listings changed in [%s, %s) with %d readers", *shown, readers)
    if readers == 1:
        results = [read_part(run, 0, catalog_url=catalog_url, warehouse_url=warehouse_url, source=source)]
    else:
        results = _read_side_by_side(run, readers, catalog_url, warehouse_url)
    facts = _facts(results, window, timedelta(hours=pipeline.catalog.lateness_hours), extracted_at)
    if seen:
        seen.check_whole()
    manifests = {}
    for task in run.spec.enhancement_tasks:
        retired = _retire(run, task, seen, facts["files"]) if seen and window.start is None else {}
        manifests[task] = _finish(run, task, results, facts | retired)
        log.info("%s: %s", task, manifests[task])
    if seen:
        seen.drop()
    return manifests


def _clear(run: Run) -> None:
    for task in run.spec.enhancement_tasks:
        for folder in (run.work(task), f"quarantine/{task}", run.manifest(task, STAGE)):  # later bins may be fewer
            run.store.remove(folder)
    run.store.remove(CHANGED_SINCE)


def read_part(
    run: Run, reader: int, *, catalog_url: str, warehouse_url: str, source: Source | None = None
) -> dict[str, Any]:
    """One reader's part of an extraction that has been started; the whole of it when it has one reader."""
    plan = run.store.read_json(_READING)
    start, end = (datetime.fromisoformat(text) if text else None for text in plan["window"])
    assert end is not None
    seen = SeenListings(warehouse_url, run.spec.run_id, unique=plan["seen"]["unique"]) if plan["seen"] else None
    reading = Reading(run, Window(start, end), plan["shards"], warehouse_url, seen, reader)
    return reading.read(source or open_source(run, catalog_url, reader, plan["readers"]))


def _result_path(reader: int) -> str:
    return f"work/reading-{reader:03d}.json"


def read_and_write_part(run: Run, reader: int, *, catalog_url: str, warehouse_url: str) -> None:
    """What a reader process does."""
    result = read_part(run, reader, catalog_url=catalog_url, warehouse_url=warehouse_url)
    run.store.write_json(_result_path(reader), result)


def _read_side_by_side(run: Run, readers: int, catalog_url: str, warehouse_url: str) -> list[dict[str, Any]]:
    """Processes of their own, since a task's process may have no children of multiprocessing; URLs go by environment."""
    environment = {**os.environ, CATALOG_URL_VARIABLE: catalog_url, WAREHOUSE_URL_VARIABLE: warehouse_url}
    command = [sys.executable, "-m", "include.extraction", "read", "--run-dir", run.store.url, "--reader"]
    for reader in range(readers):
        run.store.remove(_result_path(reader))
    children = [subprocess.Popen([*command, str(reader)], env=environment) for reader in range(readers)]  # noqa: S603
    try:
        failed = [reader for reader, child in enumerate(children) if child.wait() != 0]
    finally:
        for child in children:
            child.kill()  # those that are done already take no notice
            child.wait()
    if failed:
        raise ReaderFailedError(f"readers {failed} of {readers} failed; see above. Clear the extract task to go on.")
    return [run.store.read_json(_result_path(reader)) for reader in range(readers)]


def _facts(
    results: Sequence[dict[str, Any]], window: Window, lateness: timedelta, extracted_at: datetime
) -> dict[str, Any]:
    """What all tasks' manifests say of the read."""
    cleaned: Counter[str] = Counter()
    for result in results:
        cleaned.update(result["cleaned"])
    changed_since = sum(result[CHANGED_SINCE] for result in results)
    if changed_since:
        log.warning(
            "%d listings changed after %s; what they were before cannot be known (see %s in the run's folder)",
            changed_since, window.end, CHANGED_SINCE,
        )  # fmt: skip
    files = [report for result in results for report in result["files"]]
    for report in files:
        if report["status"] != "read":
            log.warning("feed %s is %s: %s", report["url"], report["status"], report["problem"])
    return {
        "extracted_at": extracted_at.isoformat(),
        "read_from": (window.start + lateness).isoformat() if window.start else None,
        CHANGED_SINCE: changed_since,
        "cleaned": dict(sorted(cleaned.items())),
        "files": files,
    }


def _retire(run: Run, task: str, seen: SeenListings, files: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Ends the copy of withdrawn listings: those of the merchants read whose key the source no longer holds."""
    broken = [report["merchant_id"] for report in files if report["status"] != "read"]
    if None in broken:
        return {"withdrawn": 0, "withdrawn_refused": {"*": "a feed of several merchants was not read to its end"}}
    share, as_of = run.spec.settings.pipeline.catalog.max_withdrawn_share, run.spec.interval_end
    withdrawn, refused = seen.withdrawn(task, as_of=as_of, max_share=share, incomplete=broken)
    with PartWriter(run.store, ended_folder(task), EndedCopy, 20_000, first=_ENDED_BY_RETIREMENT) as writer:
        for merchant_id, listing_id, locale in withdrawn:
            writer.write(
                EndedCopy(
                    merchant_id=merchant_id,
                    listing_id=listing_id,
                    locale=locale,
                    source_updated_at=as_of,
                    reason="retired",
                )
            )
    for merchant, found in refused.items():
        log.warning("%s: copy of merchant %s is not retired: %s (limit %s)", task, merchant, found, share)
    return {"withdrawn": writer.rows, "withdrawn_refused": refused}


def _finish(run: Run, task: str, results: Sequence[dict[str, Any]], facts: dict[str, Any]) -> dict[str, Any]:
    """Adds up the readers' accounting, and writes the plan and the manifest."""
    parts = [result["tasks"][task] for result in results]
    counts = RunCounts()
    for part in parts:
        counts.add(RunCounts.from_dict(part["counts"]))
    shards = [sum(rows) for rows in zip(*(part["shards"] for part in parts), strict=True)]
    check = RunCounts.from_dict(counts.to_dict())
    check.accepted = sum(shards)
    check.check_closed()
    settings, routes = run.spec.settings, run.spec.settings.task(task).routes
    least = [max(settings.pipeline.min_rows_per_bin, rows_worth_a_start(settings, engine)) for engine in routes]
    bins, rows, owners = plan_routes(shards, max_bins=settings.pipeline.max_bins, min_rows_per_bin=least)
    plan: dict[str, Any] = {"bins": bins, "rows": rows, "counts": counts.to_dict()}
    if len(routes) > 1:
        plan["engines"] = [routes[owner] for owner in owners]
    run.store.write_json(run.plan(task), plan)
    over_limit = sum(part["over_limit"] for part in parts)
    read_to_the_end = all(report["status"] == "read" for report in facts["files"])
    manifest = {
        "rows": sum(shards),
        "bins": len(bins),
        "counts": counts.to_dict(),
        "scope": scope_of(settings, task),
        # False: something was left for later, so the next windowed read must start where this one did.
        "complete": not over_limit and not run.spec.merchants and read_to_the_end,
        **facts,
    }
    run.store.write_json(run.manifest(task, STAGE), manifest)
    return manifest
