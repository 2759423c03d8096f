"""The quarantine browser pages, filters and exports over all parts of a run, a batch at a time."""

from __future__ import annotations

import csv
import io
from datetime import date
from pathlib import Path

import pytest

from include.partitions import Store
from include.reporting import refused
from include.reporting.refused import Wanted, csv_lines, refused_page
from tests.finished_runs import finished_run, refusal

DAY = date(2026, 3, 1)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    rows = [refusal(n, "emoji" if n % 4 else "length") for n in range(40)]
    return finished_run(tmp_path, DAY, refusals=rows).store


def every_page(store: Store, wanted: Wanted, limit: int) -> list[str]:
    found, after = [], ""
    while True:
        page = refused_page(store, "title", wanted, after=after, limit=limit)
        assert len(page.rows) <= limit
        found += [row.listing_id for row in page.rows]
        after = page.after
        if not after:
            return found


@pytest.mark.parametrize("limit", [1, 6, 7, 39, 40, 41])
def test_pages_hold_every_row_once(store: Store, limit: int) -> None:
    found = every_page(store, Wanted(), limit)
    assert sorted(found) == [f"L-{n:04d}" for n in range(40)]


@pytest.mark.parametrize(
    ("wanted", "numbers"),
    [
        (Wanted(reason="length"), range(0, 40, 4)),
        (Wanted(text="l-001"), range(10, 20)),
        (Wanted(text="M1"), range(1, 40, 3)),
        (Wanted(reason="length", text="m1"), [4, 16, 28]),
        (Wanted(text="("), []),
    ],
)
def test_filters_take_text_as_it_is(store: Store, wanted: Wanted, numbers: list[int]) -> None:
    assert sorted(every_page(store, wanted, 3)) == [f"L-{n:04d}" for n in numbers]


def test_a_search_that_finds_nothing_stops_and_can_go_on(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refused, "MAX_SEARCHED", 10)
    page = refused_page(store, "title", Wanted(text="L-0019"))
    assert (page.rows, page.searched) == ([], 14)
    assert every_page(store, Wanted(text="L-0019"), 5) == ["L-0019"]


def test_csv_streams_batches_and_disarms_formulas(tmp_path: Path) -> None:
    texts = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", " =1", "＝1", 'plain, "quoted"\nsecond', "a=b"]
    rows = [refusal(n, output=text) for n, text in enumerate(texts)]
    store = finished_run(tmp_path, DAY, refusals=rows, rows_per_part=2).store
    lines = list(csv_lines(store, "title", Wanted()))
    assert len(lines) > 4, "one chunk for each batch"
    found = {row["listing_id"]: row["output"] for row in csv.DictReader(io.StringIO("".join(lines), newline=""))}
    expected = [f"'{text}" for text in texts[:7]] + texts[7:]
    assert [found[f"L-{n:04d}"] for n in range(len(texts))] == expected


def test_no_quarantine_and_a_wrong_cursor(store: Store) -> None:
    assert refused_page(store, "description", Wanted()).rows == []
    with pytest.raises(ValueError, match="invalid literal"):
        refused_page(store, "title", Wanted(), after="part:x")
