"""The registry of trained task models: under the state URL, one folder per version, and which one is current.

`task-models/<task>/<version>/` holds the adapter and model.json: hashes of weights, data, code and recipe, the training's
metrics and the evaluation. `task-models/<task>/current.json` is replaced atomically.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from hashlib import file_digest
from pathlib import Path
from typing import Any

from include.partitions import Store
from include.settings import PROJECT_ROOT, TEMPLATES_DIR, Settings, digest, resolve_path

FILES = ("adapter_model.safetensors", "adapter_config.json", "metrics.json", "model.safetensors", "config.json")


def file_hash(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def code_hash() -> str:
    """Hash of the code, data and prompts that decide what a model learns."""
    folder = PROJECT_ROOT / "include" / "distillation"
    paths = sorted([*folder.rglob("*.py"), *folder.rglob("*.yaml"), *TEMPLATES_DIR.glob("*.j2")])
    return digest([[path.name, file_hash(path)] for path in paths])


def register(settings: Settings, task: str, model: Path, pairs: Path, evaluation: dict[str, Any]) -> dict[str, Any]:
    """Stores a trained model with its hashes; makes it current when the evaluation found it no worse than the incumbent.

    Returns its record. Raises FileNotFoundError when the folder holds no trained model.
    """
    names = [name for name in FILES if (model / name).is_file()]
    if "metrics.json" not in names or not {"adapter_model.safetensors", "model.safetensors"} & set(names):
        raise FileNotFoundError(f"{model} holds no trained model: run `python -m include.distillation train` first")
    hashes = {name: file_hash(model / name) for name in names if name != "metrics.json"}
    metrics = json.loads((model / "metrics.json").read_text(encoding="utf-8"))
    version = digest([hashes, task], 12)
    store = Store(resolve_path(settings.pipeline.state_url)).child("task-models", task)
    for name in names:
        store.write_bytes(f"{version}/{name}", (model / name).read_bytes())
    record = {
        "task": task,
        "version": version,
        "path": f"{store.url}/{version}",
        "registered_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "files": hashes,
        "data": file_hash(pairs),
        "code": code_hash(),
        "training": metrics,
        "training_hash": digest(metrics),
        "evaluation": evaluation,
        "promoted": bool(evaluation.get("better")),
    }
    store.write_json(f"{version}/model.json", record)
    if record["promoted"]:
        store.write_json("current.json", {"version": version, "path": record["path"]})
    return record
