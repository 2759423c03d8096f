"""Folding a LoRA adapter into its base: the arithmetic, the cache, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from include.generation.merging import merged_model
from include.generation.model import ModelError

NAME = "base_model.model.model.layers.0.mlp.up_proj"


@pytest.fixture
def parts(tmp_path: Path) -> tuple[Path, Path]:
    base, adapter = tmp_path / "base", tmp_path / "adapter"
    base.mkdir()
    adapter.mkdir()
    save_file(
        {"model.layers.0.mlp.up_proj.weight": torch.zeros(3, 2), "model.norm.weight": torch.ones(2)},
        base / "model.safetensors",
    )
    (base / "config.json").write_text("{}")
    save_file(
        {
            f"{NAME}.lora_A.weight": torch.tensor([[1.0, 2.0]]),
            f"{NAME}.lora_B.weight": torch.tensor([[1.0], [0.0], [3.0]]),
        },
        adapter / "adapter_model.safetensors",
    )
    (adapter / "adapter_config.json").write_text(json.dumps({"r": 1, "lora_alpha": 2, "bias": "none"}))
    return base, adapter


def test_the_folded_weight_is_base_plus_scaled_product(parts: tuple[Path, Path], tmp_path: Path) -> None:
    base, adapter = parts
    folder = Path(merged_model(str(base), str(adapter), "float32", tmp_path / "merged"))
    tensors = load_file(folder / "model.safetensors")
    assert tensors["model.layers.0.mlp.up_proj.weight"].tolist() == [[2.0, 4.0], [0.0, 0.0], [6.0, 12.0]]
    assert tensors["model.norm.weight"].tolist() == [1.0, 1.0]
    assert (folder / "config.json").is_file()


def test_it_is_made_once_and_again_for_another_adapter(parts: tuple[Path, Path], tmp_path: Path) -> None:
    base, adapter = parts
    first = merged_model(str(base), str(adapter), "float32", tmp_path / "merged")
    made = (Path(first) / "model.safetensors").stat().st_mtime_ns
    assert merged_model(str(base), str(adapter), "float32", tmp_path / "merged") == first
    assert (Path(first) / "model.safetensors").stat().st_mtime_ns == made
    assert merged_model(str(base), str(adapter), "bfloat16", tmp_path / "merged") != first
    assert len(list((tmp_path / "merged").iterdir())) == 2, "no half-made folder is left"


def test_other_kinds_of_adapter_and_other_bases_are_refused(parts: tuple[Path, Path], tmp_path: Path) -> None:
    base, adapter = parts
    with pytest.raises(ModelError, match="local folders"):
        merged_model("Qwen/Qwen3-4B", str(adapter), "float32", tmp_path / "merged")
    (adapter / "adapter_config.json").write_text(json.dumps({"r": 1, "lora_alpha": 2, "use_dora": True}))
    with pytest.raises(ModelError, match="use_dora"):
        merged_model(str(base), str(adapter), "float32", tmp_path / "merged")
    assert not list((tmp_path / "merged").iterdir())
