"""The nightly DAG under a real scheduler, DAG processor and API server (LocalExecutor, PostgreSQL as metadata database).

One installation and one title-only configuration; the tests run in order and build on each other, since every engine
start costs half a minute.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import sqlalchemy as sa

from tests.nightly import Nightly, sample_rows

pytestmark = [pytest.mark.engine, pytest.mark.scheduler, pytest.mark.long]
YESTERDAY = (datetime.now(UTC) - timedelta(days=1)).date()
GENERATE = "title.process_bin.generate"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def database(server: str, name: str) -> sa.URL:
    """A new database on the server."""
    engine = sa.create_engine(sa.make_url(server).set(drivername="postgresql+psycopg"), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    engine.dispose()
    return sa.make_url(server).set(database=name)


def dated(rows: list[dict[str, str]], day: Any, prefix: str) -> list[dict[str, str]]:
    return [r | {"listing_id": f"{prefix}-{i}", "updated_at": f"{day}T08:00:00+00:00"} for i, r in enumerate(rows)]


class Airflow:
    """The running services and their REST API."""

    def __init__(self, nightly: Nightly, port: int) -> None:
        self.nightly, self.url = nightly, f"http://127.0.0.1:{port}"
        self.logs = [(nightly.root / f"{name}.log").open("w") for name in ("api-server", "scheduler", "dag-processor")]
        self.services = [
            subprocess.Popen(command, env=nightly.env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
            for log, command in zip(
                self.logs,
                (
                    ["airflow", "api-server", "--port", str(port), "--workers", "1"],
                    ["airflow", "scheduler"],
                    ["airflow", "dag-processor"],
                ),
                strict=True,
            )
        ]
        self.client = httpx.Client(base_url=self.url, timeout=30)

    def wait(self, what: str, check: Any, seconds: float) -> Any:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            found = check()
            if found:
                return found
            time.sleep(1.0)
        raise AssertionError(f"no {what} within {seconds} s; service logs lie in {self.nightly.root}")

    def healthy(self) -> bool:
        try:
            status = self.client.get("/api/v2/monitor/health").json()
        except (httpx.HTTPError, ValueError):
            return False
        return all(status.get(name, {}).get("status") == "healthy" for name in ("scheduler", "dag_processor"))

    def login(self) -> None:
        token = self.client.get("/auth/token").json()["access_token"]
        self.client.headers["Authorization"] = f"Bearer {token}"

    def call(self, method: str, path: str, **body: Any) -> Any:
        answer = self.client.request(method, f"/api/v2{path}", json=body or None)
        assert answer.status_code < 300, f"{method} {path}: {answer.status_code} {answer.text[:500]}"
        return answer.json() if answer.content else None

    def runs(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.call("GET", "/dags/enhance_listings/dagRuns")["dag_runs"]
        return found

    def tries(self, run_id: str, task_id: str) -> dict[int, int]:
        """Number of tries of each map index."""
        instances = self.call(
            "GET", f"/dags/enhance_listings/dagRuns/{run_id}/taskInstances?task_id={task_id}&limit=100"
        )
        return {t["map_index"]: t["try_number"] for t in instances["task_instances"] if t["task_id"] == task_id}

    def wait_for_run(self, run_id: str, state: str = "success", seconds: float = 400) -> None:
        def ended() -> bool:
            now = next(r["state"] for r in self.runs() if r["dag_run_id"] == run_id)
            assert now in {"queued", "running", state}, f"run {run_id} ended {now}; logs in {self.nightly.root}"
            return bool(now == state)

        self.wait(f"{state} of {run_id}", ended, seconds)

    def stop(self) -> None:
        for service in self.services:
            if service.poll() is None:
                os.killpg(service.pid, signal.SIGTERM)
        for service in self.services:
            try:
                service.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(service.pid, signal.SIGKILL)
        for log in self.logs:
            log.close()


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory, postgres_server: str) -> Iterator[Airflow]:
    port, metadata = free_port(), database(postgres_server, "airflow_meta")
    nightly = Nightly(
        tmp_path_factory.mktemp("scheduler"),
        AIRFLOW__CORE__EXECUTOR="LocalExecutor",
        AIRFLOW__CORE__PARALLELISM="4",
        AIRFLOW__DATABASE__SQL_ALCHEMY_CONN=metadata.set(drivername="postgresql+psycopg2").render_as_string(
            hide_password=False
        ),
        AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC=metadata.set(drivername="postgresql+asyncpg").render_as_string(
            hide_password=False
        ),
        AIRFLOW__API__PORT=str(port),
        AIRFLOW__API__BASE_URL=f"http://127.0.0.1:{port}",
        AIRFLOW__CORE__EXECUTION_API_SERVER_URL=f"http://127.0.0.1:{port}/execution/",
        AIRFLOW__API_AUTH__JWT_SECRET="only-for-this-test-0123456789abcdef",
        AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL="30",
    )
    (nightly.config / "tasks" / "description.yaml").unlink()
    nightly.open_gate("title")
    nightly.edit("pipeline.yaml", lambda c: c | {"rows_per_part": 4})
    few = {"max_num_seqs": 8}  # answers come bit by bit, so that a kill finds some written and some not
    nightly.edit(
        "engines/cpu-smollm2-title.yaml", lambda c: c | {"engine_args": c["engine_args"] | few, "batch_size": 8}
    )
    rows = dated(sample_rows(48), YESTERDAY, "y")
    for back in (2, 3):
        rows += dated(sample_rows(3, "de-DE"), YESTERDAY - timedelta(days=back), f"b{back}")
    nightly.set_up(rows)
    running = Airflow(nightly, port)
    try:
        running.wait("healthy Airflow", running.healthy, 120)
        running.login()
        running.wait("DAG", lambda: "enhance_listings" in running.client.get("/api/v2/dags").text, 120)
        yield running
    finally:
        running.stop()


def run_folder(airflow: Airflow, run_id: str) -> Path:
    found = [
        p.parent for p in (airflow.nightly.root / "data").glob("dt=*/run=*/run.json") if f'"{run_id}"' in p.read_text()
    ]
    assert len(found) == 1, (run_id, found)
    return found[0]


def parts(folder: Path) -> dict[str, float]:
    return {p.name: p.stat().st_mtime for p in (folder / "generated" / "title").rglob("*.parquet")}


def worker_processes() -> list[psutil.Process]:
    return [p for p in psutil.process_iter(["cmdline"]) if "include.generation" in (p.info["cmdline"] or [])]


def test_a_scheduled_run_whose_worker_dies_is_retried_and_makes_only_what_is_missing(airflow: Airflow) -> None:
    airflow.call("PATCH", "/dags/enhance_listings", is_paused=False)
    run = airflow.wait("scheduled run", lambda: next(iter(airflow.runs()), None), 90)
    assert run["logical_date"].startswith(str(YESTERDAY))
    run_id = run["dag_run_id"]
    folder = airflow.wait("opened run", lambda: next((airflow.nightly.root / "data").glob("dt=*/run=*"), None), 120)
    airflow.wait("first parts", lambda: len(parts(folder)) >= 2, 300)
    victims = worker_processes()
    assert victims
    for process in victims:
        process.send_signal(signal.SIGKILL)
    before = parts(folder)
    airflow.wait_for_run(run_id, seconds=600)
    after = parts(folder)
    assert airflow.tries(run_id, GENERATE) == {0: 2}
    assert {name: after.get(name) for name in before} == before, "a finished part was written again"
    copies = airflow.nightly.query(
        "select count(*), count(distinct listing_id) from listing_copy where run_id = :r", r=run_id
    )
    assert copies[0][0] == copies[0][1] > 0


def test_clearing_one_mapped_task_generates_nothing_again(airflow: Airflow) -> None:
    run_id = next(r["dag_run_id"] for r in airflow.runs() if r["run_type"] == "scheduled")
    folder = run_folder(airflow, run_id)
    before = parts(folder)
    published = airflow.nightly.query("select listing_id, text, run_id from listing_copy order by 1")
    airflow.call(
        "POST",
        "/dags/enhance_listings/clearTaskInstances",
        dry_run=False,
        only_failed=False,
        dag_run_id=run_id,
        task_ids=[[GENERATE, 0]],
        include_downstream=True,
        reset_dag_runs=True,
    )
    airflow.wait("run to start again", lambda: airflow.tries(run_id, GENERATE)[0] == 3, 90)
    airflow.wait_for_run(run_id, seconds=300)
    assert parts(folder) == before
    assert airflow.nightly.query("select listing_id, text, run_id from listing_copy order by 1") == published


def test_a_backfill_of_two_dates_runs_each_with_its_own_listings(airflow: Airflow) -> None:
    first, last = YESTERDAY - timedelta(days=3), YESTERDAY - timedelta(days=2)
    airflow.call(
        "POST",
        "/backfills",
        dag_id="enhance_listings",
        from_date=f"{first}T00:00:00Z",
        to_date=f"{last}T00:00:00Z",
        max_active_runs=2,
        reprocess_behavior="none",
    )
    started = airflow.wait(
        "two backfill runs",
        lambda: (found := [r for r in airflow.runs() if r["run_type"] == "backfill"]) and len(found) == 2 and found,
        60,
    )
    for run in started:
        airflow.wait_for_run(run["dag_run_id"], seconds=600)
    dates = {run_folder(airflow, r["dag_run_id"]).parent.name for r in started}
    assert dates == {f"dt={first}", f"dt={last}"}


def test_a_manual_run_without_a_logical_date_uses_its_run_after_date(airflow: Airflow) -> None:
    run = airflow.call("POST", "/dags/enhance_listings/dagRuns", logical_date=None, conf={})
    airflow.wait_for_run(run["dag_run_id"], seconds=300)
    assert run_folder(airflow, run["dag_run_id"]).parent.name == f"dt={run['run_after'][:10]}"
