"""Tells the ways apart in which an engine fails, so that a person and a scheduler know what to do next."""

from __future__ import annotations

import re
from typing import TypeVar

from include.generation import console
from include.generation.engine import EngineError
from include.generation.processes import DeadlineError

Failure = TypeVar("Failure", bound=EngineError)

# kind: (pattern in the engine's own words, whether the same call may succeed later, what to do)
_KINDS: dict[str, tuple[str, bool, str]] = {
    "gpu_busy": (
        r"Free memory on device .* is less than desired|is less than desired GPU memory utilization",
        True,
        "another process holds GPU memory; it is tried again later",
    ),
    "out_of_memory": (
        r"out of memory|OutOfMemoryError|No available memory for the cache blocks|KV cache .* larger than the available"
        r"|MemoryError|Cannot allocate memory",
        True,
        "lower gpu_memory_utilization, max_num_seqs, max_num_batched_tokens or max_model_len in the engine profile",
    ),
    "no_gpu": (
        r"No CUDA GPUs are available|Failed to infer device type|no CUDA-capable device|NVIDIA driver",
        True,
        "this machine shows no usable GPU: check nvidia-smi and the worker's queue",
    ),
    "unsupported_quantization": (
        r"quantization method .* is not supported|Minimum capability|Unknown quantization method"
        r"|not supported .*(?:compute capability|current GPU)",
        False,
        "choose an engine profile without this quantization for this GPU",
    ),
    "no_egress": (
        r"couldn't connect to|Cannot reach|LocalEntryNotFoundError|outgoing traffic has been disabled|Max retries exceeded"
        r"|Name or service not known|Temporary failure in name resolution|ConnectError|ConnectionError",
        True,
        "the model hub cannot be reached: use a local model folder or fill the cache beforehand",
    ),
    "model_not_found": (
        r"Repo id must|is not a local folder and is not a valid model|Repository Not Found|RepositoryNotFoundError"
        r"|Entry Not Found|does not appear to have a file|Cannot find any model weights|Invalid repository ID|not a valid model"
        r"|RevisionNotFoundError",
        False,
        "check `model` and `revision` of the engine profile; the default model is made by `make prepare`",
    ),
    "bad_engine_args": (
        r"unexpected keyword argument|validation errors? for|Unsupported architectures|Model architectures .* not supported",
        False,
        "check `engine_args` of the engine profile against this vLLM version",
    ),
}


def classify(text: str) -> tuple[str, bool, str]:
    """(kind, retryable, what to do) of an engine's error text; `engine_failed` when nothing fits."""
    for kind, (pattern, retryable, advice) in _KINDS.items():
        if re.search(pattern, text, re.I):
            return kind, retryable, advice
    return "engine_failed", True, "the engine's own lines stand above"


def explain(error: BaseException, failure: type[Failure], *, prefix: str) -> Failure:
    """The engine error that says what really happened: where the client only knows that its engine is gone, the last
    exception line that the engine printed."""
    if isinstance(error, DeadlineError):
        return failure(f"{prefix}: {error}", kind="engine_stalled")
    own = f"{type(error).__name__}: {error}".strip()
    reason = (console.last_error() or own) if console.is_hearsay(own) else own
    kind, retryable, advice = classify(reason)
    return failure(f"{prefix}: {reason} [{kind}: {advice}]", kind=kind, retryable=retryable)
