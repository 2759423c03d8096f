"""Replays the engine search on a measured surface: how near it comes to the best cell, and for how much engine time.

`make bench-search` runs `include.tuning` itself, under `tuning.yaml`, with a trial that answers out of the surface in place of an
engine; of the file's grid, what lies within the surface. The surface (benchmarks/surface.py) holds every cell of a grid in the
fine search's steps, each measured several times. A measurement is as many of the cell's, in turn, as come nearest to its
requests, and costs the seconds that they took on the GPU. The exhaustive grid costs one engine start, as the search
does, and every cell measured with as many requests as the search's choice. There are as many replays as measurements of a
cell, each with another one to begin with, and the worst counts. Writes build/bench/search.json.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from include.generation.engine import Request
from include.settings import PROJECT_ROOT, EngineProfile, load_settings
from include.tuning.plan import Candidate, Cell, Grid, TuningSettings, Window, load_tuning
from include.tuning.run import TuningRun, open_folder
from include.tuning.trials import Notebook, Trial, read_rows

SURFACE = PROJECT_ROOT / "benchmarks" / "results" / "h200-surface.jsonl"
TARGET_SHARE, TARGET_TIME = 0.97, 1 / 3
Row = dict[str, Any]


class Surface:
    """One task's measurements, by cell. Raises ValueError where every cell failed."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows: dict[Cell, list[Row]] = {}
        for row in rows:
            self.rows.setdefault(Cell(**row["cell"]), []).append(row)
        self.requests = int(rows[0]["requests"])
        self.start_s = float(max(row.get("engine_start_s", 0.0) for row in rows))
        self.repeats = max(map(len, self.rows.values()))
        self.rates = {cell: self.rate(found) for cell, found in self.rows.items()}
        self.best = max(self.rates, key=lambda cell: self.rates[cell])
        if not self.rates[self.best]:
            raise ValueError(
                f"every cell failed for {rows[0]['task']}, the last by: {rows[-1].get('error')}; measure it again"
            )

    @staticmethod
    def rate(rows: Sequence[Row]) -> float:
        """Requests per second over these measurements; 0 where the engine failed in one."""
        failed = any(row.get("error") for row in rows)
        return 0.0 if failed else float(sum(row["requests"] for row in rows) / sum(row["seconds"] for row in rows))

    def nearest(self, cell: Cell) -> Cell:
        """The cell itself, or the measured one with the same way to submit that is the fewest doublings away."""

        def away(other: Cell) -> float:
            names = ("max_num_seqs", "max_num_batched_tokens", "batch_size")
            doublings = sum(abs(math.log2(getattr(cell, name) / getattr(other, name))) for name in names)
            return doublings + (math.inf if other.submit != cell.submit else 0.0)

        return cell if cell in self.rows else min(self.rows, key=away)

    def draws(self, requests: int) -> int:
        """Measurements that come nearest to so many requests."""
        return max(1, round(requests / self.requests))

    def exhaustive_s(self, requests: int) -> float:
        """Engine seconds of every cell measured with so many requests, one start included."""
        count = self.draws(requests) * self.requests
        return self.start_s + sum(count / rate for rate in self.rates.values() if rate)

    def within(self, grid: Grid) -> Grid:
        """The grid without what is larger than any measured cell. Raises ValueError where nothing is left."""
        names = ("max_num_seqs", "max_num_batched_tokens")
        most = {name: max(getattr(cell, name) for cell in self.rows) for name in names}
        left = {name: tuple(v for v in getattr(grid, name) if v <= most[name]) for name in names}
        if not all(left.values()):
            raise ValueError(f"the grid of tuning.yaml lies beyond it, {most} at the most")
        return grid.model_copy(update=left)


class Replay(Trial):
    """A trial that measures by looking up what was measured; `begin` is the measurement that each cell's turns begin with."""

    def __init__(self, surface: Surface, begin: int, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.surface, self.turns = surface, Counter(dict.fromkeys(surface.rows, begin))

    def _asked(self, cell: Cell | Window | None, requests: int) -> Row:
        assert isinstance(cell, Cell)
        near = self.surface.nearest(cell)
        measured, turn = self.surface.rows[near], self.turns[near]
        drawn = [measured[(turn + n) % len(measured)] for n in range(self.surface.draws(requests))]
        self.turns[near] += len(drawn)
        error = next((row["error"] for row in drawn if row.get("error")), "")
        figures = {"requests_per_s": self.surface.rate(drawn), "seconds": sum(row.get("seconds", 0.0) for row in drawn)}
        return {"requests": requests, **figures, "error": error, "off_surface": near != cell}


def replay(surface: Surface, begin: int, base: EngineProfile, tuning: TuningSettings, task: str) -> Row:
    """One search: the cell it ends with, that cell's share of the best one's rate, the engine seconds and how many measurements.

    Both rates are over all of a cell's measurements, not the ones that the search saw.
    """

    def trial(folder: Path, name: str, stage: str, profile: EngineProfile, notebook: Notebook) -> Trial:
        return Replay(surface, begin, folder, name, stage, profile, notebook)

    with tempfile.TemporaryDirectory() as folder:
        open_folder(Path(folder), task, base, tuning, [Request(id="0", messages=[])])
        run = TuningRun(Path(folder), trial)
        ((_, found),) = run.search()
        seconds = surface.start_s + sum(row["seconds"] for row in run.notebook.rows)
        off = sum(row["off_surface"] for row in run.notebook.rows)
    rate = surface.rates[surface.nearest(found.cell)] if found.cell else 0.0
    return {
        "cell": asdict(found.cell) if found.cell else None,
        "share_of_best": round(rate / surface.rates[surface.best], 4),
        "engine_s": round(seconds, 1),
        "measurements": len(run.notebook.rows),
        "off_surface": off,
    }


def search(rows: Sequence[Row], base: EngineProfile, tuning: TuningSettings) -> Row:
    """All replays of one task's surface, and the worst of them."""
    surface = Surface(rows)
    alone = tuning.model_copy(update={"candidates": (Candidate(name="surface"),), "grid": surface.within(tuning.grid)})
    replays = [replay(surface, begin, base, alone, str(rows[0]["task"])) for begin in range(surface.repeats)]
    exhaustive, looks = (surface.exhaustive_s(count) for count in (tuning.requests, tuning.probe_requests))
    slowest = max(row["engine_s"] for row in replays)
    return {
        "share_of_best": min(row["share_of_best"] for row in replays),
        "engine_time_share": round(slowest / exhaustive, 4),
        "engine_time_share_of_single_looks": round(slowest / looks, 4),  # a grid as coarse in time as the first looks
        "best": asdict(surface.best) | {"requests_per_s": round(surface.rates[surface.best], 1)},
        "cells": len(surface.rows),
        "repeats": surface.repeats,
        "exhaustive_s": round(exhaustive, 1),
        "device": rows[0]["device"],
        "replays": replays,
    }


def result_of(rows: Sequence[Row], base: EngineProfile, tuning: TuningSettings) -> Row:
    """The benchmark's result: every task's, and the worst of each figure."""
    tasks: Mapping[str, Row] = {
        task: search([row for row in rows if row["task"] == task], base, tuning)
        for task in dict.fromkeys(row["task"] for row in rows)
    }
    return {
        "share_of_best": min(row["share_of_best"] for row in tasks.values()),
        "engine_time_share": max(row["engine_time_share"] for row in tasks.values()),
        "tasks": tasks,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 1 when a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--surface", type=Path, default=SURFACE)
    parser.add_argument("--profile", default="gpu-qwen3-4b", help="the engine profile that was measured")
    parser.add_argument("--config", type=Path, help="another tuning.yaml")
    parser.add_argument("--out", type=Path, default=PROJECT_ROOT / "build" / "bench" / "search.json")
    options = parser.parse_args(arguments)
    if not options.surface.is_file():
        parser.error(f"no surface {options.surface}: measure one by `python -m benchmarks.surface`")
    base = load_settings().engines[options.profile]
    try:
        result = result_of(read_rows(options.surface), base, load_tuning(options.config))
    except ValueError as error:
        parser.error(f"{options.surface}: {error}")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))
    met = result["share_of_best"] >= TARGET_SHARE and result["engine_time_share"] <= TARGET_TIME
    print(
        f"targets {'met' if met else 'MISSED'}: share_of_best >= {TARGET_SHARE}, engine_time_share <= {TARGET_TIME:.3f}"
    )
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
