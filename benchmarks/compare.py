"""Static batches of Hugging Face `generate`, the worker's window over offline vLLM, and `vllm serve` under load, side by side.

`python -m benchmarks.compare` asks the same real prompts (see benchmarks.generation) of all three, as
`python -m include.tuning compare` does of a file; on a GPU with `--dummy`. Writes build/bench/compare/compare.json and .html.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from benchmarks import dummy_model
from benchmarks.generation import fixed_lengths, work_items
from benchmarks.generation_arms import request_of
from include.settings import PROJECT_ROOT, load_settings
from include.tuning.__main__ import add_window_options
from include.tuning.compare import common_profile, compare, greedy_requests


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", default="cpu-smollm2-title")
    parser.add_argument("--changes", type=json.loads, default={}, help="JSON of engine arguments to change")
    parser.add_argument("--task", default="title")
    parser.add_argument("--rows", type=int, default=48)
    add_window_options(parser)
    parser.set_defaults(concurrency=[1, 8, 32], rounds=8)
    parser.add_argument("--dummy", action="store_true", help="a model of Qwen3-4B's shape without weights, on a GPU")
    parser.add_argument("--out", type=Path, default=PROJECT_ROOT / "build" / "bench" / "compare")
    options = parser.parse_args()
    settings = load_settings()
    profile, task = settings.engines[options.profile], settings.task(options.task)
    items, source = work_items(options.rows)
    args = profile.engine_args | options.changes
    if options.dummy:
        model = dummy_model.make(options.out.parent / "qwen3-4b-shape")
        profile, args = (
            profile.model_copy(update={"model": str(model), "revision": None}),
            args | {"load_format": "dummy"},
        )
        items = list(fixed_lengths(items, options.task))
    print(f"{source}; profile {profile.name}, task {options.task}", flush=True)
    found = compare(
        options.out,
        common_profile(profile.model_copy(update={"engine_args": args}), options.arms),
        greedy_requests([request_of(item, task, profile) for item in items], task, profile),
        arms=options.arms,
        batches=options.batches,
        concurrency=options.concurrency,
        rounds=options.rounds,
    )
    print(json.dumps(found["rows"], indent=2))
    return int(any(row.get("error") for row in found["rows"]))


if __name__ == "__main__":
    raise SystemExit(main())
