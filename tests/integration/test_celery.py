"""The nightly DAG on Celery: Redis, PostgreSQL and two workers, one per queue; the worker with the engine is killed.

Needs `redis-server` on the PATH and the packages of requirements-workers.txt, which the images of docker/ have.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import psutil
import pytest

from tests.airflow_services import (
    Airflow,
    address,
    database,
    dated,
    engine_processes,
    free_port,
    parts,
    service_settings,
    small_title_runs,
)
from tests.nightly import Nightly, sample_rows

pytest.importorskip("airflow.providers.celery", reason="needs requirements-workers.txt")
REDIS = shutil.which("redis-server")
pytestmark = [
    pytest.mark.engine,
    pytest.mark.scheduler,
    pytest.mark.long,
    pytest.mark.skipif(REDIS is None, reason="needs redis-server on the PATH"),
]
YESTERDAY = (datetime.now(UTC) - timedelta(days=1)).date()
GENERATE = "title.process_bin.generate"


def start_worker(airflow: Airflow, queue: str, number: int = 1) -> subprocess.Popen[bytes]:
    name = f"{queue}-{number}"
    return airflow.start(
        f"worker-{name}",
        *("airflow", "celery", "worker", "--queues", queue, "--celery-hostname", f"{name}@%h"),
        *("--concurrency", "1" if queue == "gpu" else "2", "--skip-serve-logs"),
    )


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory, postgres_server: str) -> Iterator[Airflow]:
    port, redis_port, metadata = free_port(), free_port(), database(postgres_server, "airflow_celery")
    nightly = Nightly(
        tmp_path_factory.mktemp("celery"),
        **service_settings(metadata, port, "CeleryExecutor"),
        AIRFLOW__CELERY__BROKER_URL=f"redis://127.0.0.1:{redis_port}/0",
        AIRFLOW__CELERY__RESULT_BACKEND=f"db+{address(metadata, 'psycopg2')}",
        AIRFLOW__OPERATORS__DEFAULT_QUEUE="cpu",
        AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT="30",  # a killed worker's tasks are given up after this
        AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL="5",
    )
    small_title_runs(nightly)
    nightly.edit("pipeline.yaml", lambda c: c | {"gpu_queue": "gpu"})
    nightly.set_up(dated(sample_rows(48), YESTERDAY, "y"))
    with (nightly.root / "redis.log").open("w") as log:
        redis = subprocess.Popen(
            [str(REDIS), "--port", str(redis_port), "--bind", "127.0.0.1", "--save", "", "--dir", str(nightly.root)],
            stdout=log,
        )
    running = Airflow(nightly, port)
    try:
        running.ready()
        yield running
    finally:
        running.stop()
        redis.terminate()
        redis.wait(10)


def kill(worker: subprocess.Popen[bytes]) -> set[int]:
    """SIGKILL for all of a worker but the engine's process, which must notice by itself; returns that one's ids."""
    engines = {p.pid for p in engine_processes()}
    everyone = [psutil.Process(worker.pid), *psutil.Process(worker.pid).children(recursive=True)]
    below = {child.pid for p in everyone if p.pid in engines for child in [p, *p.children(recursive=True)]}
    for process in everyone:
        if process.pid not in below:
            os.kill(process.pid, signal.SIGKILL)
    worker.wait(10)
    return below


def test_a_killed_gpu_worker_costs_no_finished_row_and_publishes_nothing_twice(airflow: Airflow) -> None:
    start_worker(airflow, "cpu")
    victim = start_worker(airflow, "gpu")
    airflow.call("PATCH", "/dags/enhance_listings", is_paused=False)
    run_id = airflow.wait("scheduled run", lambda: next(iter(airflow.runs()), None), 90)["dag_run_id"]
    folder = airflow.wait("opened run", lambda: next((airflow.nightly.root / "data").glob("dt=*/run=*"), None), 180)
    airflow.wait("first parts", lambda: len(parts(folder)) >= 2, 300)
    orphans = kill(victim)
    assert orphans, "no engine was at work"
    airflow.wait("end of the engine", lambda: not any(psutil.pid_exists(pid) for pid in orphans), 20)
    before = parts(folder)
    assert len(before) < 12, "the engine had finished before its worker was killed"
    start_worker(airflow, "gpu", 2)
    airflow.wait_for_run(run_id, seconds=900)

    after = parts(folder)
    assert {name: after.get(name) for name in before} == before, "a finished part was written again"
    generated = airflow.instances(run_id, GENERATE)[0]
    assert generated["try_number"] == 2
    assert (generated["queue"], generated["hostname"] != "") == ("gpu", True)
    assert airflow.instances(run_id, "extract")[-1]["queue"] == "cpu"
    listings, keys = airflow.nightly.query(
        "select count(*), count(distinct listing_id) from listing_copy where run_id = :r", r=run_id
    )[0]
    assert listings == keys > 0
    published = airflow.nightly.query("select status from runs where run_id = :r", r=run_id)
    assert [row[0] for row in published] == ["published"]
    assert airflow.nightly.query("select count(*) from copy_history")[0][0] == 0, "copy was replaced"
