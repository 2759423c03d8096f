"""The replay of the search on made-up surfaces: what it costs, what it draws, and that a surface can defeat it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import search as benchmark
from benchmarks.surface import cells
from benchmarks.surface import main as measure
from include.tuning.plan import Cell, Grid
from include.tuning.trials import Trial

GRID = cells((256, 1024), (8192, 16384), 2.0)


def peak(cell: Cell) -> float:
    """700 requests/s at 704 sequences in 11,264 tokens, less with every doubling away."""
    away = abs(math.log2(cell.max_num_seqs / 704)) + abs(math.log2(cell.max_num_batched_tokens / 11264))
    return 700 * 0.9**away * (0.97 if cell.submit == "closed" else 1.0)


def spike(cell: Cell) -> float:
    """A cell that no slope leads to."""
    return 900.0 if cell == Cell(352, 11264, 512, "closed") else peak(cell)


def rows(rate: Callable[[Cell], float], repeats: int = 3, noise: float = 0.01) -> list[dict[str, Any]]:
    found = []
    for repeat in range(repeats):
        for number, cell in enumerate(GRID):
            seconds = 2048 / rate(cell) * (1 + noise * math.sin(3 * number + 5 * repeat))
            found.append(
                {"task": "title", "device": "made up", "requests": 2048, "seconds": seconds, "engine_start_s": 50.0}
                | {"cell": {name: getattr(cell, name) for name in Cell.__slots__}, "repeat": repeat}
            )
    return found


def run(tmp_path: Path, found: list[dict[str, Any]]) -> tuple[int, dict[str, Any]]:
    surface, out = tmp_path / "surface.jsonl", tmp_path / "search.json"
    surface.write_text("".join(json.dumps(row) + "\n" for row in found))
    status = benchmark.main(["--surface", str(surface), "--out", str(out)])
    return status, json.loads(out.read_text())


def test_a_slope_is_climbed_within_the_targets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, result = run(tmp_path, rows(peak, noise=0.02))
    task = result["tasks"]["title"]
    assert status == 0
    assert "targets met" in capsys.readouterr().out
    assert result["share_of_best"] >= 0.97
    assert (task["cells"], task["repeats"], len(task["replays"])) == (90, 3, 3)
    assert len({row["engine_s"] for row in task["replays"]}) == 3  # other measurements in turn, other seconds
    assert task["exhaustive_s"] == pytest.approx(50 + sum(3 * 2048 / peak(cell) for cell in GRID), rel=0.01)
    slowest = max(row["engine_s"] for row in task["replays"])
    assert result["engine_time_share"] == pytest.approx(slowest / task["exhaustive_s"], abs=1e-3)


def test_a_peak_that_no_slope_leads_to_is_a_miss(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, result = run(tmp_path, rows(spike))
    assert status == 1
    assert "targets MISSED" in capsys.readouterr().out
    assert result["share_of_best"] < 0.9


def test_the_worst_task_counts_and_a_failed_cell_is_never_chosen(tmp_path: Path) -> None:
    title, description = rows(peak, noise=0), [row | {"task": "description"} for row in rows(spike, noise=0)]
    for row in title:
        if row["cell"]["max_num_seqs"] == 704:
            row["error"] = "out of memory"
    status, result = run(tmp_path, title + description)
    assert status == 1
    assert result["share_of_best"] == result["tasks"]["description"]["share_of_best"]
    assert {row["cell"]["max_num_seqs"] for row in result["tasks"]["title"]["replays"]} != {704}
    assert result["tasks"]["title"]["best"]["max_num_seqs"] != 704


def test_turns_go_round_and_a_long_measurement_takes_several() -> None:
    surface = benchmark.Surface(rows(peak))
    cell = GRID[0]
    each = [row["seconds"] for row in surface.rows[cell]]
    trial = benchmark.Replay(surface, 1, Path(), "x", "search", None, None)
    assert trial._asked(cell, 2048)["seconds"] == each[1]
    assert trial._asked(cell, 6000)["seconds"] == pytest.approx(each[2] + each[0] + each[1])
    assert trial._asked(cell, 2048)["seconds"] == each[2]
    assert surface.nearest(Cell(1024, 16384, 2816, "closed")) == Cell(1024, 16384, 2048, "closed")


def test_a_grid_is_replayed_as_far_as_the_surface_goes() -> None:
    surface = benchmark.Surface(rows(peak))
    grid = Grid(max_num_seqs=(512, 1024, 1536), max_num_batched_tokens=(8192, 32768))
    left = surface.within(grid)
    assert (left.max_num_seqs, left.max_num_batched_tokens, left.windows) == ((512, 1024), (8192,), grid.windows)
    with pytest.raises(ValueError, match=r"lies beyond it, \{'max_num_seqs': 1024"):
        surface.within(Grid(max_num_seqs=(2048,), max_num_batched_tokens=(8192,)))


def test_without_a_surface_it_says_how_to_measure_one(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        benchmark.main(["--surface", "/nowhere.jsonl"])
    assert "no surface /nowhere.jsonl: measure one by `python -m benchmarks.surface`" in capsys.readouterr().err


def test_a_surface_whose_cells_all_failed_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        run(tmp_path, [row | {"error": "no GPU"} for row in rows(peak)])
    assert "every cell failed for title, the last by: no GPU; measure it again" in capsys.readouterr().err


def test_a_measurement_stops_with_its_engine_and_goes_on_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, killed = tmp_path / "surface.jsonl", {"refill"}

    def measured() -> list[str | None]:
        grid = ["--seqs", "64", "64", "--tokens", "8192", "8192", "--widest", "1", "--repeats", "2", "--requests", "64"]
        status = measure(["--task", "title", "--profile", "cpu-smollm2-title", "--out", str(out), *grid])
        errors = [json.loads(line).get("error") for line in out.read_text().splitlines()]
        assert status == any(errors)
        return errors

    def answer(trial: Trial, cell: Cell, requests: int) -> dict[str, Any]:
        return {"requests": requests} | ({"error": "died"} if cell.submit in killed else {"requests_per_s": 9.0})

    monkeypatch.setattr(Trial, "_start", lambda _: {"error": "the GPU is taken"})
    assert measured() == ["the GPU is taken"]
    assert "1 of 4 measurements" in capsys.readouterr().out
    monkeypatch.setattr(Trial, "_asked", answer)
    assert sorted(map(str, measured())) == ["None", "None", "died", "died"]  # a cell's own failure stops no other
    killed.clear()
    assert measured() == [None] * 4
