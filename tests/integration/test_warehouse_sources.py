"""Feeds and side-by-side readers against real databases; sample listings as feeds, and real ones where they lie beside the project."""

from __future__ import annotations

import csv
import gzip
import itertools
import json
from pathlib import Path
from xml.sax.saxutils import escape

import pytest

from include.records import EndedCopy, QuarantinedRow, RunCounts
from include.runs import interval_of
from include.settings import PROJECT_ROOT, FeedSettings
from tests.integration.warehouse_runs import DAY, finish, listings, live, open_run, rows, run_extract, seed, work

SAMPLES = PROJECT_ROOT / "include" / "samples" / "listings.csv"
REAL = Path(__file__).resolve().parents[3] / "shared" / "data"


def feed_run(folder, run_id="run-1", day=DAY, **feed):
    settings = FeedSettings(**({"url": str(folder / "{merchant}-{date}.tsv")} | feed))
    return open_run(folder, run_id, day, pipeline={"feeds": (settings,)})


def closed(run, manifest):
    counts = RunCounts.from_dict(manifest["counts"])
    counts.accepted = manifest["rows"]
    counts.check_closed()
    return counts


def test_feeds_of_several_merchants_one_broken(warehouse_url, tmp_path):
    for merchant in ("acme", "beta"):
        lines = "".join(f"{i}\tMug {merchant} {i}\tblue\n" for i in range(30))
        (tmp_path / f"{merchant}-{DAY}.tsv").write_text("id\ttitle\tdescription\n" + lines)
    run = feed_run(tmp_path)
    manifest = run_extract(run, warehouse_url)["title"]
    assert closed(run, manifest).extracted == 60
    assert {report["status"] for report in manifest["files"]} == {"read"}
    finish(run, warehouse_url)
    start, _ = interval_of(DAY)
    day = start.date().replace(day=7)
    (tmp_path / f"acme-{day}.tsv").write_text("sku code\n1\n")  # a header that cannot be used
    lines = "".join(f"{i}\tMug beta {i}\tblue\n" for i in range(28))
    (tmp_path / f"beta-{day}.tsv").write_text("id\ttitle\tdescription\n" + lines)
    run = feed_run(tmp_path, "run-2", day)
    manifest = run_extract(run, warehouse_url)["title"]
    assert {report["merchant_id"]: report["status"] for report in manifest["files"]} == {
        "acme": "broken",
        "beta": "read",
    }
    assert (manifest["withdrawn"], manifest["complete"]) == (2, False)
    finish(run, warehouse_url)
    assert rows(warehouse_url, "SELECT merchant_id, count(*) FROM current_copy GROUP BY 1 ORDER BY 1") == [
        ("acme", 30),
        ("beta", 28),
    ]


def test_twins_in_a_feed_do_not_come_back_every_night(warehouse_url, tmp_path):
    (tmp_path / f"acme-{DAY}.tsv").write_text("id\ttitle\n1\tMug\n2\tCup\n1\tMug again\n")
    run = feed_run(tmp_path)
    manifest = run_extract(run, warehouse_url)["title"]
    assert closed(run, manifest).quarantined == {"duplicate_listing": 1}
    assert work(run) == ["1", "2"]
    finish(run, warehouse_url)
    assert live(warehouse_url) == {"1": "MUG", "2": "CUP"}
    again = feed_run(tmp_path, "run-2")
    manifest = run_extract(again, warehouse_url)["title"]
    assert (manifest["rows"], manifest["counts"]["unchanged"]) == (0, 2)
    finish(again, warehouse_url)
    assert live(warehouse_url) == {"1": "MUG", "2": "CUP"}


def test_a_backfill_over_a_rewritten_feed_says_what_is_out_of_reach(warehouse_url, tmp_path):
    path = tmp_path / "acme.tsv"
    path.write_text("id\ttitle\n1\tMug\n2\tCup\n")  # written now, long after the interval
    run = feed_run(tmp_path, url=str(path), merchant_id="acme")
    manifest = run_extract(run, warehouse_url)["title"]
    assert (manifest["counts"]["extracted"], manifest["changed_since"]) == (0, 2)
    assert [row.listing_id for row in run.store.read_rows("changed_since", EndedCopy)] == ["1", "2"]


@pytest.mark.parametrize("kind", ["table", "feeds"])
def test_readers_side_by_side_find_the_same(warehouse_url, tmp_path, kind):
    if kind == "table":
        seed(warehouse_url, tmp_path, listings(200))
        pipeline = {}
    else:
        for merchant in "abcd":
            lines = "".join(f"{merchant}{i}\tMug {i % 20}\n" for i in range(50))
            (tmp_path / f"{merchant}-{DAY}.tsv").write_text("id\ttitle\n" + lines)
        pipeline = {"feeds": (FeedSettings(url=str(tmp_path / "{merchant}-{date}.tsv")),)}
    alone = open_run(tmp_path, "alone", pipeline=pipeline)
    one = run_extract(alone, warehouse_url)["title"]
    expected = work(alone)
    finish_empty(alone, warehouse_url)
    together = open_run(tmp_path, "together", pipeline=pipeline | {"readers": 3})
    three = run_extract(together, warehouse_url)["title"]
    assert work(together) == expected
    assert len(expected) == 200
    assert three["counts"] == one["counts"]
    finish(together, warehouse_url)
    assert len(live(warehouse_url)) == 200


def finish_empty(run, url):
    """Gives up the lease without publishing."""
    from include.warehouse.leases import release

    for task in run.spec.enhancement_tasks:
        release(run, task, warehouse_url=url)


COLUMNS = ["id", "title", "description", "brand", "product_type", "merchant_id", "locale"]


def _records(path, limit):
    with path.open(encoding="utf-8", newline="") as file:
        listed = csv.DictReader(file) if path.suffix == ".csv" else map(json.loads, file)
        for row in itertools.islice(listed, limit):
            names = ["listing_id", "title", "description", "brand", "category", "merchant_id", "locale"]
            yield dict(zip(COLUMNS, (row[name] or "" for name in names), strict=True))


def _write(kind, path, records):
    """The rows as a merchant would deliver them."""
    if kind == "tsv":
        flat = [{k: " ".join(v.split()) for k, v in r.items()} for r in records]
        text = "\n".join(["\t".join(COLUMNS), *("\t".join(r[c] for c in COLUMNS) for r in flat)])
        path.write_text(text, encoding="utf-8")
    elif kind == "csv":
        with gzip.open(path, "wt", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(records)
    else:
        items = "".join(
            "<item>" + "".join(f"<g:{c}>{escape(r[c])}</g:{c}>" for c in COLUMNS) + "</item>" for r in records
        )
        path.write_text(
            f'<rss xmlns:g="http://base.google.com/ns/1.0"><channel>{items}</channel></rss>', encoding="utf-8"
        )


@pytest.mark.parametrize("kind", ["tsv", "csv", "xml"])
def test_listings_as_feeds_load_with_closed_accounting(warehouse_url, tmp_path, kind):
    files = [SAMPLES, *sorted(REAL.glob("listings_*.jsonl"))]
    total = 0
    for number, file in enumerate(files):
        records = list(_records(file, 400))
        total += len(records)
        _write(kind, tmp_path / f"f{number}-{DAY}.{kind}", records)
    settings = FeedSettings(url=str(tmp_path / ("{merchant}-{date}." + kind)), merchant_id=None)
    run = open_run(tmp_path, pipeline={"feeds": (settings,)})
    manifest = run_extract(run, warehouse_url)["title"]
    counts = closed(run, manifest)
    assert {report["status"] for report in manifest["files"]} == {"read"}
    assert counts.extracted == total
    assert counts.quarantined_total == len(
        list(run.store.read_rows(run.quarantine("title", "extract"), QuarantinedRow))
    )
    assert finish(run, warehouse_url)["loaded"] == manifest["rows"]
    again = open_run(tmp_path, "run-2", pipeline={"feeds": (settings,)})
    second = run_extract(again, warehouse_url)["title"]
    assert second["rows"] == 0
    assert second["counts"]["unchanged"] + RunCounts.from_dict(second["counts"]).quarantined_total == total
