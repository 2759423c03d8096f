"""What happens to published copy later: withdrawn, pinned, reverted, published again."""

from __future__ import annotations

from datetime import UTC, date, datetime

import pytest

from include.records import EndedCopy
from include.warehouse.load import load, reconcile
from include.warehouse.revert import RevertError, revert
from include.warehouse.upkeep import PinError, clean_parts, clean_warehouse, pin
from tests.integration.warehouse_runs import (
    DAY,
    STAMP,
    TASK,
    finish,
    finished_run,
    listings,
    live,
    moment,
    open_run,
    refusal,
    rows,
    run_extract,
    seed,
    verdict,
    work,
)

LATER = datetime(2026, 3, 9, tzinfo=UTC)


def published(folder, url, verdicts, run_id, **more):
    run = finished_run(folder, verdicts, run_id=run_id, **more)
    load(run, TASK, warehouse_url=url)
    reconcile(run, TASK, warehouse_url=url)
    return run


def test_withdrawn_listings_are_retired_and_come_back(warehouse_url, tmp_path):
    seed(warehouse_url, tmp_path, listings(6))
    run = open_run(tmp_path)
    run_extract(run, warehouse_url)
    finish(run, warehouse_url)
    seed(warehouse_url, tmp_path, listings(4))
    run = open_run(tmp_path, "run-2", date(2026, 3, 7))
    manifest = run_extract(run, warehouse_url)["title"]
    assert (manifest["withdrawn"], manifest["withdrawn_refused"]) == (2, {})
    finish(run, warehouse_url)
    assert sorted(live(warehouse_url)) == ["l0", "l1", "l2", "l3"]
    ends = rows(warehouse_url, "SELECT listing_id, end_reason, ended_by FROM copy_history ORDER BY listing_id")
    assert ends == [("l4", "retired", "run-2"), ("l5", "retired", "run-2")]
    seed(warehouse_url, tmp_path, listings(5))
    run = open_run(tmp_path, "run-3", date(2026, 3, 8))
    run_extract(run, warehouse_url)
    assert work(run) == ["l4"]
    finish(run, warehouse_url)
    assert sorted(live(warehouse_url)) == ["l0", "l1", "l2", "l3", "l4"]


def test_a_cut_feed_retires_nothing_and_a_missing_merchant_neither(warehouse_url, tmp_path):
    lines = [[m, f"{m}{i}", f"Mug {m} {i}", "", STAMP] for m in ("a", "b") for i in range(30)]
    seed(warehouse_url, tmp_path, lines)
    run = open_run(tmp_path)
    run_extract(run, warehouse_url)
    finish(run, warehouse_url)
    seed(warehouse_url, tmp_path, lines[:10])
    run = open_run(tmp_path, "run-2", date(2026, 3, 7))
    manifest = run_extract(run, warehouse_url)["title"]
    assert (manifest["withdrawn"], manifest["withdrawn_refused"]) == (0, {"a": "20 of 30 gone"})
    finish(run, warehouse_url)
    assert len(live(warehouse_url)) == 60


def test_an_older_run_does_not_revive_a_withdrawn_listing(warehouse_url, tmp_path):
    published(tmp_path, warehouse_url, [verdict("l1", "copy")], "run-1")
    gone = EndedCopy(
        merchant_id="m1", listing_id="l1", locale="", source_updated_at=moment(date(2026, 3, 9)), reason="retired"
    )
    published(
        tmp_path, warehouse_url, [verdict("l2", "x")], "run-2", day=date(2026, 3, 8), ended=[gone], extracted_at=LATER
    )
    assert live(warehouse_url) == {"l2": "x"}
    backfill = finished_run(tmp_path, [verdict("l1", "backfilled")], run_id="backfill", extracted_at=datetime.now(UTC))
    manifest = load(backfill, TASK, warehouse_url=warehouse_url)
    assert (manifest["loaded"], manifest["stale"]) == (0, 1)
    assert live(warehouse_url) == {"l2": "x"}


def test_revert_brings_back_what_stood_before(warehouse_url, tmp_path):
    published(
        tmp_path, warehouse_url, [verdict("l1", "old 1"), verdict("l2", "old 2"), verdict("l4", "old 4")], "run-1"
    )
    gone = EndedCopy(
        merchant_id="m1", listing_id="l4", locale="", source_updated_at=moment(date(2026, 3, 8)), reason="retired"
    )
    new = [verdict("l1", "new 1"), verdict("l2", "new 2"), verdict("l3", "new 3")]
    published(tmp_path, warehouse_url, new, "run-2", day=date(2026, 3, 7), extracted_at=LATER, ended=[gone])
    newest = datetime(2026, 3, 10, tzinfo=UTC)
    published(tmp_path, warehouse_url, [verdict("l2", "newest 2")], "run-3", day=date(2026, 3, 8), extracted_at=newest)
    assert live(warehouse_url) == {"l1": "new 1", "l2": "newest 2", "l3": "new 3"}
    result = revert("run-2", TASK, warehouse_url=warehouse_url)
    assert {k: result[k] for k in ("restored", "removed", "unretired")} == {"restored": 1, "removed": 1, "unretired": 1}
    after = {"l1": "old 1", "l2": "newest 2", "l4": "old 4"}
    assert live(warehouse_url) == after
    again = revert("run-2", TASK, warehouse_url=warehouse_url)
    assert {k: again[k] for k in ("restored", "removed", "unretired")} == {"restored": 0, "removed": 0, "unretired": 0}
    assert live(warehouse_url) == after
    refused = rows(warehouse_url, "SELECT listing_id, reason FROM quarantine ORDER BY listing_id")
    assert refused == [("l1", "reverted"), ("l3", "reverted")]
    timeline = rows(
        warehouse_url, "SELECT text, end_reason FROM copy_timeline WHERE listing_id = 'l1' ORDER BY live_from"
    )
    assert timeline == [("old 1", "replaced"), ("new 1", "reverted"), ("old 1", None)]
    with pytest.raises(RevertError, match="no run 'run-9' has loaded title; the last ones are"):
        revert("run-9", TASK, warehouse_url=warehouse_url)


def test_reverted_copy_is_not_written_again_by_the_next_night(warehouse_url, tmp_path):
    seed(warehouse_url, tmp_path, listings(3))
    run = open_run(tmp_path)
    run_extract(run, warehouse_url)
    finish(run, warehouse_url)
    revert("run-1", TASK, warehouse_url=warehouse_url)
    assert live(warehouse_url) == {}
    run = open_run(tmp_path, "run-2", date(2026, 3, 7))
    assert run_extract(run, warehouse_url)["title"]["counts"]["unchanged"] == 3
    finish(run, warehouse_url)
    seed(warehouse_url, tmp_path, listings(3, l1="Teapot"))
    run = open_run(tmp_path, "run-3", date(2026, 3, 8))
    run_extract(run, warehouse_url)
    assert work(run) == ["l1"]


def test_a_rerun_whose_gate_accepts_less_takes_the_rest_back(warehouse_url, tmp_path):
    published(tmp_path, warehouse_url, [verdict("l1", "old")], "run-0", day=date(2026, 3, 5), extracted_at=moment(DAY))
    verdicts = [verdict("l1", "new"), verdict("l2", "two"), verdict("l3", "three")]
    published(tmp_path, warehouse_url, verdicts, "run-1")
    assert live(warehouse_url) == {"l1": "new", "l2": "two", "l3": "three"}
    failed = [verdicts[0].text_id, verdicts[1].text_id]
    published(tmp_path, warehouse_url, verdicts, "run-1", failed_text_ids=failed)
    assert live(warehouse_url) == {"l1": "old", "l3": "three"}


def test_pinned_copy_outlasts_runs_and_withdrawal(warehouse_url, tmp_path):
    published(tmp_path, warehouse_url, [verdict("l1", "ours"), verdict("l2", "ours")], "run-1")
    pin("m1", "l1", TASK, warehouse_url=warehouse_url, text="a person's")
    gone = EndedCopy(merchant_id="m1", listing_id="l1", locale="", source_updated_at=LATER, reason="retired")
    new = [verdict("l1", "new"), verdict("l2", "new")]
    run = finished_run(tmp_path, new, run_id="run-2", day=date(2026, 3, 7), extracted_at=LATER, ended=[gone])
    assert load(run, TASK, warehouse_url=warehouse_url)["stale"] == 1
    assert live(warehouse_url) == {"l1": "a person's", "l2": "new"}
    pin("m1", "l1", TASK, warehouse_url=warehouse_url, on=False)
    later = datetime(2026, 3, 10, tzinfo=UTC)
    published(tmp_path, warehouse_url, [verdict("l1", "newest")], "run-3", day=date(2026, 3, 8), extracted_at=later)
    assert live(warehouse_url)["l1"] == "newest"
    with pytest.raises(PinError, match="no live title of listing 'l9'"):
        pin("m1", "l9", TASK, warehouse_url=warehouse_url)


def test_clean_keeps_live_copy_and_what_is_young(warehouse_url, tmp_path):
    published(tmp_path, warehouse_url, [verdict("l1", "old")], "run-1", refused=[refusal("l9")])
    published(tmp_path, warehouse_url, [verdict("l1", "new")], "run-2", extracted_at=LATER)
    assert clean_warehouse(30, warehouse_url=warehouse_url) == {
        "copy_history": 0, "quarantine": 0, "runs": 0, "staging_tables": 0,
    }  # fmt: skip
    result = clean_warehouse(-1, warehouse_url=warehouse_url)
    assert (result["copy_history"], result["quarantine"], result["runs"]) == (1, 1, 2)
    assert live(warehouse_url) == {"l1": "new"}


def test_clean_removes_old_run_folders_only(tmp_path):
    for name in ("dt=2026-01-01", "dt=2026-03-05", "other", "2026-01-01"):
        (tmp_path / name).mkdir()
    assert clean_parts(str(tmp_path), 30, date(2026, 3, 6)) == ["dt=2026-01-01", ]  # fmt: skip
    assert sorted(p.name for p in tmp_path.iterdir()) == ["2026-01-01", "dt=2026-03-05", "other"]
