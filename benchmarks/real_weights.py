"""A real model as it is, quantized, and spoiled: speed, paired quality of the copy, and what promotion makes of it.

`python -m benchmarks.real_weights --device gpu` runs the title adapter on SmolLM2-135M through `include.tuning`'s own run,
quality comparison and choice: the incumbent in BF16 without CUDA graphs (float32 on a CPU) against the candidates of `tuning.yaml`,
and against *noise*, the same model with a share of each matrix's standard deviation added to its weights, a planted bad candidate
that must be refused. All candidates run with CUDA graphs on a GPU, noise too, so that it may be as fast; whether a candidate's copy
holds is told apart from its speed. A CPU runs no FP8: name a checkpoint of `make quantize-env` there, as `--device cpu
--checkpoint w8a8=FOLDER`.

Listings are those of benchmarks.generation. Started again with the same options, it goes on where it stopped; others need another
--dir. Writes build/bench/real-weights.json, beside --dir and named as it.
"""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.generation import make_run, work_items
from include.generation.leases import device_name
from include.generation.model import prepare_default_model
from include.settings import PROJECT_ROOT, EngineProfile, Settings, SettingsError, load_settings
from include.tuning.plan import Candidate, Grid, TuningSettings, load_tuning
from include.tuning.promotion import verdict
from include.tuning.quality import compare_quality
from include.tuning.run import TuningRun, open_folder, ratio, versions
from include.tuning.trials import write_json
from include.tuning.workload import requests_of_runs

TASK, NOISE = "title", 0.15
# The incumbent and the judge, which runs on the same settings: without graphs an engine starts in half the time.
GPU_ARGS = {
    "dtype": "bfloat16", "max_model_len": 2048, "max_num_seqs": 1024, "max_num_batched_tokens": 16384, "enforce_eager": True,
}  # fmt: skip


def settings_on(device: str) -> Settings:
    """The configured settings; on a GPU its two engine profiles that are needed run there."""
    settings = load_settings()
    if device == "cpu":
        return settings
    changes = {"engine_args": GPU_ARGS, "batch_size": 2048, "environment": {}}
    names = (settings.task(TASK).engine, settings.judge.engine)
    moved = {
        name: EngineProfile.model_validate(settings.engines[name].model_dump() | changes | {"name": name})
        for name in names
    }
    return settings.model_copy(update={"engines": settings.engines | moved})


def spoil(source: Path, target: Path, share: float = NOISE) -> Path:
    """A copy of the model whose matrices have normal noise of `share` of their own standard deviation added; returns it."""
    import torch
    from safetensors.torch import load_file, save_file

    if target.exists():
        return target
    hidden = target.with_name(f".{target.name}")
    shutil.rmtree(hidden, ignore_errors=True)
    shutil.copytree(source, hidden)
    torch.manual_seed(7)
    weights = load_file(source / "model.safetensors")
    for name, weight in weights.items():
        if weight.ndim == 2:
            noise = share * weight.float().std() * torch.randn(weight.shape)
            weights[name] = (weight.float() + noise).to(weight.dtype)
    save_file(weights, hidden / "model.safetensors", metadata={"format": "pt"})
    hidden.rename(target)
    return target


def candidates(
    device: str, checkpoints: dict[str, str], noisy: Path, names: Sequence[str] = ()
) -> tuple[Candidate, ...]:
    """What is compared with the incumbent, or of it what `names` holds; the planted bad one last.

    Raises SettingsError for a name that is none, or stands twice.
    """
    # INT8 products of vLLM's CPU build take 16-bit inputs alone.
    kept = {} if device == "gpu" else {"dtype": "bfloat16"}
    tried = [Candidate(name=n, model=str(Path(f).resolve()), engine_args=kept) for n, f in checkpoints.items()]
    tried += load_tuning().candidates if device == "gpu" else ()
    tried.append(Candidate(name="noise", model=str(noisy)))
    if len({candidate.name for candidate in tried}) < len(tried):
        raise SettingsError(f"a candidate's name stands twice: {', '.join(candidate.name for candidate in tried)}")
    if unknown := sorted(set(names) - {candidate.name for candidate in tried}):
        raise SettingsError(f"no candidate {', '.join(unknown)}; there are {', '.join(c.name for c in tried)}")
    graphs = {"enforce_eager": False, "max_cudagraph_capture_size": GPU_ARGS["max_num_seqs"]} if device == "gpu" else {}
    return tuple(
        candidate.model_copy(update={"engine_args": candidate.engine_args | graphs})
        for candidate in tried
        if not names or candidate.name in names
    )


def told(folder: Path) -> dict[str, Any]:
    """The figures of a finished run and comparison, and the choice with its reasons."""
    result, quality = (json.loads((folder / name).read_text()) for name in ("result.json", "quality.json"))
    rows = {}
    for row in result["finalists"]:
        speedup, bounds = ratio(row["rates"], result["incumbent"]["rates"])
        judged = quality["candidates"].get(row["candidate"], {})
        speed = {"requests_per_s": row["rates"], "speedup": speedup, "speedup_ci95": bounds, "kernels": row["paths"]}
        rows[row["candidate"]] = speed | {name: value for name, value in judged.items() if name != "profile"}
    return {
        "date": result["date"], "device": device_name(), "versions": versions(), "held_out": quality["listings"],
        "incumbent_requests_per_s": result["incumbent"]["rates"], "candidates": rows, "choice": verdict(folder),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "gpu"), required=True)
    parser.add_argument("--checkpoint", action="append", default=[], metavar="NAME=FOLDER", help="a quantized one")
    parser.add_argument("--candidates", nargs="+", default=[], metavar="NAME", help="only these; default: all")
    parser.add_argument("--rows", type=int, default=2048, help="prompts of one speed measurement")
    parser.add_argument("--held-out", type=int, default=2000, help="listings that every side answers")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--dir", type=Path, default=PROJECT_ROOT / "build" / "bench" / "real-weights")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    folder = options.dir.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    noisy = folder / "noise"
    try:
        checkpoints = dict(pair.split("=", 1) for pair in options.checkpoint)
        tried = candidates(options.device, checkpoints, noisy, options.candidates)
    except (SettingsError, ValueError) as error:  # a pair without "=" among them
        parser.error(str(error))
    settings = settings_on(options.device)
    profile = settings.engines[settings.task(TASK).engine]
    spoil(prepare_default_model(), noisy)
    seqs, tokens = (profile.engine_args[name] for name in ("max_num_seqs", "max_num_batched_tokens"))
    tuning = TuningSettings(
        grid=Grid(max_num_seqs=(seqs,), max_num_batched_tokens=(tokens,), windows=(2,), submit=("refill",)),
        candidates=tried,
        baseline_engine_args={name: profile.engine_args[name] for name in ("dtype", "enforce_eager")},
        requests=options.rows, probe_requests=max(options.rows // 4, 2 * seqs), fine_steps=1, finalists=len(tried),
        repeats=options.repeats, margin=0.05, held_out=options.held_out,
    )  # fmt: skip
    items, source = work_items(options.rows + options.held_out)
    print(f"{source}; {', '.join(candidate.name for candidate in tried)} against {profile.name}", flush=True)
    prompts = make_run(folder / "prompts", items[: options.rows], TASK, profile.name, {}).store.url
    held_out = make_run(folder / "held-out", items[options.rows :], TASK, profile.name, {}).store.url
    requests = requests_of_runs([prompts], TASK, settings, limit=options.rows, seed=7)
    open_folder(folder / "tuning", TASK, profile, tuning, requests, device=device_name())
    TuningRun(folder / "tuning").run()
    compare_quality(folder / "tuning", settings, [held_out])
    found = told(folder / "tuning") | {"listings": source}
    write_json(folder.parent / f"{folder.name}.json", found)
    print(json.dumps(found, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
