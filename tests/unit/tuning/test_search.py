"""The search on made-up engines: it stays where an engine can go, comes near the best, and survives failures."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import pytest

from include.tuning.plan import Cell, Grid
from include.tuning.search import Bounds, Measure, find_best, neighbours

GRID = Grid(max_num_seqs=(128, 256, 512, 1024), max_num_batched_tokens=(2048, 8192, 16384))
BOUNDS = Bounds(1024, 16384)
SETTINGS = {"requests": 2_000, "probe_requests": 500, "hopeless": 0.8}


def surface(seqs: float = 600, tokens: float = 6_000, window: float = 1.5) -> Measure:
    """A smooth peak of 100 requests/s; a look sees a tenth less, as ramp and drain take their share."""

    def measure(cell: Cell, requests: int) -> float:
        away = (
            0.10 * math.log2(cell.max_num_seqs / seqs) ** 2
            + 0.05 * math.log2(cell.max_num_batched_tokens / tokens) ** 2
            + 0.04 * math.log2(cell.batch_size / cell.max_num_seqs / window) ** 2
            + (0.05 if cell.submit == "closed" else 0.0)
        )
        return 100 * math.exp(-away) * (0.9 if requests < 2_000 else 1.0)

    return measure


def exhaustive(measure: Measure) -> float:
    """The best rate of a grid far finer than any search measures."""
    sizes = [round(2 ** (7 + n / 4)) for n in range(13)]
    tokens = [round(2 ** (11 + n / 4)) for n in range(13)]
    cells = [
        Cell(s, t, round(s * w), submit)
        for s, t, w, submit in product(sizes, tokens, (1, 1.25, 1.5, 2, 2.5), ("refill", "closed"))
    ]
    return max(measure(cell, 2_000) or 0.0 for cell in cells)


def test_an_engine_that_can_do_none_of_the_earlier_best_cells_gets_the_whole_grid() -> None:
    def small(cell: Cell, requests: int) -> float | None:
        return 500.0 if cell.max_num_seqs <= 128 else None

    found = find_best(GRID.cells(), BOUNDS, small, **SETTINGS, seen=[Cell(1024, 16384, 2048)])
    assert found.cell is not None
    assert (found.cell.max_num_seqs, found.rate) == (128, 500.0)


def test_cells_that_fail_at_full_length_leave_the_next_best_look_its_turn() -> None:
    def breaking(cell: Cell, requests: int) -> float | None:
        return cell.max_num_seqs / 10 + 80 if requests < 2_000 or cell.max_num_seqs < 512 else None

    found = find_best(GRID.cells(), BOUNDS, breaking, **SETTINGS | {"hopeless": 0.1})
    assert found.rate >= 256 / 10 + 80


@pytest.mark.parametrize("bounds", [BOUNDS, Bounds(900, 9_000)])
@pytest.mark.parametrize(
    "cell",
    [
        *GRID.cells(),
        Cell(1, 1, 1),
        Cell(512, 512, 512),
        Cell(700, 2048, 700),
        Cell(3, 5, 4, "closed"),
        Cell(1024, 16384, 5000),
    ],
)
def test_neighbours_stay_within_bounds_and_keep_the_engine_fed(cell: Cell, bounds: Bounds) -> None:
    cell = replace(cell, max_num_seqs=min(cell.max_num_seqs, bounds.max_num_seqs))
    cell = replace(cell, max_num_batched_tokens=min(cell.max_num_batched_tokens, bounds.max_num_batched_tokens))
    found = list(neighbours(cell, bounds))
    for near in found:
        assert 1 <= near.max_num_seqs <= bounds.max_num_seqs
        assert near.max_num_batched_tokens <= bounds.max_num_batched_tokens
        assert near.batch_size >= near.max_num_seqs
        assert near.max_num_batched_tokens >= near.max_num_seqs
    assert replace(cell, submit="closed" if cell.submit == "refill" else "refill") in found


@pytest.mark.parametrize("peak", [(600, 6_000, 1.5), (200, 12_000, 2.0), (1_000, 3_000, 1.0)])
def test_the_best_cell_is_within_three_percent_of_an_exhaustive_grid(peak: tuple[float, float, float]) -> None:
    measure = surface(*peak)
    found = find_best(GRID.cells(), BOUNDS, measure, **SETTINGS)
    assert found.cell is not None
    assert found.rate == measure(found.cell, 2_000)
    assert found.rate >= 0.97 * exhaustive(measure)


def test_cells_that_fail_are_passed_over() -> None:
    def fails(cell: Cell, requests: int) -> float | None:
        return None if cell.max_num_seqs > 512 or cell.submit == "closed" else surface()(cell, requests)

    found = find_best(GRID.cells(), BOUNDS, fails, **SETTINGS)
    assert found.cell is not None
    assert found.cell.max_num_seqs <= 512
    assert found.rate >= 0.97 * max(fails(cell, 2_000) or 0.0 for cell in GRID.cells())


def test_an_engine_that_always_fails_has_no_best_cell() -> None:
    found = find_best(GRID.cells(), BOUNDS, lambda cell, requests: None, **SETTINGS)
    assert (found.cell, found.rate) == (None, 0.0)


def test_a_hopeless_engine_gets_looks_only() -> None:
    asked: list[int] = []

    def measure(cell: Cell, requests: int) -> float | None:
        asked.append(requests)
        return surface()(cell, requests)

    found = find_best(GRID.cells(), BOUNDS, measure, known=200.0, **SETTINGS)
    assert found.cell is not None
    assert asked == [500] * len(GRID.cells())


def test_the_fine_search_keeps_to_its_measurements() -> None:
    asked: list[Cell] = []

    def measure(cell: Cell, requests: int) -> float | None:
        asked.append(cell)
        return surface()(cell, requests)

    find_best([Cell(128, 2048, 128)], BOUNDS, measure, most=3, **SETTINGS)
    assert len(set(asked)) == 1 + 3


def test_cells_beyond_this_engine_are_not_asked() -> None:
    asked: list[Cell] = []

    def measure(cell: Cell, requests: int) -> float | None:
        asked.append(cell)
        return surface()(cell, requests)

    find_best(GRID.cells(), Bounds(256, 8192), measure, seen=[Cell(512, 8192, 512)], **SETTINGS)
    assert max(cell.max_num_seqs for cell in asked) == 256
    assert max(cell.max_num_batched_tokens for cell in asked) == 8192
