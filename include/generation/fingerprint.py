"""The part fingerprint: a hash of everything that affects the bytes of an answer. It decides what a retry may keep."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from include.generation.model import HASHES
from include.settings import EngineProfile, TaskSettings, digest, resolve_path, template_version

# Engine arguments that change speed and memory only; a step down the ladder must not throw finished rows away.
_SPEED_ONLY = frozenset(
    {
        "max_num_seqs",
        "max_num_batched_tokens",
        "gpu_memory_utilization",
        "kv_cache_memory_bytes",
        "block_size",
        "enable_prefix_caching",
        "enable_chunked_prefill",
        "async_scheduling",
        "swap_space",
        "cpu_offload_gb",
        "enforce_eager",
        "compilation_config",
        "cudagraph_capture_sizes",
        "max_cudagraph_capture_size",
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "data_parallel_size",
        "disable_log_stats",
        "max_loras",
        "max_lora_rank",
        "max_cpu_loras",
    }
)


_SAMPLE = 1 << 20


def _file_digest(path: Path) -> str:
    """Hash of a file; of a large one its size and its first and last MiB, so that a 100 GB model costs no minutes."""
    size = path.stat().st_size
    found = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        found.update(file.read(_SAMPLE))
        if size > 64 * _SAMPLE:
            file.seek(-_SAMPLE, os.SEEK_END)
        found.update(file.read())
    return found.hexdigest()


def folder_digest(folder: str) -> str:
    """Hash of a model or adapter folder, the same on every machine: its own file of hashes, else its files' content."""
    path = Path(folder)
    if (path / HASHES).is_file():
        return digest(json.loads((path / HASHES).read_text()))
    files = sorted(file.relative_to(path) for file in path.rglob("*") if file.is_file())
    shown = [file for file in files if not any(part.startswith(".") for part in file.parts)]  # downloads leave a .cache
    return digest([(str(file), _file_digest(path / file)) for file in shown])


def model_identity(profile: EngineProfile) -> dict[str, Any]:
    """Model, revision or content hash, adapter, and the engine arguments that affect its answers."""
    return {
        "kind": profile.kind,
        "model": folder_digest(profile.model_path()) if profile.is_local else profile.model,
        "revision": profile.revision,
        "lora": folder_digest(resolve_path(profile.lora)) if profile.lora else None,
        "engine_args": {k: v for k, v in profile.engine_args.items() if k not in _SPEED_ONLY},
    }


def part_fingerprint(profile: EngineProfile, task: TaskSettings) -> str:
    """Fingerprint of an enhancement task's parts under an engine profile."""
    return digest(
        {
            **model_identity(profile),
            "template": template_version(task.template),
            "prompt_fields": task.prompt_fields,
            "sampling_params": {**profile.sampling_params, **task.sampling_params},
            "thinking": task.thinking,
            "overlong": task.overlong,
        }
    )
