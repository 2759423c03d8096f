"""Measures an exhaustive grid of scheduler settings on one engine: the surface that benchmarks/search.py replays the search on.

`python -m benchmarks.surface --task title --dummy --profile gpu-qwen3-4b --out build/bench/surface-title.jsonl` measures
every cell of a grid in the steps of the fine search, through the tuning run's own code and one engine start. Every cell is
measured once before any is measured again, so that a slow minute hits no cell alone. Each measurement is appended
to `--out` as it is made. It stops when no engine is to be had any more; the same command goes on from there, and measures
again what failed. Several GPUs of a host share the work by `--part 1/2` and `--part 2/2`, with a file each; their lines
together are the surface.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
from collections.abc import Iterator, Sequence
from itertools import product, takewhile
from pathlib import Path
from typing import Any

from benchmarks import dummy_model
from benchmarks.generation import fixed_lengths, work_items
from benchmarks.generation_arms import request_of
from include.settings import EngineProfile, load_settings
from include.tuning.plan import Cell, Grid
from include.tuning.search import STEP, rounded
from include.tuning.trials import Notebook, Trial
from include.tuning.workload import write_requests

KEPT = ("key", "candidate", "repeat", "cell", "requests", "seconds", "requests_per_s", "engine_start_s", "error")


class SurfaceNotebook(Notebook):
    """Short lines: what a replay needs, the task and the device."""

    def __init__(self, path: Path, task: str) -> None:
        super().__init__(path, failures=False)
        self.task = task

    def add(self, row: dict[str, Any]) -> dict[str, Any]:
        device = (row.get("engine") or {}).get("device")
        kept = {name: row[name] for name in KEPT if row.get(name) is not None}
        return super().add({"task": self.task, "device": device} | kept)


def steps(low: int, high: int) -> Iterator[int]:
    """From `high` down to `low` in the fine search's own steps."""
    while high >= low:
        yield high
        high = rounded(high / STEP)


def cells(seqs: tuple[int, int], tokens: tuple[int, int], widest: float) -> list[Cell]:
    """The grid: windows from max_num_seqs to `widest` times as many, refilled and closed, in a seeded order.

    Raises ValueError for no cell."""
    found = [
        Cell(s, t, window, submit)
        for s in steps(*seqs)
        for t in steps(*tokens)
        if t >= s
        for window in steps(s, round(widest * s))
        for submit in ("refill", "closed")
    ]
    if not found:
        raise ValueError(
            f"no cell: --seqs {seqs} and --tokens {tokens} go from low to high, tokens not below sequences"
        )
    random.Random(7).shuffle(found)  # so that neither a drift nor a part falls on one setting
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 1: a measurement failed; its line has the reason."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", required=True)
    parser.add_argument("--profile", required=True)
    parser.add_argument("--dummy", action="store_true", help="a model of Qwen3-4B's shape without weights, on a GPU")
    parser.add_argument("--seqs", type=int, nargs=2, default=(256, 1024), metavar=("LOW", "HIGH"))
    parser.add_argument("--tokens", type=int, nargs=2, default=(8192, 16384), metavar=("LOW", "HIGH"))
    parser.add_argument("--widest", type=float, default=2.0, help="widest window, over max_num_seqs")
    parser.add_argument("--requests", type=int, default=2048, help="of one measurement: fills the widest window")
    parser.add_argument("--repeats", type=int, default=3, help="together as many requests as one that counts")
    parser.add_argument("--part", default="1/1", help="this one's share of the cells, such as 1/2")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    part, parts = map(int, options.part.split("/"))
    grid = cells(tuple(options.seqs), tuple(options.tokens), options.widest)[part - 1 :: parts]
    settings = load_settings()
    profile = settings.engines[options.profile]
    items, source = work_items(options.requests)
    folder = options.out.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    if options.dummy:
        changes = {"model": str(dummy_model.make(folder / "qwen3-4b-shape").resolve()), "revision": None}
        args = profile.engine_args | {"load_format": "dummy"}
        profile = EngineProfile.model_validate(profile.model_dump() | changes | {"engine_args": args})
        items = list(fixed_lengths(items, options.task))
    write_requests(folder / "workload.jsonl", [request_of(i, settings.task(options.task), profile) for i in items])
    high = Grid(max_num_seqs=(max(options.seqs),), max_num_batched_tokens=(max(options.tokens),))
    notebook, asked = SurfaceNotebook(options.out, options.task), list(product(range(options.repeats), grid))
    print(f"{source}; {len(asked)} measurements of {options.requests} {options.task} requests", flush=True)
    with Trial(folder, profile.name, "search", high.shape(profile), notebook) as trial:
        rates = [trial.measure(cell, options.requests, n) for n, cell in takewhile(lambda _: not trial.failed, asked)]
    print(f"{len(rates)} of {len(asked)} measurements in {options.out}, {rates.count(None)} of them failed")
    return 1 if None in rates else 0


if __name__ == "__main__":
    sys.exit(main())
