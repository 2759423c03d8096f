"""A quantized checkpoint for real: made by the command in its own environment, and loaded again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from include.generation.engine import Request
from include.settings import PROJECT_ROOT
from include.tuning.workload import write_requests

PYTHON = Path(os.environ.get("LISTING_QUANTIZE_PYTHON") or PROJECT_ROOT / ".venv-quantize" / "bin" / "python")
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not PYTHON.is_file(), reason="no quantization environment: `make quantize-env`"),
]
LOAD = """
import sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
tokens = tokenizer("The capital of France is", return_tensors="pt")
print(tokenizer.decode(model.generate(**tokens, max_new_tokens=4, do_sample=False)[0]))
"""


@pytest.mark.parametrize(("scheme", "dynamic"), [("fp8", True), ("fp8-static", False)])
def test_fp8_is_smaller_and_still_knows_what_it_knew(
    scheme: str, dynamic: bool, tmp_path: Path, default_model: Path
) -> None:
    prompts, out = tmp_path / "workload.jsonl", tmp_path / "quantized"
    write_requests(prompts, [Request(id=str(n), messages=[{"role": "user", "content": f"mug {n}"}]) for n in range(4)])
    command = ["include.quantization", "make", "--model", default_model, "--prompts", prompts, "--scheme", scheme]
    environment = os.environ | {"PYTHONPATH": str(PROJECT_ROOT)}

    def told(python: Path | str, *arguments: object) -> str:
        done = subprocess.run(
            [python, *map(str, arguments)],
            cwd=PROJECT_ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=900,
        )
        assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
        return done.stdout

    told(sys.executable, "-m", *command, "--out", out)
    record = json.loads((out / "quantization.json").read_text())
    assert record["megabytes"] < 0.65 * record["megabytes_before"]
    made = json.loads((out / "config.json").read_text())["quantization_config"]
    assert made["quant_method"] == "compressed-tensors"
    assert made["config_groups"]["group_0"]["input_activations"]["dynamic"] is dynamic
    assert "Paris" in told(PYTHON, "-c", LOAD, out)
