"""The same prompts answered in other ways than the nightly worker's, so that what batching gives is seen on one's own hardware.

Three arms, one after the other, each in processes of its own: static batches by Hugging Face `generate`, the worker's window over
offline vLLM, and `vllm serve` at rising concurrency. Model, dtype, rendered prompts and lengths are the same, and all are greedy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from include.generation.engine import Request
from include.generation.leases import device_name
from include.generation.merging import merged_model
from include.generation.model import ModelError
from include.settings import EngineProfile, SettingsError, TaskSettings, resolve_path
from include.tuning.plan import Window
from include.tuning.report import write_comparison
from include.tuning.run import versions
from include.tuning.trials import Notebook, Trial, write_json
from include.tuning.workload import write_requests

_ENGINE_ONLY = {"quantization", "kv_cache_dtype", "speculative_config"}  # what `generate` cannot do alike
_WITHOUT_EFFECT = {"temperature", "top_p", "top_k", "min_p", "seed"}  # on greedy answers


def greedy_requests(requests: Iterable[Request], task: TaskSettings, profile: EngineProfile) -> list[Request]:
    """The requests with what every arm can do alike: greedy, `max_tokens`, `ignore_eos`.

    Raises SettingsError, which names the prompt, for other sampling parameters and adapters.
    """
    found: list[Request] = []
    for request in requests:
        values = {**profile.sampling_params, **task.sampling_params, **request.sampling_params}
        kept = {"max_tokens": int(values.pop("max_tokens", 16)), "ignore_eos": bool(values.pop("ignore_eos", False))}
        if unknown := sorted(values.keys() - _WITHOUT_EFFECT):
            raise SettingsError(
                f"prompt {request.id}: {', '.join(unknown)} cannot be the same in every arm: take it out of the file's "
                f"sampling_params, those of the task or of engine profile {profile.name!r}"
            )
        if found and kept["ignore_eos"] != found[0].sampling_params["ignore_eos"]:
            raise SettingsError(
                f"prompt {request.id}: ignore_eos differs from the prompts before it; set it in all or none"
            )
        if request.adapter and request.adapter != profile.lora:
            raise SettingsError(
                f"prompt {request.id}: adapter {request.adapter} is not engine profile {profile.name!r}'s; name its profile"
            )
        sampling = {"temperature": 0.0, **kept}
        found.append(
            Request(id=request.id, messages=request.messages, sampling_params=sampling, thinking=task.thinking)
        )
    return found


def common_profile(profile: EngineProfile, arms: Sequence[str]) -> EngineProfile:
    """The profile as every arm can run it: one engine, the adapter folded in, and for `generate` the weights as they are.

    Raises SettingsError for an endpoint, and for an adapter that cannot be folded in.
    """
    if profile.kind != "vllm":
        raise SettingsError(f"engine profile {profile.name!r} is an endpoint: name one of kind vllm")
    args, model = dict(profile.engine_args), profile.model
    if "generate" in arms:
        args = {name: value for name, value in args.items() if name not in _ENGINE_ONLY}
    if profile.lora:
        dtype = args.get("dtype", "auto")
        try:
            model = merged_model(
                profile.model_path(), resolve_path(profile.lora), "bfloat16" if dtype == "auto" else dtype
            )
        except ModelError as error:
            raise SettingsError(str(error)) from error
    changes = {"model": model, "lora": None, "merge_lora": False, "engines": 1, "engine_args": args}
    return EngineProfile.model_validate(profile.model_dump() | changes)


def compare(
    folder: Path,
    profile: EngineProfile,
    requests: Sequence[Request],
    *,
    arms: Sequence[str],
    batches: Sequence[int],
    concurrency: Sequence[int],
    rounds: int,
) -> dict[str, Any]:
    """Measures every arm anew and writes `compare.json` and `compare.html` after each; what fails is a result.

    A window of `generate` and `serve` answers at most `rounds` times itself: one at a time would take all day on a large file.
    Takes what `greedy_requests` and `common_profile` made.
    """
    windows = {"generate": batches, "serve": concurrency, "offline": [profile.batch_size]}
    if (widest := max([0, *(size for arm in arms if arm != "offline" for size in windows[arm])])) > len(requests):
        raise SettingsError(
            f"{widest} at a time never fills with {len(requests)} prompts: give more, or lower --batches and --concurrency"
        )
    if (folder / "plan.json").exists():
        raise SettingsError(f"{folder} holds a tuning run, whose measurements would be lost: choose another folder")
    folder.mkdir(parents=True, exist_ok=True)
    write_requests(folder / "workload.jsonl", requests)
    (folder / "measurements.jsonl").unlink(missing_ok=True)
    notebook, rows = Notebook(folder / "measurements.jsonl"), list[dict[str, Any]]()
    found = {
        "date": datetime.now(UTC).isoformat(),
        "device": device_name(),
        "versions": versions(),
        "prompts": len(requests),
        "profile": profile.model_dump(mode="json"),
        "rows": rows,
    }
    for arm in arms:
        with Trial(folder, arm, "compare", profile, notebook) as trial:
            trial.arm = arm
            for window in windows[arm]:
                count = min(len(requests), len(requests) if arm == "offline" else rounds * window)
                trial.measure(None if arm == "offline" else Window(window), count)
                rows.append({"arm": arm, "window": window} | _figures(notebook.rows[-1]))
        write_json(folder / "compare.json", found)
        write_comparison(folder)
    return found


def _figures(row: dict[str, Any]) -> dict[str, Any]:
    if row.get("error"):
        return {"error": row["error"]}
    names = ("latency_p50_s", "latency_p95_s", "ttft_p50_s", "ttft_p95_s", "padded_share", "requests", "requests_per_s")
    return {name: row.get(name) for name in (*names, "engine_start_s")} | {
        "output_tokens_per_s": row["output_tokens"] / row["seconds"],
        "output_tokens_per_request": row["output_tokens"] / row["requests"],
    }
