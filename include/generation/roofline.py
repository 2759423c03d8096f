"""How near a run came to what the GPU could do at best: the roofline of S. Williams et al., "Roofline" (CACM 52(4), 2009).

The best time is the longer of two: the time to do the arithmetic (2 operations per parameter and token) and the time to
move the bytes (the weights once per decode step of a full batch, and each sequence's KV cache once per token).
"""

from __future__ import annotations

import json
from pathlib import Path

from include.settings import EngineProfile

# GPU name part: (dense bfloat16 FLOP/s, dense FP8 FLOP/s or 0, memory bytes/s), from NVIDIA's data sheets.
_GPUS = {
    "H200": (989e12, 1979e12, 4.8e12),
    "H100": (989e12, 1979e12, 3.35e12),
    "A100": (312e12, 0.0, 2.0e12),
    "L40S": (362e12, 733e12, 0.864e12),
    "L4": (121e12, 242e12, 0.3e12),
    "B200": (2250e12, 4500e12, 8.0e12),
}


def _shape(model: str) -> tuple[float, float] | None:
    """(parameters that a token passes through, KV elements per token) of a local dense decoder, from its config.json."""
    try:
        config = json.loads((Path(model) / "config.json").read_text())
        layers, hidden, heads = config["num_hidden_layers"], config["hidden_size"], config["num_attention_heads"]
        kv_heads, head = config.get("num_key_value_heads", heads), config.get("head_dim") or hidden // heads
        attention = hidden * head * (2 * heads + 2 * kv_heads)
        feed_forward = 3 * hidden * config["intermediate_size"]
        return layers * (attention + feed_forward) + hidden * config["vocab_size"], layers * 2 * kv_heads * head
    except (OSError, ValueError, KeyError, TypeError):
        return None


def roofline_share(
    profile: EngineProfile,
    device: str,
    *,
    seconds: float,
    computed_tokens: int,
    output_tokens: int,
    mean_context: float,
) -> float | None:
    """Best possible seconds over the seconds taken, 0 to 1; None where the GPU or the model's shape is not known."""
    peak = next((found for name, found in _GPUS.items() if name in device), None)
    shape = _shape(profile.model_path())
    if peak is None or shape is None or seconds <= 0:
        return None
    parameters, kv_elements = shape
    quantization = str(profile.engine_args.get("quantization") or "")
    kv_type = str(profile.engine_args.get("kv_cache_dtype", "auto"))
    low = "fp8" in quantization and peak[1] > 0
    weight_bytes, kv_bytes = (1 if low else 2), (1 if "fp8" in kv_type else 2)
    arithmetic = 2 * parameters * computed_tokens / (peak[1] if low else peak[0])
    batch = int(profile.engine_args.get("max_num_seqs", 256))
    moved = output_tokens * (parameters * weight_bytes / batch + mean_context * kv_elements * kv_bytes)
    return min(1.0, max(arithmetic, moved / peak[2]) / seconds)
