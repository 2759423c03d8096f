"""Airflow's services as processes, and their REST API: what the tests of a whole installation share."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx
import psutil
import sqlalchemy as sa

from tests.nightly import Nightly


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


def address(url: sa.URL, driver: str) -> str:
    """The database's URL for one of Airflow's drivers."""
    return url.set(drivername=f"postgresql+{driver}").render_as_string(hide_password=False)


def service_settings(metadata: sa.URL, port: int, executor: str = "LocalExecutor") -> dict[str, str]:
    """Environment of an Airflow whose services run on this host, with its database on PostgreSQL."""
    return {
        "AIRFLOW__CORE__EXECUTOR": executor,
        "AIRFLOW__CORE__PARALLELISM": "4",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": address(metadata, "psycopg2"),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC": address(metadata, "asyncpg"),
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": f"http://127.0.0.1:{port}",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
        "AIRFLOW__API_AUTH__JWT_SECRET": "only-for-this-test-0123456789abcdef",
        "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "30",
    }


class Airflow:
    """The running services and their REST API, for the runs of one DAG."""

    def __init__(self, nightly: Nightly, port: int, dag: str = "enhance_listings") -> None:
        self.nightly, self.url, self.dag = nightly, f"http://127.0.0.1:{port}", dag
        self.services: list[subprocess.Popen[bytes]] = []
        self.start("api-server", "airflow", "api-server", "--port", str(port), "--workers", "1")
        self.scheduler = self.start("scheduler", "airflow", "scheduler")
        self.start("dag-processor", "airflow", "dag-processor")
        self.client = httpx.Client(base_url=self.url, timeout=120)

    def start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        """A service in a session of its own; its output goes to a log in the folder."""
        with (self.nightly.root / f"{name}.log").open("a") as log:
            service = subprocess.Popen(
                command, env=self.nightly.env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        self.services.append(service)
        return service

    def ready(self) -> None:
        """Waits until the services are well and know the DAG, and logs in."""
        self.wait("healthy Airflow", self.healthy, 120)
        token = self.client.get("/auth/token").json()["access_token"]
        self.client.headers["Authorization"] = f"Bearer {token}"
        self.wait("DAG", lambda: self.dag in self.client.get("/api/v2/dags").text, 120)

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

    def call(self, method: str, path: str, **body: Any) -> Any:
        answer = self.client.request(method, f"/api/v2{path}", json=body or None)
        assert answer.status_code < 300, f"{method} {path}: {answer.status_code} {answer.text[:500]}"
        return answer.json() if answer.content else None

    def runs(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.call("GET", f"/dags/{self.dag}/dagRuns")["dag_runs"]
        return found

    def instances(self, run_id: str, task_id: str) -> dict[int, dict[str, Any]]:
        """The task's instances by map index."""
        found = self.call("GET", f"/dags/{self.dag}/dagRuns/{run_id}/taskInstances?task_id={task_id}&limit=100")
        return {t["map_index"]: t for t in found["task_instances"] if t["task_id"] == task_id}

    def tries(self, run_id: str, task_id: str) -> dict[int, int]:
        """Number of tries of each map index."""
        return {index: found["try_number"] for index, found in self.instances(run_id, task_id).items()}

    def wait_for_run(self, run_id: str, seconds: float = 400) -> None:
        def ended() -> bool:
            now = next(r["state"] for r in self.runs() if r["dag_run_id"] == run_id)
            assert now in {"queued", "running", "success"}, f"run {run_id} ended {now}; logs in {self.nightly.root}"
            return bool(now == "success")

        self.wait(f"success of {run_id}", ended, seconds)

    def stop(self) -> None:
        for service in self.services:
            if service.poll() is None:
                os.killpg(service.pid, signal.SIGTERM)
        for service in self.services:
            try:
                service.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(service.pid, signal.SIGKILL)


def parts(folder: Path, task: str = "title") -> dict[str, float]:
    """Part files of a run's generation, with the time of their writing."""
    return {p.name: p.stat().st_mtime for p in (folder / "generated" / task).rglob("*.parquet")}


def engine_processes() -> list[psutil.Process]:
    """Children of the GPU task operator that generate."""
    return [p for p in psutil.process_iter(["cmdline"]) if "include.generation" in (p.info["cmdline"] or [])]


def dated(rows: list[dict[str, str]], day: Any, prefix: str) -> list[dict[str, str]]:
    return [r | {"listing_id": f"{prefix}-{i}", "updated_at": f"{day}T08:00:00+00:00"} for i, r in enumerate(rows)]


def small_title_runs(nightly: Nightly) -> None:
    """Titles only, an open gate, and answers that come bit by bit, so that a kill finds some written and some not."""
    (nightly.config / "tasks" / "description.yaml").unlink()
    nightly.open_gate("title")
    nightly.edit("pipeline.yaml", lambda c: c | {"rows_per_part": 4})
    few = {"max_num_seqs": 8}
    nightly.edit(
        "engines/cpu-smollm2-title.yaml", lambda c: c | {"engine_args": c["engine_args"] | few, "batch_size": 8}
    )
