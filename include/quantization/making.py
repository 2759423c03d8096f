"""Makes a quantized checkpoint with llm-compressor, in the compressed-tensors format that vLLM loads without further settings.

The folder appears by one rename, whole, with `quantization.json` beside the weights: what it was made of, and how.
"""

from __future__ import annotations

import json
import logging
import os
import random
import shutil
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from include.generation.engine import Request
from include.generation.merging import RECORD, merged_model
from include.generation.model import ModelError, sha256_file
from include.quantization.recipes import SCHEMES
from include.settings import SettingsError
from include.tuning.workload import read_requests

log = logging.getLogger(__name__)

# What prompts are read by. A base's weights and their index would name files that the new folder does not have.
PROMPT_FILES = ("tokenizer*", "vocab*", "merges*", "*_tokens*", "chat_template*", "generation_config.json")


def model_folder(model: str, revision: str | None) -> Path:
    """The model's folder, from Hugging Face's cache or hub for an id. Raises SettingsError where there is none."""
    if (Path(model) / "config.json").is_file():
        return Path(model)
    if model.startswith((".", "/")):
        raise SettingsError(f"--model {model} is no model folder: it has no config.json")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(model, revision=revision))
    except (OSError, ValueError) as error:
        raise SettingsError(f"--model {model} is neither a folder nor to be had from the hub: {error}") from error


def make(
    model: str,
    prompts: Path,
    scheme: str,
    out: Path,
    *,
    revision: str | None = None,
    adapter: Path | None = None,
    samples: int = 512,
    seed: int = 7,
) -> dict[str, Any]:
    """Writes the checkpoint folder `out` and returns its record; a folder that was made of the same is left as it is.

    `model` is a folder or a Hugging Face id; `adapter` is folded in first, since a quantized model takes none later. `prompts` is a workload file (see
    include.tuning.workload); a seeded draw of at most `samples` of them calibrates. Raises SettingsError, which names
    what to change.
    """
    if samples < 1:
        raise SettingsError(f"--samples {samples}: a recipe is calibrated with at least one prompt")
    base = model_folder(model, revision)
    try:
        requests = read_requests(prompts)
        folded = sha256_file(adapter / "adapter_model.safetensors") if adapter else None
        base = Path(merged_model(str(base), str(adapter))) if adapter else base
    except (OSError, ValueError, ModelError) as error:
        raise SettingsError(str(error)) from error
    if not (weights := sorted(base.glob("*.safetensors"))):
        raise SettingsError(f"{base} has no *.safetensors: only such weights can be quantized")
    drawn = random.Random(seed).sample(requests, min(samples, len(requests)))  # noqa: S311 - a draw, no secret
    made_of: dict[str, Any] = {
        "scheme": scheme,
        "recipe": {"quantize_stage": {"quantize_modifiers": SCHEMES[scheme]}},
        "model_sha256": {path.name: sha256_file(path) for path in weights},
        "adapter_sha256": folded,
        "prompts_sha256": sha256_file(prompts),
        "samples": len(drawn),
        "seed": seed,
    }
    if out.exists():
        known: dict[str, Any] = {}
        with suppress(OSError, ValueError):
            known = json.loads((out / RECORD).read_text(encoding="utf-8"))
        if isinstance(known, dict) and {name: known.get(name) for name in made_of} == made_of:
            return dict(known)
        raise SettingsError(f"{out} exists and was made of something else: choose a new folder, or remove it")
    out.parent.mkdir(parents=True, exist_ok=True)
    hidden = out.with_name(f".{out.name}.{uuid.uuid4().hex}")
    began = time.monotonic()
    try:
        tokens = quantize(base, drawn, made_of["recipe"], hidden)
        for path in (path for pattern in PROMPT_FILES for path in base.glob(pattern)):  # byte for byte, as before
            if path.is_file() and not (hidden / path.name).exists():
                shutil.copy(path, hidden / path.name)
        record = made_of | {
            "model": str(base),
            "prompts": str(prompts),
            "calibration_tokens": tokens,
            "seconds": round(time.monotonic() - began, 1),
            "megabytes": round(_megabytes(hidden), 1),
            "megabytes_before": round(_megabytes(base), 1),
            "versions": {n: version(n) for n in ("llmcompressor", "compressed-tensors", "torch", "transformers")},
        }
        for path in hidden.iterdir():
            path.chmod(0o644)
        (hidden / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        os.replace(hidden, out)
    finally:
        shutil.rmtree(hidden, ignore_errors=True)
    log.info("%s: %s, %.0f MB instead of %.0f", out, scheme, record["megabytes"], record["megabytes_before"])
    return record


def _megabytes(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.glob("*.safetensors")) / 1e6


def quantize(base: Path, requests: Sequence[Request], recipe: dict[str, Any], out: Path) -> int:
    """Runs the recipe over the requests' prompts and writes weights and configuration to `out`; returns the tokens read.

    Raises SettingsError where the recipe does not fit the model's shape.
    """
    import torch
    from datasets import Dataset
    from llmcompressor import oneshot
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    tokenizer, given = AutoTokenizer.from_pretrained(base), AutoConfig.from_pretrained(base).dtype
    rows = []
    for request in requests:
        text = tokenizer.apply_chat_template(
            [dict(m) for m in request.messages],
            tokenize=False,
            add_generation_prompt=True,
            enable_thinking=request.thinking,
        )
        rows.append(tokenizer(text, add_special_tokens=False))
    longest = max(len(row["input_ids"]) for row in rows)
    on_gpu = torch.cuda.is_available()  # a CPU without AVX-512 calibrates several times slower in bfloat16
    model = AutoModelForCausalLM.from_pretrained(
        base, dtype="auto" if on_gpu else torch.float32, device_map="cuda" if on_gpu else None
    )
    try:
        oneshot(
            model=model,
            tokenizer=tokenizer,
            dataset=Dataset.from_list([dict(row) for row in rows]),
            recipe=json.dumps(recipe),
            num_calibration_samples=len(rows),
            max_seq_length=longest,
            shuffle_calibration_samples=False,
        )
    except ValueError as error:
        raise SettingsError(f"{base} does not take this recipe, choose another --scheme: {error}") from error
    if given is not None:  # outside quantized layers, all is saved as it came; within, scales keep their precision
        for module in (module for module in model.modules() if not hasattr(module, "quantization_scheme")):
            for parameter in module.parameters(recurse=False):
                parameter.data = parameter.data.to(given)
        model.config.dtype = given
    model.save_pretrained(out, save_compressed=True)
    return sum(len(row["input_ids"]) for row in rows)
