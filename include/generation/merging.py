"""A LoRA adapter folded into its base model, for engines that serve one adapter only.

vLLM applies adapters beside the weights, which lets one engine serve several task models. Where an engine serves one,
folded weights give the same answers at the base model's speed; on a CPU, where vLLM gathers adapter weights per token,
that is several times faster.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import uuid
from pathlib import Path
from typing import Any

from include.generation.model import ModelError, sha256_file
from include.settings import PROJECT_ROOT, digest

log = logging.getLogger(__name__)

MERGED_DIR = PROJECT_ROOT / ".models" / "merged"
RECORD = "quantization.json"  # in a checkpoint made by include.quantization
_PREFIX = "base_model.model."


def merged_model(base: str, adapter: str, dtype: str = "bfloat16", folder: Path = MERGED_DIR) -> str:
    """Folder of `base` with `adapter` folded in, made once and kept by the hashes of both.

    W' = W + (alpha / r) B A, computed in float32 and stored as `dtype` (Hu et al. 2021, "LoRA", section 4.1). A quantized
    base that holds the adapter already is returned as it is. Raises ModelError for a base that is no local folder or is
    quantized without this adapter, and for adapters that are more than plain LoRA on linear layers.
    """
    base_path, adapter_path = Path(base), Path(adapter)
    weights, deltas = base_path / "model.safetensors", adapter_path / "adapter_model.safetensors"
    if not weights.is_file() or not deltas.is_file():
        raise ModelError(f"cannot fold {adapter} into {base}: both must be local folders with one safetensors file")
    if (base_path / RECORD).is_file():
        if json.loads((base_path / RECORD).read_text(encoding="utf-8")).get("adapter_sha256") == sha256_file(deltas):
            return base  # folded in before it was quantized
        raise ModelError(f"{base} is quantized and takes no adapter any more: make it again with --adapter {adapter}")
    key = digest([sha256_file(weights), sha256_file(deltas), dtype])
    target = folder / f"{adapter_path.name}-{key}"
    if not target.is_dir():
        hidden = folder / f".{target.name}.{uuid.uuid4().hex}"
        shutil.copytree(base_path, hidden, ignore=shutil.ignore_patterns("model.safetensors", "hashes.json"))
        try:
            _fold(weights, adapter_path, hidden / "model.safetensors", dtype)
            os.replace(hidden, target)
        except OSError:
            if not target.is_dir():  # another process may have been faster
                raise
        finally:
            shutil.rmtree(hidden, ignore_errors=True)
        log.info("folded adapter %s into %s", adapter_path.name, base_path.name)
    return str(target)


def _fold(weights: Path, adapter: Path, target: Path, dtype: str) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    config: dict[str, Any] = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))
    unusual = [name for name in ("use_dora", "modules_to_save", "alpha_pattern", "rank_pattern") if config.get(name)]
    if unusual or config.get("bias", "none") != "none":
        raise ModelError(f"{adapter} uses {unusual or 'bias'}: fold it with PEFT's merge_and_unload instead")
    rank = int(config["r"])
    scale = config["lora_alpha"] / (rank**0.5 if config.get("use_rslora") else rank)
    tensors = load_file(weights)
    parts = load_file(adapter / "adapter_model.safetensors")
    for name in [n for n in parts if n.endswith(".lora_A.weight")]:
        module = name.removeprefix(_PREFIX).removesuffix(".lora_A.weight") + ".weight"
        if module not in tensors:
            raise ModelError(f"{adapter} changes {module}, which {weights.parent} does not have: another base model?")
        delta = parts[name.replace("lora_A", "lora_B")].float() @ parts[name].float()
        tensors[module] = tensors[module].float() + scale * delta
    kind = getattr(torch, dtype)
    save_file({name: tensor.to(kind).contiguous() for name, tensor in tensors.items()}, target, {"format": "pt"})
