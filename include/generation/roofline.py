"""How near a run came to what the GPU could do at best: the roofline of S. Williams et al., "Roofline" (CACM 52(4), 2009).

The best time is the longer of two: the time to do the arithmetic (2 operations per weight and token, 4 per attended token,
head and head dimension) and the time to move the bytes (the weights once per decode step of a full batch, and each
sequence's KV cache once per token).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from include.settings import EngineProfile


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What a device does at best: dense FLOP/s in bfloat16 and in 8 bits (0: it has none), and bytes/s of its memory."""

    flops: float
    flops_8bit: float
    bytes_per_s: float
    source: str = "data sheet"


# By a part of the GPU's name; from NVIDIA's data sheets. `include.tuning.ceilings` measures them under load.
DATA_SHEETS = {
    "H200": Ceilings(989e12, 1979e12, 4.8e12),
    "H100": Ceilings(989e12, 1979e12, 3.35e12),
    "A100": Ceilings(312e12, 624e12, 2.0e12),
    "L40S": Ceilings(362e12, 733e12, 0.864e12),
    "L4": Ceilings(121e12, 242e12, 0.3e12),
    "B200": Ceilings(2250e12, 4500e12, 8.0e12),
    "RTX PRO 6000": Ceilings(504e12, 1008e12, 1.79e12),
}


def data_sheet(device: str) -> Ceilings | None:
    """The data sheet's ceilings of a GPU name, or None."""
    return next((found for name, found in DATA_SHEETS.items() if name in device), None)


_FOUR_BITS = ("awq", "gptq", "w4a16", "fp4", "nf4", "bitsandbytes")  # in a scheme's or a checkpoint's name
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")  # as Qwen, Mixtral and DeepSeek name them


def _config(model: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((Path(model) / "config.json").read_text())
    return found


def _quantized(profile: EngineProfile) -> dict[str, Any]:
    """What a local checkpoint's config says of its quantization; empty where it says nothing."""
    try:
        return dict(_config(profile.model_path()).get("quantization_config") or {})
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _precision(profile: EngineProfile) -> tuple[float, bool]:
    """Bytes of a weight, and whether products take 8-bit inputs: by the checkpoint's own config, then the engine's argument, then,
    for a model that is not here, by its name."""
    own = _quantized(profile)
    groups = own.get("config_groups")  # compressed-tensors
    for group in groups.values() if isinstance(groups, dict) else ():
        if weights := group.get("weights"):
            return weights["num_bits"] / 8, weights["num_bits"] == 8 and bool(group.get("input_activations"))
    if bits := 8 if own.get("load_in_8bit") else own.get("bits"):  # bitsandbytes; AWQ and GPTQ
        return bits / 8, False
    told = own.get("quant_algo") or own.get("quant_method") or profile.engine_args.get("quantization")
    named = str(told or ("" if profile.is_local else profile.model)).lower()
    if any(name in named for name in ("fp8", "w8a8", "int8")):
        return 1.0, True
    return 0.5 if any(name in named for name in _FOUR_BITS) else 2.0, False


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A dense decoder's sizes, from its config.json."""

    body: float  # weights that every computed token passes through
    head: float  # weights that only sampled tokens pass through
    kv_elements: float  # numbers that a token leaves in the KV cache
    attention: float  # layers x heads x head dimension

    @classmethod
    def of(cls, model: str) -> ModelShape | None:
        """None for a model that is no local folder, is a mixture of experts, or whose config has other keys."""
        try:
            config = _config(model)
            if any(config.get(name) for name in _EXPERTS):
                return None
            layers, hidden, heads = config["num_hidden_layers"], config["hidden_size"], config["num_attention_heads"]
            kv_heads, head = config.get("num_key_value_heads", heads), config.get("head_dim") or hidden // heads
            projections = hidden * head * (2 * heads + 2 * kv_heads)
            feed_forward = 3 * hidden * config["intermediate_size"]
            return cls(
                layers * (projections + feed_forward),
                hidden * config["vocab_size"],
                layers * 2 * kv_heads * head,
                layers * heads * head,
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None


@dataclass(frozen=True, slots=True)
class Work:
    """What a run computed: tokens, and the mean number of tokens that a decoded token attends to."""

    computed_tokens: int  # prompt tokens that no cache served, and output tokens
    output_tokens: int
    mean_context: float


@dataclass(frozen=True, slots=True)
class Roof:
    """Best seconds by each limit, and operations per byte moved."""

    arithmetic_s: float
    memory_s: float
    intensity: float

    @property
    def seconds(self) -> float:
        return max(self.arithmetic_s, self.memory_s)

    @property
    def binds(self) -> str:
        """ "arithmetic" or "memory"."""
        return "arithmetic" if self.arithmetic_s >= self.memory_s else "memory"


def roof(profile: EngineProfile, shape: ModelShape, ceilings: Ceilings, work: Work, batch: int) -> Roof:
    """Best times of a run whose decode steps hold `batch` sequences; `ceilings` are of one device, the engine may have more."""
    weight_bytes, low = _precision(profile)
    low = low and ceilings.flops_8bit > 0
    cache = profile.engine_args.get("kv_cache_dtype", "auto")
    kv_bytes = 1 if "fp8" in str(cache) or (cache == "auto" and _quantized(profile).get("kv_cache_scheme")) else 2
    operations = (
        2 * shape.body * work.computed_tokens
        + 2 * shape.head * work.output_tokens
        + 4 * shape.attention * work.mean_context * work.computed_tokens
    )
    per_step = shape.body * weight_bytes + shape.head * 2  # the head stays in 16 bits
    moved = work.output_tokens * (per_step / batch + work.mean_context * shape.kv_elements * kv_bytes)
    devices = max(1, profile.devices)
    return Roof(
        operations / (ceilings.flops_8bit if low else ceilings.flops) / devices,
        moved / ceilings.bytes_per_s / devices,
        operations / moved if moved else 0.0,
    )


def roofline_share(profile: EngineProfile, device: str, *, seconds: float, work: Work) -> float | None:
    """Best possible seconds over the seconds taken, 0 to 1; None where the GPU or the model's shape is not known."""
    ceilings, shape = data_sheet(device), ModelShape.of(profile.model_path())
    if ceilings is None or shape is None or seconds <= 0:
        return None
    batch = int(profile.engine_args.get("max_num_seqs", 256))
    return min(1.0, roof(profile, shape, ceilings, work, batch).seconds / seconds)
