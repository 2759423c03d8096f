"""Extraction from a real catalog against a real warehouse, on each kind of database."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta

import pytest
import sqlalchemy as sa

from include.extraction.catalog import CatalogError
from include.extraction.seed import SeedError, seed_catalog
from include.records import EndedCopy, QuarantinedRow, WorkItem
from include.settings import load_settings
from include.warehouse.database import connect, writing
from include.warehouse.leases import LeaseHeldError
from include.warehouse.seen import SeenListings, SeenLostError
from tests.integration.warehouse_runs import DAY, STAMP, finish, listings, live, open_run, rows, run_extract, seed, work


def test_new_then_unchanged_then_only_what_changed(warehouse_url, tmp_path):
    seed(warehouse_url, tmp_path, listings(30))
    first = open_run(tmp_path)
    manifest = run_extract(first, warehouse_url)["title"]
    assert (manifest["rows"], manifest["bins"], manifest["counts"]["extracted"]) == (30, 1, 30)
    finish(first, warehouse_url, refuse=["l3"])
    assert len(live(warehouse_url)) == 29
    again = open_run(tmp_path, "run-2")
    manifest = run_extract(again, warehouse_url)["title"]
    assert manifest["counts"]["unchanged"] == 30  # the quarantined one, too
    assert manifest["bins"] == 0
    finish(again, warehouse_url)
    seed(warehouse_url, tmp_path, listings(31, l7="Teapot"))
    third = open_run(tmp_path, "run-3")
    manifest = run_extract(third, warehouse_url)["title"]
    assert work(third) == ["l30", "l7"]
    assert manifest["counts"]["unchanged"] == 29


def test_what_errored_is_tried_again_and_force_rewrites_all(warehouse_url, tmp_path):
    seed(warehouse_url, tmp_path, listings(5))
    first = open_run(tmp_path)
    run_extract(first, warehouse_url)
    finish(first, warehouse_url, errored=["l2"])
    second = open_run(tmp_path, "run-2")
    run_extract(second, warehouse_url)
    assert work(second) == ["l2"]
    finish(second, warehouse_url)
    forced = open_run(tmp_path, "run-3", force=True)
    run_extract(forced, warehouse_url)
    assert len(work(forced)) == 5


def test_bad_rows_are_quarantined_once_and_the_others_go_on(warehouse_url, tmp_path):
    """llm#546: a lone surrogate must not take its batch of 50 down, nor come back for ever."""
    lines = listings(50)
    lines[9][2], lines[9][3] = "★★★", ""
    lines[11][2] = "Mug\0 blue"
    sqlite = warehouse_url.startswith("sqlite")
    if not sqlite:
        lines[7][2] = lines[7][3] = ""  # PostgreSQL cannot hold half a surrogate pair in the first place
    seed(warehouse_url, tmp_path, lines)
    if sqlite:
        with writing(warehouse_url) as connection:
            broken = "UPDATE listings SET title = CAST(x'4d756720eda0bd' AS TEXT) WHERE listing_id = 'l7'"
            connection.execute(sa.text(broken))
    run = open_run(tmp_path)
    counts = run_extract(run, warehouse_url)["title"]["counts"]
    refused = {
        row.listing_id: row.reason for row in run.store.read_rows(run.quarantine("title", "extract"), QuarantinedRow)
    }
    assert refused == {"l7": "lone_surrogate" if sqlite else "missing_text", "l9": "missing_text"}
    assert sum(counts["quarantined"].values()) == 2
    finish(run, warehouse_url)
    assert live(warehouse_url)["l11"] == "MUG BLUE"
    assert len(live(warehouse_url)) == 48
    again = open_run(tmp_path, "run-2")
    assert run_extract(again, warehouse_url)["title"]["counts"]["unchanged"] == 50
    finish(again, warehouse_url)


def test_states_of_arms_limits_and_pins(warehouse_url, tmp_path):
    lines = [[m, f"{m}-{i}", f"Mug {m} {i}", "A mug", STAMP] for m in ("a", "b", "c") for i in range(10)]
    seed(warehouse_url, tmp_path, lines)
    pipeline = {"opted_out_merchants": frozenset({"a"}), "holdout_share": {"b": 1.0}}
    run = open_run(tmp_path, pipeline=pipeline, row_limit=4)
    manifest = run_extract(run, warehouse_url)["title"]
    counts = manifest["counts"]
    assert (counts["deferred"], counts["holdout"], manifest["rows"]) == (10 + 6, 10, 4)
    assert manifest["complete"] is False
    assert {row.reason for row in run.store.read_rows("work/title/ended", EndedCopy)} == {"holdout"}
    finish(run, warehouse_url)
    arms = rows(warehouse_url, "SELECT arm, count(*), count(text) FROM listing_copy GROUP BY arm ORDER BY arm")
    assert arms == [("holdout", 10, 0), ("treatment", 4, 4)]
    with writing(warehouse_url) as connection:
        connection.execute(sa.text("UPDATE listing_copy SET pinned = true WHERE arm = 'treatment'"))
    second = open_run(tmp_path, "run-2", pipeline=pipeline, force=True)
    manifest = run_extract(second, warehouse_url)["title"]
    assert (manifest["counts"]["deferred"], manifest["rows"]) == (10 + 4, 6)
    assert list(second.store.read_rows("work/title/ended", EndedCopy)) == []  # known to be held out


def test_moving_into_the_holdout_ends_the_copy(warehouse_url, tmp_path):
    seed(warehouse_url, tmp_path, listings(3))
    run = open_run(tmp_path)
    run_extract(run, warehouse_url)
    finish(run, warehouse_url)
    held = open_run(tmp_path, "run-2", pipeline={"holdout_share": {"*": 1.0}})
    run_extract(held, warehouse_url)
    finish(held, warehouse_url)
    assert live(warehouse_url) == {}
    assert rows(warehouse_url, "SELECT count(*), min(end_reason) FROM copy_history") == [(3, "holdout")]
    back = open_run(tmp_path, "run-3")
    run_extract(back, warehouse_url)
    assert len(work(back)) == 3
    finish(back, warehouse_url)
    assert len(live(warehouse_url)) == 3


def test_rows_changed_after_the_interval_are_named_not_taken(warehouse_url, tmp_path):
    lines = [
        *listings(3),
        ["m1", "later", "Teapot", "", (datetime.fromisoformat(STAMP) + timedelta(days=1)).isoformat()],
    ]
    seed(warehouse_url, tmp_path, lines)
    run = open_run(tmp_path)
    manifest = run_extract(run, warehouse_url)["title"]
    assert (manifest["counts"]["extracted"], manifest["changed_since"]) == (3, 1)
    assert [row.listing_id for row in run.store.read_rows("changed_since", EndedCopy)] == ["later"]


def test_windowed_reads_miss_nothing(warehouse_url, tmp_path):
    """The window starts at the last complete run, less the lateness; a run that left something moves it nowhere."""
    catalog = load_settings().pipeline.catalog.model_copy(update={"read": "window", "lateness_hours": 6.0})
    days = [date(2026, 3, d) for d in range(1, 6)]

    def line(number, moment):
        return ["m1", f"l{number}", f"Mug {number}", "A mug", moment.isoformat()]

    noon = [datetime(d.year, d.month, d.day, 12, tzinfo=UTC) for d in days]
    table = [line(0, noon[0] - timedelta(days=300)), line(1, noon[0])]

    def night(number, **spec):
        seed(warehouse_url, tmp_path, table)
        run = open_run(tmp_path, f"run-{number}", days[number], pipeline={"catalog": catalog}, **spec)
        manifest = run_extract(run, warehouse_url)["title"]
        return run, manifest

    run, manifest = night(0)
    assert work(run) == ["l0", "l1"]  # nothing known yet: everything
    finish(run, warehouse_url)
    table += [line(2, noon[1]), line(3, noon[1] - timedelta(hours=15))]  # one of them three hours late
    run, manifest = night(1)
    assert work(run) == ["l2", "l3"]
    assert manifest["counts"]["extracted"] == 2
    finish(run, warehouse_url, errored=["l3"])
    table += [line(4, noon[2])]
    run, manifest = night(2)  # what errored is within reach still
    assert work(run) == ["l3", "l4"]
    finish(run, warehouse_url, errored=["l4"])
    table += [line(5, noon[4])]
    run, manifest = night(4)  # the night before did not run
    assert work(run) == ["l4", "l5"]


def test_one_read_serves_all_tasks_and_equal_texts_share(warehouse_url, tmp_path):
    seed(warehouse_url, tmp_path, [["m1", "a", "Mug", "", STAMP], ["m2", "b", "Mug", "", STAMP]])
    run = open_run(tmp_path, tasks=("description", "title"))
    manifests = run_extract(run, warehouse_url)
    assert {m["rows"] for m in manifests.values()} == {2}
    items = list(run.store.read_rows(run.work_parts("title", 0), WorkItem))
    assert len({item.text_id for item in items}) == 1
    other = list(run.store.read_rows(run.work_parts("description", 0), WorkItem))
    assert {i.text_id for i in items}.isdisjoint(i.text_id for i in other)


def test_merchant_filter(warehouse_url, tmp_path):
    seed(warehouse_url, tmp_path, [["m1", "a", "Mug", "", STAMP], ["m2", "b", "Mug", "", STAMP]])
    run = open_run(tmp_path, merchants=("m2",))
    assert run_extract(run, warehouse_url)["title"]["counts"]["extracted"] == 1
    assert work(run) == ["b"]


def test_an_empty_catalog_is_a_quiet_night(warehouse_url, tmp_path):
    seed(warehouse_url, tmp_path, listings(1))
    with writing(warehouse_url) as connection:
        connection.execute(sa.text("DELETE FROM listings"))
    run = open_run(tmp_path)
    assert run_extract(run, warehouse_url)["title"]["rows"] == 0
    assert finish(run, warehouse_url)["loaded"] == 0


def test_a_crash_that_empties_what_was_seen_ends_no_copy(warehouse_url, tmp_path, monkeypatch):
    seed(warehouse_url, tmp_path, listings(30))
    first = open_run(tmp_path)
    run_extract(first, warehouse_url)
    finish(first, warehouse_url)
    adding = SeenListings.add

    def crash_before(self, keys):  # as a server comes back: the table is there, and empty
        with writing(warehouse_url) as connection:
            connection.execute(sa.delete(self._table))
        adding(self, keys)

    again = open_run(tmp_path, "run-2")
    with monkeypatch.context() as patch:
        patch.setattr(SeenListings, "add", crash_before)
        with pytest.raises(SeenLostError, match="clear the extract task"):
            run_extract(again, warehouse_url)
    assert len(live(warehouse_url)) == 30
    assert run_extract(again, warehouse_url)["title"]["withdrawn"] == 0


def test_two_runs_of_one_date_exclude_each_other(warehouse_url, tmp_path):
    seed(warehouse_url, tmp_path, listings(2))
    first = open_run(tmp_path)
    run_extract(first, warehouse_url)
    run_extract(first, warehouse_url)  # its own retry goes on
    with pytest.raises(LeaseHeldError, match="run-1 works on title"):
        run_extract(open_run(tmp_path, "run-2"), warehouse_url)
    run_extract(open_run(tmp_path, "other-day", date(2026, 3, 9)), warehouse_url)
    finish(first, warehouse_url)
    run_extract(open_run(tmp_path, "run-2"), warehouse_url)


@pytest.mark.parametrize("change", ["table", "columns", "mapped"])
def test_a_catalog_that_does_not_fit_is_explained(warehouse_url, tmp_path, change):
    catalog = load_settings().pipeline.catalog
    with writing(warehouse_url) as connection:
        connection.execute(sa.text("CREATE TABLE listings (sku text, shop text, title text, updated_at text)"))
    update = {
        "table": {"table": "products"},
        "columns": {},
        "mapped": {"columns": {"listing_id": "sku", "merchant_id": "shop", "description": "title", "brand": "maker"}},
    }[change]
    message = {
        "table": "no table 'products'; it has",
        "columns": "lacks 'merchant_id' \\(merchant_id\\), 'listing_id' \\(listing_id\\), 'description'",
        "mapped": "lacks 'maker' \\(brand\\)",
    }[change]
    run = open_run(tmp_path, pipeline={"catalog": catalog.model_copy(update=update)})
    with pytest.raises(CatalogError, match=message):
        run_extract(run, warehouse_url)


def test_columns_of_other_names_and_types(warehouse_url, tmp_path):
    catalog = load_settings().pipeline.catalog.model_copy(
        update={
            "columns": {"listing_id": "sku", "merchant_id": "shop", "attributes": "facts"},
            "updated_column": "changed",
        }
    )
    json_type = "jsonb" if warehouse_url.startswith("postgresql") else "text"
    with writing(warehouse_url) as connection:
        connection.exec_driver_sql(
            f"CREATE TABLE listings (shop integer, sku bigint, title text, description text, facts {json_type}, changed date)"
        )
        insert = "INSERT INTO listings VALUES (7, 12345678901, 'Mug', NULL, :facts, '2026-03-05')"
        connection.execute(sa.text(insert), {"facts": json.dumps({"Color": "red"})})
    run = open_run(tmp_path, pipeline={"catalog": catalog})
    run_extract(run, warehouse_url)
    (item,) = run.store.read_rows(run.work_parts("title", 0), WorkItem)
    assert (item.merchant_id, item.listing_id, item.attributes) == ("7", "12345678901", '{"Color": "red"}')
    assert item.source_updated_at == datetime(2026, 3, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sku,name\n1,Mug\n", r"lacks the columns \['title', 'description'\]; it has \['sku', 'name'\]"),
        ("title,description\nMug,a,b\n", "line 2: 2 columns expected"),
        ("listing_id,title,description\n1,Mug,a\n1,Cup,b\n", "line 3.*twice"),
        ("title,description,updated_at\nMug,a,soon\n", "line 2, updated_at: 'soon'"),
        ("title,description\nMug,Größe\n", "line 2, description: not UTF-8"),
    ],
)
def test_a_csv_file_that_does_not_fit_is_explained(tmp_path, text, message):
    path = tmp_path / "my.csv"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(SeedError, match=message):
        seed_catalog(f"sqlite:///{tmp_path}/c.db", path, load_settings().pipeline.catalog)


def test_a_csv_file_of_the_users_own_needs_title_and_description_only(tmp_path):
    path = tmp_path / "my.csv"
    path.write_text('\ufefftitle,description\nMug,"a, b"\nCup,c\n', encoding="utf-8")
    url = f"sqlite:///{tmp_path}/deep/c.db"
    for _ in range(2):
        assert seed_catalog(url, path, load_settings().pipeline.catalog, DAY) == 2
    with connect(url) as connection:
        found = connection.execute(
            sa.text("SELECT merchant_id, listing_id, description, updated_at FROM listings")
        ).all()
    assert [tuple(row) for row in found] == [
        ("default", "line-2", "a, b", "2026-03-06 00:00:00.000000"),
        ("default", "line-3", "c", "2026-03-06 00:00:00.000000"),
    ]
