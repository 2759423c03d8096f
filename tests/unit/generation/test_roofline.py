"""What the GPU could do at best, by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from include.generation.roofline import Ceilings, ModelShape, Work, roof
from include.settings import EngineProfile
from tests.generating import profile

CONFIG = {"num_hidden_layers": 2, "hidden_size": 8, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4,
          "intermediate_size": 16, "vocab_size": 100}  # fmt: skip
CARD = Ceilings(flops=1e6, flops_8bit=2e6, bytes_per_s=1e5)
WORK = Work(computed_tokens=30, output_tokens=10, mean_context=25.0)
# Per layer 8 x 4 x (2 x 2 + 2 x 1) = 192 and 3 x 8 x 16 = 384 weights; head 800; 2 x 2 x 1 x 4 = 16 numbers a token in the cache.
OPERATIONS = 2 * 1152 * 30 + 2 * 800 * 10 + 4 * 16 * 25 * 30


def model(folder: Path, name: str = "model", **config: Any) -> EngineProfile:
    (folder / name).mkdir()
    (folder / name / "config.json").write_text(json.dumps(CONFIG | config))
    return profile(model=str(folder / name))


def group(bits: int, inputs: bool) -> dict[str, Any]:
    return {"quantization_config": {"quant_method": "compressed-tensors", "config_groups": {"group_0": {
        "weights": {"num_bits": bits}, "input_activations": {"num_bits": bits} if inputs else None}}}}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "config", "arguments", "weight", "flops"),
    [
        ("model", {}, {}, 2.0, 1e6),
        ("model", {}, {"quantization": "fp8"}, 1.0, 2e6),
        ("fp8-against-bf16", {}, {}, 2.0, 1e6),  # a name is no precision where the config says that there is none
        ("fp8-trials", {"quantization_config": {"quant_method": "gptq", "bits": 8}}, {}, 1.0, 1e6),
        ("model", {"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}}, {}, 1.0, 1e6),
        ("model", {"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}, {}, 0.5, 1e6),
        ("model", {"quantization_config": {"quant_method": "fp8"}}, {}, 1.0, 2e6),
        ("int8", group(8, False), {}, 1.0, 1e6),  # W8A16: the config knows better than the name
        ("model", group(8, True), {}, 1.0, 2e6),
        ("model", group(4, False), {}, 0.5, 1e6),
        ("model", {"quantization_config": {"quant_method": "awq", "bits": 4}}, {}, 0.5, 1e6),
        ("model", {"quantization_config": {"config_groups": [7]}}, {}, 2.0, 1e6),
    ],
)
def test_the_roof_by_hand(
    tmp_path: Path, name: str, config: dict[str, Any], arguments: dict[str, Any], weight: float, flops: float
) -> None:
    (tmp_path / "fp8").mkdir()  # a folder above the model's says nothing of its weights
    engine = model(tmp_path / "fp8", name, **config)
    engine = engine.model_copy(update={"engine_args": engine.engine_args | arguments})
    shape = ModelShape.of(engine.model_path())
    assert shape == ModelShape(body=1152, head=800, kv_elements=16, attention=16)
    found = roof(engine, shape, CARD, WORK, batch=5)
    assert found.arithmetic_s == pytest.approx(OPERATIONS / flops)
    assert found.memory_s == pytest.approx(10 * ((1152 * weight + 1600) / 5 + 25 * 16 * 2) / 1e5)


def test_a_model_that_is_not_here_is_known_by_its_name_and_a_card_without_8_bits_computes_in_16(tmp_path: Path) -> None:
    shape = ModelShape(body=1152, head=800, kv_elements=16, attention=16)
    named = profile(model="Qwen/Qwen3-4B-FP8")
    assert roof(named, shape, CARD, WORK, batch=5).arithmetic_s == pytest.approx(OPERATIONS / 2e6)
    old = Ceilings(flops=1e6, flops_8bit=0.0, bytes_per_s=1e5)
    assert roof(named, shape, old, WORK, batch=5).arithmetic_s == pytest.approx(OPERATIONS / 1e6)
    cached = model(tmp_path, quantization_config={"kv_cache_scheme": {"num_bits": 8}})
    found = roof(cached, shape, CARD, WORK, batch=5)
    assert found.memory_s == pytest.approx(10 * ((1152 * 2 + 1600) / 5 + 25 * 16) / 1e5)
    assert (found.binds, found.seconds) == (
        "memory" if found.memory_s > found.arithmetic_s else "arithmetic",
        max(found.memory_s, found.arithmetic_s),
    )


@pytest.mark.parametrize("key", ["num_experts", "num_local_experts", "n_routed_experts"])
def test_a_mixture_of_experts_has_no_dense_roof(tmp_path: Path, key: str) -> None:
    assert ModelShape.of(model(tmp_path, **{key: 8}).model_path()) is None
    assert ModelShape.of(str(tmp_path / "nowhere")) is None
