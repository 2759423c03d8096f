"""The tuning DAG on the real CPU engine: killed half-way, resumed, promoted, and picked up by the next night."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from pathlib import Path

import psutil
import pytest
import yaml

from tests.nightly import PROJECT, Nightly, sample_rows

pytestmark = [pytest.mark.engine, pytest.mark.long]

TUNING = {
    "grid": {"max_num_seqs": [8, 16], "max_num_batched_tokens": [512, 1024], "windows": [1], "submit": ["refill"]},
    "candidates": [{"name": "float32", "engine_args": {"dtype": "float32"}}],
    "baseline_engine_args": {"dtype": "float32", "enforce_eager": True, "max_num_seqs": 1},
    "requests": 16,
    "probe_requests": 16,
    "fine_steps": 1,
    "finalists": 1,
    "repeats": 2,
    "held_out": 8,
    "margin": 0.95,  # eight pairs carry no less
}


def measured(folder: Path) -> list[dict[str, object]]:
    path = folder / "measurements.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def kill_the_run(dag: subprocess.Popen[bytes]) -> None:
    """SIGKILL to the process that measures, as a machine does that runs out of memory."""
    for child in psutil.Process(dag.pid).children(recursive=True):
        if child.cmdline()[1:4] == ["-m", "include.tuning", "run"]:
            child.kill()
            return
    raise AssertionError("no process measures")


def test_a_killed_tuning_run_goes_on_and_its_profile_runs_the_next_night(tmp_path: Path) -> None:
    nightly = Nightly(tmp_path)
    nightly.open_gate("title")
    slow = {"max_num_seqs": 1}
    nightly.edit(
        "engines/cpu-smollm2-title.yaml", lambda c: c | {"engine_args": c["engine_args"] | slow, "batch_size": 1}
    )
    (nightly.config / "tuning.yaml").write_text(yaml.safe_dump(TUNING))
    nightly.set_up(sample_rows(16))
    first = nightly.run(enhancement_tasks=["title"])
    assert first.returncode == 0, (first.stdout + first.stderr)[-4000:]
    before = set((PROJECT / "build" / "tuning").glob("*"))
    conf = json.dumps({"task": "title", "auto_approve": True})
    log = (tmp_path / "tuning.log").open("wb")
    dag = subprocess.Popen(
        ["airflow", "dags", "test", "tune_task_model", "--conf", conf],
        cwd=PROJECT, env=nightly.env, stdout=log, stderr=subprocess.STDOUT,
    )  # fmt: skip
    folder = None
    try:
        until = time.monotonic() + 400
        while folder is None or len(measured(folder)) < 4:
            assert dag.poll() is None, (tmp_path / "tuning.log").read_text()[-4000:]
            assert time.monotonic() < until
            folder = next(iter(set((PROJECT / "build" / "tuning").glob("*")) - before), None)
            time.sleep(0.5)
        kept = measured(folder)
        kill_the_run(dag)
        assert dag.wait(timeout=900) == 0, (tmp_path / "tuning.log").read_text()[-6000:]
        rows = measured(folder)
        assert rows[: len(kept)] == kept
        assert len({(row["key"], row["repeat"]) for row in rows}) == len(rows)
        result = json.loads((folder / "result.json").read_text())
        assert result["finalists"][0]["ratio"] > 1
        assert "holds" in next(iter(json.loads((folder / "quality.json").read_text())["candidates"].values()))
        assert (folder / "report.html").stat().st_size > 5_000
    finally:
        dag.kill()
        log.close()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
    again = nightly.run(enhancement_tasks=["title"], force=True)
    assert again.returncode == 0, (again.stdout + again.stderr)[-4000:]
    manifests = sorted((tmp_path / "data").rglob("manifests/title/generate-0000.json"), key=lambda p: p.stat().st_mtime)
    old, new = (json.loads(path.read_text()) for path in (manifests[0], manifests[-1]))
    assert old["promotion"] is None
    assert new["promotion"]
    assert new["engine"]["max_num_seqs"] in (8, 16)
