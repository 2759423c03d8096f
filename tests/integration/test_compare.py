"""The comparison on the real CPU engine: the same prompts by `generate`, by the worker's window and by `vllm serve`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from include.generation.engine import Request
from include.settings import PROJECT_ROOT, load_settings
from include.tuning.workload import write_requests
from tests.generating import item

pytestmark = [pytest.mark.engine, pytest.mark.long]


def test_three_arms_give_the_same_answers_at_their_own_speed(default_model: Path, tmp_path: Path) -> None:
    from include.generation.answers import first_request

    settings = load_settings()
    task = settings.task("title")
    mugs = [item(n, description=f"A stoneware mug of {n + 2} dl. {'Dishwasher safe. ' * n}") for n in range(4)]
    prompts: list[Request] = [first_request(mug, task, settings.engines[task.engine]) for mug in mugs]
    write_requests(tmp_path / "prompts.jsonl", prompts)
    command = [
        sys.executable, "-m", "include.tuning", "compare", "--prompts", str(tmp_path / "prompts.jsonl"), "--task", "title",
        "--out", str(tmp_path / "out"), "--batches", "4", "--concurrency", "2",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=PROJECT_ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-4000:]
    static, offline, served = json.loads((tmp_path / "out" / "compare.json").read_text())["rows"]
    assert [row.get("error") for row in (static, offline, served)] == [None] * 3
    assert static["output_tokens_per_request"] == offline["output_tokens_per_request"]
    assert static["output_tokens_per_request"] == served["output_tokens_per_request"]
    assert 0 < static["padded_share"] < 1
    assert 0 < served["ttft_p50_s"] < served["latency_p50_s"] <= served["latency_p95_s"]
    assert served["requests"] == 4
    assert (tmp_path / "out" / "compare.html").stat().st_size > 10_000
