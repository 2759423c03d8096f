"""Looks at a profile before an engine is started for it: what can be known in seconds shall not cost a minute."""

from __future__ import annotations

import json
import os
from pathlib import Path

from include.generation.engine import EngineStartError
from include.generation.leases import is_cpu_build, visible_gpus
from include.settings import EngineProfile

# Least compute capability (times ten) that runs a scheme's arithmetic; below it vLLM refuses, or keeps the low precision
# for the weights alone without saying so in any figure.
_MINIMUM = {"fp8": 89, "nvfp4": 100, "modelopt_fp4": 100, "mxfp4": 90}


def _refuse(message: str, kind: str, *, retryable: bool = False) -> EngineStartError:
    return EngineStartError(message, kind=kind, retryable=retryable)


def check_profile(profile: EngineProfile, *, device: bool = False) -> None:
    """Checks the model's files, or with `device` what the leased GPU can run. Raises EngineStartError; see its `kind`.

    A local folder, and a model that the cache holds, are then loaded without asking the network. An endpoint has its own
    model: there is nothing to check.
    """
    if profile.kind != "vllm":
        return
    if device:
        _check_quantization(profile)
    elif profile.is_local:
        _check_folder(Path(profile.model_path()), profile)
        os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    else:
        _check_hub(profile)


def _check_folder(folder: Path, profile: EngineProfile) -> None:
    if not (folder / "config.json").is_file():
        raise _refuse(
            f"no model at {folder}: `make prepare` makes the default one; else set `model` of engine profile "
            f"{profile.name!r} to a folder with config.json, or to a Hugging Face id",
            "model_not_found",
        )
    dummy = profile.engine_args.get("load_format") == "dummy"
    if not dummy and not any(folder.glob("*.safetensors")):
        raise _refuse(f"{folder} holds no *.safetensors file; other weight formats are not loaded", "model_not_found")


def _check_hub(profile: EngineProfile) -> None:
    if not profile.revision:
        raise _refuse(
            f"engine profile {profile.name!r} names {profile.model} without `revision`: pin a commit, so that a push to "
            "the hub cannot change tonight's copy",
            "model_not_found",
        )
    import huggingface_hub
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    cached = huggingface_hub.try_to_load_from_cache(profile.model, "config.json", revision=profile.revision)
    if isinstance(cached, str):
        os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
        return
    try:
        huggingface_hub.model_info(profile.model, revision=profile.revision, timeout=10)
    except (RepositoryNotFoundError, RevisionNotFoundError, GatedRepoError) as error:
        raise _refuse(f"{profile.model} at {profile.revision}: {error}", "model_not_found") from error
    except Exception as error:
        raise _refuse(
            f"{profile.model} is not in the local cache and the hub cannot be reached ({type(error).__name__}): use a "
            "local folder, or fill the cache beforehand",
            "no_egress",
            retryable=True,
        ) from error


def scheme_of(profile: EngineProfile) -> str:
    """The quantization a profile will run: its own, else what the local checkpoint says; empty for none."""
    named = str(profile.engine_args.get("quantization") or "")
    if named or not profile.is_local:
        return named
    try:
        found = json.loads((Path(profile.model_path()) / "config.json").read_text()).get("quantization_config") or {}
    except (OSError, ValueError):
        return ""
    return f"{found.get('quant_method', '')} {found.get('format', '')} {found.get('quant_algo', '')}".strip().lower()


def _check_quantization(profile: EngineProfile) -> None:
    scheme = scheme_of(profile)
    if not scheme:
        return
    needed = next((capability for name, capability in _MINIMUM.items() if name in scheme), None)
    if is_cpu_build():
        if needed is not None:
            raise _refuse(f"{scheme} needs a GPU, and this is vLLM's CPU build", "unsupported_quantization")
        return
    for gpu in visible_gpus():
        if needed is not None and gpu.capability < needed:
            raise _refuse(
                f"{scheme} needs compute capability {needed / 10}, GPU {gpu.index} ({gpu.name}) has "
                f"{gpu.capability / 10}: choose a profile without it for this GPU",
                "unsupported_quantization",
            )
