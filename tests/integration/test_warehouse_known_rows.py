"""Rows that come again are told by their source hash: less work, and never another outcome."""

from __future__ import annotations

from datetime import date

import pytest
import sqlalchemy as sa

from include.extraction import reading
from include.extraction.catalog import Window
from include.records import EndedCopy, QuarantinedRow
from include.settings import FeedSettings, load_settings
from include.warehouse.database import writing
from include.warehouse.revert import revert
from include.warehouse.upkeep import pin
from tests.integration.warehouse_runs import DAY, STAMP, finish, listings, live, open_run, rows, run_extract, seed, work

NEXT = date(2026, 3, 7)


@pytest.fixture
def cleaned(monkeypatch):
    """Listings that were cleaned since it was last emptied."""
    found = []
    to_listing = reading.to_listing

    def noted(raw, **more):
        found.append(raw[1])
        return to_listing(raw, **more)

    monkeypatch.setattr(reading, "to_listing", noted)
    return found


def night(url, folder, run_id, day=DAY, **spec):
    """One whole night. Returns what became of the listings."""
    run = open_run(folder, run_id, day, **spec)
    counts = run_extract(run, url)["title"]["counts"]
    worked = work(run)
    finish(run, url)
    return counts, worked


def test_only_what_changed_is_cleaned(warehouse_url, tmp_path, cleaned):
    seed(warehouse_url, tmp_path, listings(30))
    night(warehouse_url, tmp_path, "run-1")
    cleaned.clear()
    seed(warehouse_url, tmp_path, listings(31, l7="Teapot"))
    counts, worked = night(warehouse_url, tmp_path, "run-2", NEXT)
    assert sorted(cleaned) == worked == ["l30", "l7"]
    assert (counts["extracted"], counts["unchanged"]) == (31, 29)
    assert len(live(warehouse_url)) == 31
    cleaned.clear()
    assert night(warehouse_url, tmp_path, "forced", NEXT, force=True)[1] == work_of(31)
    assert len(cleaned) == 31


def work_of(count):
    return sorted(f"l{i}" for i in range(count))


def test_copy_without_a_hash_gets_it_when_its_row_is_next_compared(warehouse_url, tmp_path, cleaned):
    seed(warehouse_url, tmp_path, listings(5))
    night(warehouse_url, tmp_path, "run-1")
    with writing(warehouse_url) as connection:
        connection.execute(sa.text("UPDATE listing_copy SET source_hash = ''"))
        connection.execute(sa.text("UPDATE listing_copy SET staleness_key = 'older' WHERE listing_id = 'l3'"))
    for run_id, expected, worked in (("run-2", work_of(5), ["l3"]), ("run-3", [], [])):
        cleaned.clear()
        assert night(warehouse_url, tmp_path, run_id, NEXT)[1] == worked
        assert sorted(cleaned) == expected
    assert rows(warehouse_url, "SELECT count(*) FROM listing_copy WHERE run_id = 'run-1'") == [(4,)]


@pytest.mark.parametrize("change", ["template", "locale", "lineage"])
def test_what_decides_the_staleness_key_decides_whether_a_row_is_known(warehouse_url, tmp_path, cleaned, change):
    seed(warehouse_url, tmp_path, listings(3))
    night(warehouse_url, tmp_path, "run-1")
    settings, task = load_settings(), load_settings().task("title")
    update = {
        "template": {"tasks": {"title": task.model_copy(update={"template": "description.j2"})}},
        "locale": {
            "pipeline": settings.pipeline.model_copy(
                update={"catalog": settings.pipeline.catalog.model_copy(update={"default_locale": "de-DE"})}
            )
        },
        "lineage": {
            "engines": settings.engines
            | {task.engine: settings.engines[task.engine].model_copy(update={"lineage": "other"})}
        },
    }[change]
    assert night(warehouse_url, tmp_path, "run-2", NEXT, settings=settings.model_copy(update=update))[1] == work_of(3)


def test_known_rows_neither_revive_nor_replace_what_stands(warehouse_url, tmp_path):
    """Pinned, reverted to what stood before, and withdrawn: the row alone says nothing of these."""
    seed(warehouse_url, tmp_path, listings(4))
    night(warehouse_url, tmp_path, "run-1")
    pin("m1", "l0", "title", warehouse_url=warehouse_url, text="a person's")
    counts, worked = night(warehouse_url, tmp_path, "run-2", NEXT)
    assert (counts["deferred"], counts["unchanged"], worked) == (1, 3, [])
    seed(warehouse_url, tmp_path, listings(4, l1="Teapot"))
    night(warehouse_url, tmp_path, "run-3", NEXT)
    revert("run-3", "title", warehouse_url=warehouse_url)
    assert live(warehouse_url)["l1"] == "MUG NUMBER 1"
    counts, worked = night(warehouse_url, tmp_path, "run-4", NEXT)  # refused since it was reverted
    assert (counts["unchanged"], worked, live(warehouse_url)["l1"]) == (3, [], "MUG NUMBER 1")
    with writing(warehouse_url) as connection:
        connection.execute(sa.text("DELETE FROM quarantine"))
    assert night(warehouse_url, tmp_path, "run-5", NEXT)[1] == ["l1"]
    with writing(warehouse_url) as connection:
        connection.execute(sa.text("UPDATE listing_copy SET retired_at = published_at WHERE listing_id = 'l2'"))
    assert night(warehouse_url, tmp_path, "run-6", date(2027, 1, 1))[1] == ["l2"]


MESSY = [
    *[[m, f"{m}-{i}", f"Mug {m} {i}", "A <b>mug</b>", STAMP] for m in ("a", "b", "c", "d") for i in range(8)],
    ["c", "zero-width", "Mug\u200b", "", STAMP],
    ["c", "accent", "Größe", "decomposed: e\u0301", STAMP],
    ["ä", "its-shop", "Mug", "", STAMP],
    [" c ", " padded ", "Mug", "", STAMP],
    ["c", "", "Mug without an id", "", STAMP],
    ["c", "soon", "Mug", "", "soon"],
    ["c", "empty", "***", "", STAMP],
    ["c", "later", "Mug", "", "2026-03-09T10:00:00Z"],
    ["c", "c-1", "Mug c 1", "A <b>mug</b>", STAMP],  # the same row again
    ["c", "c-2", "Mug of another title", "", STAMP],
    ["c", "c-3", "Mug of a newer row", "", f"{DAY}T11:00:00Z"],
]


@pytest.mark.parametrize("spec", [{}, {"force": True}, {"merchants": ("b", "c")}, {"row_limit": 3}])
def test_knowing_rows_changes_no_outcome(warehouse_url, tmp_path, monkeypatch, cleaned, spec):
    def write(lines, day):
        text = "".join("\t".join(line) + "\n" for line in lines)
        (tmp_path / f"feed-{day}.tsv").write_text("merchant_id\tid\ttitle\tdescription\tupdated_at\n" + text)

    def outcome(run_id, **changes):
        run = open_run(tmp_path, run_id, NEXT, pipeline=pipeline | changes, tasks=("title", "description"), **spec)
        cleaned.clear()
        manifests = run_extract(run, warehouse_url)
        for manifest in manifests.values():
            del manifest["extracted_at"]
        refused = run.store.read_rows(run.quarantine("title", "extract"), QuarantinedRow)
        ended = run.store.read_rows("work/title/ended", EndedCopy)
        return manifests, work(run), work(run, "description"), list(refused), list(ended)

    pipeline = {"feeds": (FeedSettings(url=str(tmp_path / "feed-{date}.tsv")),)}
    write(MESSY, DAY)
    first = open_run(tmp_path, "run-1", pipeline=pipeline, tasks=("title", "description"))
    run_extract(first, warehouse_url)
    finish(first, warehouse_url, refuse=["a-3"])
    finish(first, warehouse_url, "description", refuse=["b-4"], errored=["c-5"])
    pin("b", "b-5", "title", warehouse_url=warehouse_url)
    later = [*MESSY[14][:4], "2026-03-09T10:00:00Z"]  # the same row, and out of this night's reach
    write([*(line for line in MESSY if line[1] not in ("d-4", later[1])), later, ["d", "d-9", "Mug", "", STAMP]], NEXT)
    changes = {"opted_out_merchants": frozenset({"a"}), "holdout_share": {"d": 0.5}}
    found = outcome("again", **changes)
    known = len(cleaned)
    with monkeypatch.context() as patch:
        patch.setattr(reading.Reading, "_known", lambda self, rows: set())
        assert outcome("again", **changes) == found
    assert known < len(cleaned) or spec == {"force": True}


def test_a_value_that_shows_its_address_alone_is_never_known(tmp_path):
    run = open_run(tmp_path)
    glance = reading.Reading(run, Window(None, run.spec.interval_end), 1, "", None, 0)._glance
    raw = ["m1", "l1", "Mug", "", "", "", "", "{}", STAMP]
    assert glance(raw)
    assert glance([*raw[:2], memoryview(b"Mug"), *raw[3:]]) is None
