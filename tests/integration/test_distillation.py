"""The distillation commands on a CPU: pairs, a tiny training, and the trained adapter answering on a real engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
TRAIN_PYTHON = Path(os.environ.get("LISTING_TRAIN_PYTHON") or PROJECT / ".venv-train" / "bin" / "python")

pytestmark = [
    pytest.mark.engine,
    pytest.mark.long,
    pytest.mark.skipif(not TRAIN_PYTHON.is_file(), reason="no training environment: `make train-env`"),
]
RECIPE = {
    "rank": 4,
    "batch_size": 2,
    "max_steps": 12,
    "evaluations": 2,
    "held_out_share": 0.3,
    "held_out_rows": 4,
    "workers": 1,
    "max_tokens": 512,
}


def distil(*arguments: object) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "include.distillation", *map(str, arguments)],
        cwd=PROJECT,
        env=os.environ | {"PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]


def test_a_tiny_training_lowers_the_loss_and_its_adapter_answers_in_vllm(tmp_path: Path, default_model: Path) -> None:
    pairs, model, evaluation = tmp_path / "pairs.jsonl", tmp_path / "model", tmp_path / "evaluation.json"
    distil("pairs", "--task", "title", "--world", 300, "--workers", 1, "--out", pairs)
    distil("train", "--task", "title", "--pairs", pairs, "--out", model, "--recipe", json.dumps(RECIPE))
    metrics = json.loads((model / "metrics.json").read_text())
    losses = [row["loss"] for row in metrics["history"] if "loss" in row]
    assert metrics["steps"] == 12
    assert float(losses[-1]) < float(losses[0])
    assert metrics["best_eval_loss"] < float(losses[0])

    common = ["--task", "title", "--pairs", pairs, "--candidate", model, "--held-out-share", 0.3, "--limit", 4]
    distil("evaluate", *common, "--out", evaluation)
    found = json.loads(evaluation.read_text())
    assert found["rows"] == 4
    assert found["candidate"]["mean_words"] > 0
    assert found["incumbent"]["validator_pass_rate"] > 0
