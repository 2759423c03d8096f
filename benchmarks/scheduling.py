"""What Airflow itself costs at many bins: the nightly DAG with 1,000 of them on a real scheduler, and a stub for the work.

`python -m benchmarks.scheduling` starts PostgreSQL, an API server, a DAG processor and a scheduler whose tasks only report
(benchmarks/stub_executor.py), runs the nightly DAG once with `--bins` bins of titles, and measures the time from the plan
to the last bin's end, and what the run leaves in Airflow's database. From that and measured rates follows when a night of
300 million listings would be done on N GPUs. Writes build/bench/scheduling.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from benchmarks.load import server
from include.settings import PROJECT_ROOT
from tests.airflow_services import Airflow, address, database, free_port, service_settings
from tests.nightly import Nightly

BIN_STAGES = ("generate", "validate")
LISTINGS = 300_000_000
GPUS = (8, 16, 32, 64, 128, 256)
ENGINE_START_S = 55.0  # with a filled compile cache, docs/benchmarks.md
H200 = PROJECT_ROOT / "benchmarks" / "results" / "h200.json"
LOAD = PROJECT_ROOT / "benchmarks" / "results" / "load.json"


def sizes(engine: sa.Engine) -> dict[str, int]:
    """Bytes of each table of Airflow's database, with its indexes."""
    with engine.connect() as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT").exec_driver_sql("VACUUM ANALYZE")
        rows = connection.exec_driver_sql(
            "select relname, pg_total_relation_size(oid) from pg_class"
            " where relkind = 'r' and relnamespace = 'public'::regnamespace"
        )
        return {str(name): int(size) for name, size in rows}


def times(engine: sa.Engine, run_id: str) -> dict[str, Any]:
    """Seconds of the mapped stages: from the plan's end to the last bin's end, and how long an instance waits for its start."""
    with engine.connect() as connection:
        rows = connection.execute(
            sa.text(
                "select task_id, count(*), max(end_date),"
                " percentile_cont(0.5) within group (order by extract(epoch from start_date - scheduled_dttm)),"
                " percentile_cont(0.95) within group (order by extract(epoch from start_date - scheduled_dttm))"
                " from task_instance where run_id = :run group by task_id"
            ),
            {"run": run_id},
        ).all()
    found = {str(row[0]): row for row in rows}
    mapped = [row for name, row in found.items() if name.endswith(BIN_STAGES) and row[1] > 1]
    began, ended = found["title.plan_bins"][2], max(row[2] for row in mapped)
    return {
        "instances": sum(row[1] for row in rows),
        "seconds": round((ended - began).total_seconds(), 2),
        "wait_s": {row[0]: {"p50": round(row[3], 2), "p95": round(row[4], 2)} for row in mapped},
    }


def measure(bins: int, parallelism: int) -> dict[str, Any]:
    """One run of the nightly DAG with that many bins, on services of its own."""
    with server() as url, tempfile.TemporaryDirectory(prefix="scheduling-", ignore_cleanup_errors=True) as folder:
        port, metadata = free_port(), database(url, "airflow_scheduling")
        settings = service_settings(metadata, port, "benchmarks.stub_executor.StubExecutor") | {
            "AIRFLOW__CORE__PARALLELISM": str(parallelism),
            "AIRFLOW__DATABASE__SQL_ALCHEMY_POOL_SIZE": "30",  # the API server's: every stub worker asks at once
            "STUB_BINS": str(bins),  # read by benchmarks/stub_executor.py
        }
        nightly = Nightly(Path(folder), **settings)
        (nightly.config / "tasks" / "description.yaml").unlink()
        for arguments in (["airflow", "db", "migrate"], ["airflow", "pools", "set", "gpu", str(parallelism), "stub"]):
            done = nightly.command(*arguments)
            if done.returncode:
                raise RuntimeError(done.stderr[-2000:])
        engine, running = sa.create_engine(address(metadata, "psycopg")), Airflow(nightly, port)
        try:
            running.ready()
            before = sizes(engine)
            running.call("PATCH", "/dags/enhance_listings", is_paused=False)  # its one scheduled run begins
            run_id = running.wait("scheduled run", lambda: next(iter(running.runs()), None), 90)["dag_run_id"]
            running.wait_for_run(run_id, seconds=3600)
            after = sizes(engine)
            found = times(engine, run_id)
        finally:
            running.stop()
            engine.dispose()
    grown = {name: size - before.get(name, 0) for name, size in after.items() if size > before.get(name, 0)}
    return found | {
        "bins": bins,
        "parallelism": parallelism,
        "stages_per_bin": len(BIN_STAGES),
        "seconds_per_bin": round(found["seconds"] / bins, 4),
        "instances_per_s": round(found["instances"] / found["seconds"], 2),
        "database_growth_mb": round(sum(grown.values()) / 1e6, 2),
        "database_bytes_per_bin": round(sum(grown.values()) / bins),
        "database_growth_by_table": dict(sorted(grown.items(), key=lambda pair: -pair[1])[:6]),
    }


def finish(seconds_per_bin: float, gpus: int, bins: int, rates: dict[str, float], row_us: float) -> dict[str, Any]:
    """When a night of LISTINGS titles and descriptions is done on `gpus` GPUs, by a plan of the worst case.

    Every listing is new; one process extracts and loads (`row_us` a listing and task); `bins` bins of each task share the
    GPUs evenly, and each pays an engine start. The scheduler can start no bin sooner than one in `seconds_per_bin`.
    """
    work = sum(LISTINGS / rate for rate in rates.values()) + len(rates) * bins * ENGINE_START_S
    generate = max(work / gpus, len(rates) * bins * seconds_per_bin)
    rows = len(rates) * LISTINGS * row_us / 1e6
    return {
        "gpus": gpus,
        "generate_h": round(generate / 3600, 2),
        "extract_and_load_h": round(rows / 3600, 2),
        "finish_h": round((generate + rows) / 3600, 2),
        "scheduling_share": round(len(rates) * bins * seconds_per_bin / generate, 5),
        "engine_start_share": round(len(rates) * bins * ENGINE_START_S / work, 4),
        "bin_minutes": round(work / (len(rates) * bins) / 60, 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bins", type=int, default=1_000)
    parser.add_argument("--parallelism", type=int, default=16, help="tasks at once, as slots of a pool")
    parser.add_argument("--out", type=Path, default=PROJECT_ROOT / "build" / "bench" / "scheduling.json")
    options = parser.parse_args()
    if options.bins < 2:
        parser.error("--bins must be 2 or more")
    rates = {task: json.loads(H200.read_text())[task]["requests_per_s"] for task in ("title", "description")}
    row_us = 1e6 / json.loads(LOAD.read_text())["rows_per_s"]
    found = measure(options.bins, options.parallelism)
    found["plan"] = [finish(found["seconds_per_bin"], gpus, options.bins, rates, row_us) for gpus in GPUS]
    found["plan_from"] = {"requests_per_s": rates, "rows_per_s": round(1e6 / row_us), "engine_start_s": ENGINE_START_S}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(found, indent=2), encoding="utf-8")
    print(json.dumps(found, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
