"""`LLMBatchOperator` of the common-ai provider on the CPU engine: its task is killed, and the next try attaches to the batch.

Needs apache-airflow-providers-common-ai, which is not among the development pins.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from tests.airflow_services import Airflow, database, free_port, service_settings
from tests.nightly import PROJECT, Nightly, sample_rows

try:
    HAS_PROVIDER = find_spec("airflow.providers.common.ai.batch") is not None
except ModuleNotFoundError:
    HAS_PROVIDER = False
pytestmark = [
    pytest.mark.engine,
    pytest.mark.scheduler,
    pytest.mark.long,
    pytest.mark.skipif(not HAS_PROVIDER, reason="apache-airflow-providers-common-ai is not installed"),
]
REQUESTS = 100
DAG = """
from datetime import timedelta
from airflow.providers.common.ai.operators.llm_batch import LLMBatchOperator
from airflow.sdk import dag

@dag(schedule=None)
def rewrite_titles():
    LLMBatchOperator(
        task_id="titles", requests={requests!r}, result_path="file://{root}/landed", llm_conn_id="own_batches",
        model_id="listing-engine:cpu-smollm2-title", max_tokens=24, poll_interval=30, deferrable=False,
        retries=2, retry_delay=timedelta(seconds=5),
    )

rewrite_titles()
"""


@pytest.fixture
def airflow(tmp_path: Path, postgres_server: str) -> Iterator[Airflow]:
    port, metadata = free_port(), database(postgres_server, "airflow_batch")
    (tmp_path / "dags").mkdir()
    prompts = [f"Rewrite this title: {row['title']}" for row in sample_rows(REQUESTS)]
    (tmp_path / "dags" / "rewrite_titles.py").write_text(DAG.format(requests=prompts, root=tmp_path))
    project = tmp_path / "project"  # the entry point, as `pip install --no-deps -e .` registers it
    project.mkdir()
    shutil.copy(PROJECT / "pyproject.toml", project)
    install = ("pip", "install", "-q", "--no-deps", "--target", str(tmp_path / "site"))
    subprocess.run([sys.executable, "-m", *install, str(project)], check=True)
    nightly = Nightly(
        tmp_path,
        **service_settings(metadata, port),
        AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT="30",
        AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL="5",
        AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION="False",
        AIRFLOW_CONN_OWN_BATCHES=json.dumps({"conn_type": "generic", "host": str(tmp_path / "batches")}),
    )
    nightly.env |= {"AIRFLOW__CORE__DAGS_FOLDER": str(tmp_path / "dags")}
    nightly.env["PYTHONPATH"] += f":{tmp_path / 'site'}"
    few = {"max_num_seqs": 4}  # answers come bit by bit
    nightly.edit(
        "engines/cpu-smollm2-title.yaml", lambda c: c | {"engine_args": c["engine_args"] | few, "batch_size": 4}
    )
    assert nightly.command("airflow", "db", "migrate").returncode == 0
    running = Airflow(nightly, port, "rewrite_titles")
    try:
        running.ready()
        yield running
    finally:
        running.stop()


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def test_a_killed_task_attaches_to_its_batch_which_never_stopped(airflow: Airflow) -> None:
    root = airflow.nightly.root
    run_id = airflow.call("POST", "/dags/rewrite_titles/dagRuns", logical_date=None, conf={})["dag_run_id"]
    folder = airflow.wait("batch", lambda: next((root / "batches").glob("*/process.json"), None), 120).parent
    airflow.wait("first answers", lambda: len(lines(folder / "results.jsonl.part")) >= 4, 180)
    process = json.loads((folder / "process.json").read_text())
    workers = [p for p in psutil.Process(airflow.scheduler.pid).children() if "airflow worker" in " ".join(p.cmdline())]
    busy = [p for p in workers if "<idle>" not in " ".join(p.cmdline())]  # an idle one may hold the executor's queue
    assert len(busy) == 1
    for victim in [*busy, *busy[0].children(recursive=True)]:
        if os.getpgid(victim.pid) != process["pid"]:
            victim.kill()
    assert psutil.pid_exists(process["pid"]), "the batch ended with its task"
    airflow.wait_for_run(run_id, seconds=600)

    assert airflow.tries(run_id, "titles") == {-1: 2}
    assert json.loads((folder / "process.json").read_text()) == process, "the batch was started again"
    assert [path.parent for path in (root / "batches").glob("*/process.json")] == [folder]
    answered = [row["custom_id"] for row in lines(folder / "results.jsonl")]
    assert len(answered) == len(set(answered)) == REQUESTS
    landed = [row for path in (root / "landed").rglob("*.jsonl") for row in lines(path)]
    assert len(landed) == REQUESTS
