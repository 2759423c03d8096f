"""The real-weights benchmark without an engine: what it compares, how it spoils a model, and what it tells of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from benchmarks.real_weights import GPU_ARGS, candidates, settings_on, spoil, told
from include.settings import SettingsError, digest
from include.tuning.plan import load_tuning

NOISY = Path("/models/noise")


def test_on_a_gpu_every_shipped_candidate_and_noise_have_cuda_graphs_and_the_incumbent_has_none() -> None:
    settings = settings_on("gpu")
    base = settings.engines[settings.task("title").engine]
    assert base.engine_args == settings.engines[settings.judge.engine].engine_args == GPU_ARGS
    assert base.engine_args["enforce_eager"]
    tried = candidates("gpu", {}, NOISY)
    assert [c.name for c in tried] == [*(c.name for c in load_tuning().candidates), "noise"]
    assert not any(c.profile(base).engine_args["enforce_eager"] for c in tried)
    assert tried[-1].profile(base).model_path() == str(NOISY)
    assert base.lora == tried[-1].profile(base).lora


def test_on_a_cpu_checkpoints_get_16_bit_inputs_and_noise_runs_as_the_incumbent_does(tmp_path: Path) -> None:
    tried = candidates("cpu", {"w8a8": str(tmp_path)}, NOISY)
    assert [(c.name, c.model, c.engine_args) for c in tried] == [
        ("w8a8", str(tmp_path), {"dtype": "bfloat16"}),
        ("noise", str(NOISY), {}),
    ]


def test_only_the_named_candidates_are_tried_and_a_wrong_name_is_told() -> None:
    assert [c.name for c in candidates("gpu", {}, NOISY, ["noise", "fp8"])] == ["fp8", "noise"]
    with pytest.raises(SettingsError, match="no candidate fp9; there are bf16, fp8, fp8-kv, noise"):
        candidates("gpu", {}, NOISY, ["fp9", "fp8"])
    with pytest.raises(SettingsError, match="stands twice"):
        candidates("gpu", {"fp8": "folder"}, NOISY)


def test_noise_falls_on_matrices_alone_and_by_the_share_asked_for(tmp_path: Path) -> None:
    source = tmp_path / "model"
    source.mkdir()
    whole = {"a.weight": torch.randn(200, 300, dtype=torch.bfloat16), "norm.weight": torch.ones(300)}
    save_file(whole, source / "model.safetensors")
    target = spoil(source, tmp_path / "noise", share=0.5)
    spoiled = load_file(target / "model.safetensors")
    assert torch.equal(spoiled["norm.weight"], whole["norm.weight"])
    assert spoiled["a.weight"].dtype == torch.bfloat16
    added = (spoiled["a.weight"].float() - whole["a.weight"].float()).std() / whole["a.weight"].float().std()
    assert float(added) == pytest.approx(0.5, rel=0.02)
    before = (target / "model.safetensors").stat().st_mtime_ns
    assert spoil(source, target) == target
    assert (target / "model.safetensors").stat().st_mtime_ns == before, "made once"


@pytest.mark.parametrize(
    ("holds", "choice"), [(True, "fp8 may be promoted"), (False, "nothing is promoted: fp8: worse")]
)
def test_a_finished_run_is_told_with_speed_quality_and_the_gates_choice(
    tmp_path: Path, holds: bool, choice: str
) -> None:
    profile = {"name": "p"}
    rows = [{"candidate": name, "rates": rates, "requests_per_s": rates[1], "paths": ["Marlin"], "profile": profile}
            for name, rates in (("fp8", [30.0, 31.0, 32.0]), ("noise", [9.0, 9.5, 9.2]))]  # fmt: skip
    result: dict[str, Any] = {
        "date": "d",
        "complete": True,
        "finalists": rows,
        "incumbent": {"rates": [10.0, 11.0, 10.5]},
    }
    judged = {"pass_rate": 0.8, "holds": holds, "why": "worse", "profile": digest(profile)}
    (tmp_path / "result.json").write_text(json.dumps(result))
    (tmp_path / "quality.json").write_text(json.dumps({"listings": 7, "candidates": {"fp8": judged}}))
    found = told(tmp_path)
    assert found["choice"].startswith(choice)
    assert ("noise is not shown to be faster" in found["choice"]) is not holds
    fp8 = found["candidates"]["fp8"]
    assert (fp8["speedup"], fp8["pass_rate"], fp8["kernels"], found["held_out"]) == (2.952, 0.8, ["Marlin"], 7)
    assert fp8["speedup_ci95"][0] > 1
    assert "profile" not in fp8
    assert found["candidates"]["noise"]["speedup"] < 1
