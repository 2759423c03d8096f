"""Runs for tests: opened over a real catalog, or made to look as if everything before the load had finished."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime, timedelta

import sqlalchemy as sa

from include.extraction.run import extract
from include.extraction.seed import seed_catalog
from include.records import EndedCopy, QuarantinedRow, RunCounts, Verdict, WorkItem
from include.runs import Run, RunSpec, interval_of
from include.settings import digest, load_settings
from include.warehouse.database import connect
from include.warehouse.load import load, reconcile

TASK = "title"
DAY = date(2026, 3, 6)
HEADER = ["merchant_id", "listing_id", "title", "description", "updated_at"]
STAMP = f"{DAY}T10:00:00Z"


def moment(day: date, hour: int = 12) -> datetime:
    return datetime(day.year, day.month, day.day, hour, tzinfo=UTC)


def verdict(listing_id: str, output: str, *, updated: datetime | None = None, merchant: str = "m1", **more) -> Verdict:
    values = {
        "merchant_id": merchant,
        "listing_id": listing_id,
        "title": f"title of {listing_id}",
        "description": "",
        "source_updated_at": updated or moment(DAY),
        "text_id": digest([listing_id, "text"]),
        "content_hash": digest([listing_id, "content"]),
        "staleness_key": digest([listing_id, str(updated)]),
        "output": output,
        "finish_reason": "stop",
        "ok": True,
    }
    return Verdict(**(values | more))


def refusal(listing_id: str, reason: str = "empty", *, merchant: str = "m1", **more) -> QuarantinedRow:
    values = {"staleness_key": digest([listing_id, "refused"]), "stage": "validate", "reason": reason}
    return QuarantinedRow(merchant_id=merchant, listing_id=listing_id, **(values | more))


def finished_run(
    folder: object,
    verdicts: Iterable[Verdict] = (),
    *,
    run_id: str = "run-1",
    day: date = DAY,
    refused: Iterable[QuarantinedRow] = (),
    ended: Iterable[EndedCopy] = (),
    failed_text_ids: Iterable[str] = (),
    extracted_at: datetime | None = None,
    counts: Mapping[str, object] | None = None,
    gate: str = "passed",
    rows_per_part: int = 7,
) -> Run:
    """A run whose gate has decided; only the load remains."""
    settings = load_settings()
    pipeline = settings.pipeline.model_copy(update={"data_url": str(folder)})
    start, end = interval_of(day)
    spec = RunSpec(
        run_id=run_id, partition_date=day, interval_start=start, interval_end=end, enhancement_tasks=(TASK,),
        settings=settings.model_copy(update={"pipeline": pipeline}),
    )  # fmt: skip
    run = Run.create(spec)
    store = run.store
    for folder_name in ("work", "verdicts", "quarantine", "manifests"):
        store.remove(folder_name)
    verdicts, refused, ended = list(verdicts), list(refused), list(ended)
    for number in range(0, len(verdicts), rows_per_part):
        part = f"{run.verdicts(TASK, 0)}/part-{number:05d}.parquet"
        store.write_part(part, Verdict, verdicts[number : number + rows_per_part])
    if refused:
        store.write_part(f"{run.quarantine(TASK, 'validate', 0)}/part-00000.parquet", QuarantinedRow, refused)
    if ended:
        store.write_part(f"{run.work(TASK)}/ended/part-00000.parquet", EndedCopy, ended)
    failed = set(failed_text_ids)
    accepted = sum(v.ok and v.text_id not in failed for v in verdicts)
    final = RunCounts(accepted=accepted, extracted=accepted + len(refused), errored=0)
    for row in refused:
        final.quarantine(row.reason)
    store.write_json(run.plan(TASK), {"bins": [[0]] if verdicts or refused else [], "rows": [len(verdicts)]})
    extracted = {"extracted_at": (extracted_at or end + timedelta(hours=1)).isoformat(), "scope": "s"}
    store.write_json(run.manifest(TASK, "extract"), extracted)
    store.write_json(run.manifest(TASK, "validate", 0), {})
    store.write_json(
        run.manifest(TASK, "gate"),
        {"status": gate, "counts": counts or final.to_dict(), "failed_text_ids": sorted(failed)},
    )
    return run


def rows(url: str, query: str, **parameters: object) -> list[tuple]:
    """The rows of a query, as plain tuples."""
    with connect(url) as connection:
        return [tuple(row) for row in connection.execute(sa.text(query), parameters)]


def live(url: str) -> dict[str, str]:
    """Current copy by listing."""
    return dict(rows(url, "SELECT listing_id, text FROM current_copy ORDER BY merchant_id, listing_id"))


def seed(url, folder, lines):
    path = folder / "listings.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([HEADER, *lines])
    return seed_catalog(url, path, load_settings().pipeline.catalog, DAY)


def listings(count, **changes):
    return [["m1", f"l{i}", changes.get(f"l{i}", f"Mug number {i}"), "A mug", STAMP] for i in range(count)]


def open_run(folder, run_id="run-1", day=DAY, pipeline=None, tasks=("title",), settings=None, **spec):
    settings = settings or load_settings()
    update = {"data_url": str(folder / "data"), **(pipeline or {})}
    settings = settings.model_copy(update={"pipeline": settings.pipeline.model_copy(update=update)})
    start, end = interval_of(day)
    return Run.create(
        RunSpec(
            run_id=run_id, partition_date=day, interval_start=start, interval_end=end, enhancement_tasks=tasks,
            settings=settings, **spec,
        )
    )  # fmt: skip


def run_extract(run, url):
    return extract(run, catalog_url=url, warehouse_url=url)


def finish(run, url, task="title", refuse=(), errored=()):
    """Generation, validation and gate, cut short: the copy of a listing is its title in capitals."""
    counts = RunCounts.from_dict(run.store.read_json(run.plan(task))["counts"])
    refused = []
    for bin_index in range(len(run.bins(task))):
        verdicts = []
        for item in run.store.read_rows(run.work_parts(task, bin_index), WorkItem):
            if item.listing_id in errored:
                counts.errored += 1
                continue
            values = {name: getattr(item, name) for name in WorkItem.__dataclass_fields__}
            ok = item.listing_id not in refuse
            verdicts.append(Verdict(**values, output=item.title.upper(), finish_reason="stop", ok=ok))
            if ok:
                counts.accepted += 1
            else:
                counts.quarantine("bad")
                refused.append(
                    QuarantinedRow(
                        merchant_id=item.merchant_id, listing_id=item.listing_id, staleness_key=item.staleness_key,
                        stage="validate", reason="bad",
                    )
                )  # fmt: skip
        run.store.write_part(f"{run.verdicts(task, bin_index)}/part-00000.parquet", Verdict, verdicts)
        run.store.write_part(
            f"{run.quarantine(task, 'validate', bin_index)}/part-00000.parquet", QuarantinedRow, refused
        )
        run.store.write_json(run.manifest(task, "validate", bin_index), {})
    gate = {"status": "passed" if run.bins(task) else "empty", "counts": counts.to_dict(), "failed_text_ids": []}
    run.store.write_json(run.manifest(task, "gate"), gate)
    load(run, task, warehouse_url=url)
    return reconcile(run, task, warehouse_url=url)


def work(run, task="title"):
    return sorted(
        item.listing_id
        for index in range(len(run.bins(task)))
        for item in run.store.read_rows(run.work_parts(task, index), WorkItem)
    )
