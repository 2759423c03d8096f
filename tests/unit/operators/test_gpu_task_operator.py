"""GPUTaskOperator: result and errors of the child, its log, secrets by environment only, and an end to every process."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
from airflow.sdk import Connection
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowTaskTimeout
from airflow.sdk.execution_time.timeout import timeout
from airflow.sdk.observability import stats
from airflow.sdk.observability.metrics import stats_utils

from include.settings import PROJECT_ROOT
from listing_operators import gpu
from listing_operators.gpu import GPUTaskOperator

CHILDREN = "tests.unit.generation.children"


def operator(*arguments: Any, **kwargs: Any) -> GPUTaskOperator:
    return GPUTaskOperator(task_id="generate", arguments=[CHILDREN, *arguments], **kwargs)


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the operator logs, as text."""
    found: list[str] = []

    class Log(logging.Logger):
        def _log(self, _level: int, message: Any, args: Any, **_: Any) -> None:  # type: ignore[override]
            found.append(str(message) % args if args else str(message))

    monkeypatch.setattr(GPUTaskOperator, "log", Log("operator"))
    return found


def wait_for_file(path: Path) -> int:
    for _ in range(600):
        if path.exists() and path.read_text():
            return int(path.read_text())
        time.sleep(0.05)
    raise AssertionError(f"{path} did not appear")


def gone(*pids: int) -> bool:
    for _ in range(200):
        if not any(psutil.pid_exists(p) and psutil.Process(p).status() != psutil.STATUS_ZOMBIE for p in pids):
            return True
        time.sleep(0.05)
    return False


def test_the_manifest_comes_back_as_pure_json_and_the_log_has_no_carriage_return(lines: list[str]) -> None:
    manifest = operator("ok", 7).execute({})
    assert manifest == {"task": "title", "requests_per_s": 4.5, "rate": None, "argument": "7"}
    json.dumps(manifest, allow_nan=False)
    assert "done" in lines
    assert not any("\r" in line or "\n" in line for line in lines)


def test_a_long_manifest_is_cut_to_its_plain_figures(lines: list[str]) -> None:
    assert operator("large").execute({}) == {"requests": 3}


@pytest.mark.parametrize(
    ("what", "error", "message"),
    [
        ("settings", AirflowFailException, "SettingsError: no enhancement task 'x'"),
        ("busy", AirflowException, "gpu_busy: GPU 0 is leased by process 4711"),
        ("bug", AirflowException, "ZeroDivisionError: a bug"),
        ("crash", AirflowException, "child ended with signal 6"),
    ],
)
def test_the_childs_own_error_stands_on_top(what: str, error: type[Exception], message: str, lines: list[str]) -> None:
    with pytest.raises(error) as caught:
        operator(what).execute({})
    assert message in str(caught.value)
    assert isinstance(caught.value, AirflowFailException) == (error is AirflowFailException)


def test_secrets_reach_the_child_by_environment_and_stand_nowhere_else(
    monkeypatch: pytest.MonkeyPatch, lines: list[str]
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_OTHER", "postgres://u:other-secret@h/db")
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "sqlite:///metadata-secret")
    found = {
        "writer": Connection(conn_id="writer", conn_type="openai", host="https://api.example.com/v1", password="k/ey"),
        "db": Connection(conn_id="db", conn_type="postgres", host="h", login="u", password="p w", schema="ads"),
    }
    monkeypatch.setattr(Connection, "get", lambda conn_id: found[conn_id])
    task = operator("environment", connections={"SECRET_API": "writer", "SECRET_DB": "db"}, environment={"EXTRA": "1"})
    values = task.execute({})
    assert values["SECRET_API"] == "https://:k%2Fey@api.example.com/v1"
    assert values["SECRET_DB"] == "postgresql+psycopg://u:p w@h/ads"
    assert values["EXTRA"] == "1"
    assert not any("secret" in value for value in values.values())
    assert not any(secret in line for line in lines for secret in ("k%2Fey", "k/ey", "p w"))


def test_a_timeout_ends_task_child_and_grandchild(tmp_path: Path, lines: list[str]) -> None:
    task = operator("sleep", tmp_path, execution_timeout=timedelta(seconds=4))
    began = time.monotonic()
    with pytest.raises(AirflowTaskTimeout), timeout(4):
        task.execute({})
    assert time.monotonic() - began < 4 + 10
    assert gone(*(int((tmp_path / name).read_text()) for name in ("child", "grandchild")))
    assert (tmp_path / "unwound").exists()


def test_on_kill_ends_even_what_ignores_sigterm(
    tmp_path: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "GRACE_SECONDS", 8.0)
    task = operator("stubborn", tmp_path)
    previous = signal.signal(signal.SIGTERM, lambda *_: task.on_kill())  # as Airflow's task runner does
    pids: list[int] = []

    def kill() -> None:
        pids.extend(wait_for_file(tmp_path / name) for name in ("child", "grandchild"))
        signal.raise_signal(signal.SIGTERM)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        with pytest.raises(AirflowException, match=r"terminated|signal"):
            task.execute({})
    finally:
        signal.signal(signal.SIGTERM, previous)
        killer.join()
    assert gone(*pids)


def _execute(folder: str, what: str) -> None:
    result = operator(what, folder).execute({})
    Path(folder, "result").write_text(json.dumps(result))


def test_a_daemonic_task_process_may_run_it(tmp_path: Path) -> None:
    """Celery's task processes are daemonic: multiprocessing children are refused there, a subprocess is not."""
    process = multiprocessing.get_context("fork").Process(target=_execute, args=(str(tmp_path), "ok"), daemon=True)
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert json.loads((tmp_path / "result").read_text())["task"] == "title"


def test_a_sigkilled_task_takes_its_child_along(tmp_path: Path) -> None:
    process = multiprocessing.get_context("fork").Process(target=_execute, args=(str(tmp_path), "sleep"))
    process.start()
    pids = [wait_for_file(tmp_path / name) for name in ("child", "grandchild")]
    process.kill()
    process.join()
    assert gone(*pids)


def test_the_module_stays_light() -> None:
    """The DAG processor imports it: no engine library, and none of the stages."""
    code = (
        "import sys, listing_operators.gpu as g\n"
        "bad = {'torch', 'vllm', 'transformers', 'pandas', 'great_expectations', 'include.generation'} & set(sys.modules)\n"
        "assert not bad, bad"
    )
    path = f"{PROJECT_ROOT}:{PROJECT_ROOT / 'plugins'}"
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | {"PYTHONPATH": path}, timeout=120)


def test_queue_pool_and_executor_config_pass_through() -> None:
    task = operator("ok", queue="h200", pool="gpu", pool_slots=2, executor_config={"pod_override": "x"}, retries=4)
    assert (task.queue, task.pool, task.pool_slots, task.retries) == ("h200", "gpu", 2, 4)
    assert task.executor_config == {"pod_override": "x"}
    assert "arguments" in task.template_fields


def test_the_names_shared_with_the_child_agree() -> None:
    from include.generation import child, endpoint

    assert gpu.ENDPOINT_VARIABLE == endpoint.ENDPOINT_VARIABLE
    assert (gpu.PARENT_VARIABLE, gpu.RESULT_VARIABLE) == (child.PARENT_VARIABLE, child.RESULT_VARIABLE)
    assert gpu.EXIT_NO_RETRY == child.EXIT_NO_RETRY


def test_the_gauges_reach_a_statsd_server_with_their_tags(monkeypatch: pytest.MonkeyPatch, lines: list[str]) -> None:
    """As in a task: the task runner sets the metrics up from `[metrics]` before it runs the operator."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(10)
        settings = {"ON": "True", "HOST": "127.0.0.1", "PORT": str(server.getsockname()[1]), "INFLUXDB_ENABLED": "True"}
        for name, value in settings.items():
            monkeypatch.setenv(f"AIRFLOW__METRICS__STATSD_{name}", value)
        stats.initialize(factory=stats_utils.get_stats_factory(), export_legacy_names=False)
        try:
            operator("ok", 7).execute({})
            received = server.recv(1024).decode()
        finally:
            monkeypatch.undo()
            stats.initialize(factory=stats_utils.get_stats_factory(), export_legacy_names=False)
    assert received == "airflow.listing_engine.requests_per_s,enhancement_task=title,task_id=generate:4.5|g"


def test_the_dashboard_shows_every_gauge_and_no_other() -> None:
    """A StatsD exporter writes dots as underscores; Airflow's OpenTelemetry exporter has the same prefix."""
    dashboard = json.loads((PROJECT_ROOT / "docker" / "grafana" / "listing-engine.json").read_text("utf-8"))
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    queries += [variable["query"] for variable in dashboard["templating"]["list"]]
    shown = {name for query in queries for name in re.findall(r"airflow_\w+", query)}
    assert shown == {f"airflow_listing_engine_{name}" for name in gpu._METRICS}
