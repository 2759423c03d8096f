"""The ladder of settings that an engine steps down after it ran out of memory or died for no row's fault."""

from __future__ import annotations

from typing import Any

from include.settings import EngineProfile

RUNGS = 3
# vLLM's own defaults on a large GPU, where the profile leaves them open.
_OPEN = {"gpu_memory_utilization": 0.9, "max_num_seqs": 256, "max_num_batched_tokens": 8192}


def demoted(profile: EngineProfile, rung: int) -> EngineProfile:
    """The profile `rung` steps down: each takes 5 points off the KV cache's memory share and halves sequences and tokens.

    The window shrinks with the sequences. Nothing that changes a text is touched, so finished parts stay valid.
    """
    if rung == 0:
        return profile
    arguments: dict[str, Any] = {**_OPEN, **profile.engine_args}
    sequences = max(1, int(arguments["max_num_seqs"]) >> rung)
    arguments |= {
        "gpu_memory_utilization": round(max(0.3, float(arguments["gpu_memory_utilization"]) - 0.05 * rung), 3),
        "max_num_seqs": sequences,
        "max_num_batched_tokens": max(512, sequences, int(arguments["max_num_batched_tokens"]) >> rung),
    }
    window = max(sequences, profile.batch_size >> rung)
    return profile.model_copy(update={"engine_args": arguments, "batch_size": window})
