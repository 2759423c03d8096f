"""What happens to published copy later: withdrawn, pinned, reverted, published again."""

from __future__ import annotations

from datetime import UTC, date, datetime

import pytest

from include.records import EndedCopy
from include.runs import WAREHOUSE_URL_VARIABLE
from include.settings import TaskSettings, load_settings
from include.warehouse.__main__ import main
from include.warehouse.leases import acquire, release
from include.warehouse.load import load, reconcile
from include.warehouse.revert import RevertError, revert
from include.warehouse.staging import staging_tables
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


def test_a_withdrawn_listing_without_copy_leaves_no_row(warehouse_url, tmp_path):
    gone, held = (
        EndedCopy(merchant_id="m1", listing_id=name, locale="", source_updated_at=moment(DAY), reason=reason)
        for name, reason in (("l8", "retired"), ("l9", "holdout"))
    )
    load(finished_run(tmp_path, [verdict("l1", "a")], ended=[gone, held]), TASK, warehouse_url=warehouse_url)
    found = rows(warehouse_url, "SELECT listing_id, arm FROM listing_copy ORDER BY listing_id")
    assert found == [("l1", "treatment"), ("l9", "holdout")]


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


def with_profile(name):
    """Settings whose title task runs on another engine profile of the same lineage."""
    settings = load_settings()
    task = settings.task(TASK)
    promoted = settings.engines[task.engine].model_copy(update={"name": name})
    update = {
        "engines": {**settings.engines, name: promoted},
        "tasks": {**settings.tasks, TASK: TaskSettings.model_validate(task.model_dump() | {"engine": name})},
    }
    return settings.model_copy(update=update)


def test_a_range_is_replayed_with_a_new_profile_within_a_budget_of_rows(warehouse_url, tmp_path):
    catalog = load_settings().pipeline.catalog.model_copy(update={"read": "window", "lateness_hours": 0.0})
    days = [date(2026, 3, day) for day in (2, 3, 4)]
    lines = [
        ["m1", f"{day.day}-{i}", f"Mug {day.day} {i}", "A mug", moment(day).isoformat()]
        for day in days
        for i in range(4)
    ]
    for number, day in enumerate(days, start=1):
        seed(warehouse_url, tmp_path, lines[: 4 * number])
        run = open_run(tmp_path, f"scheduled-{day}", day, pipeline={"catalog": catalog})
        run_extract(run, warehouse_url)
        finish(run, warehouse_url)
    lines[0][2:] = ["Teapot", "A pot", moment(days[2], 13).isoformat()]  # of the first day, and changed since
    seed(warehouse_url, tmp_path, lines)
    before = live(warehouse_url)
    for day, deferred in zip(days[:2], (1, 2), strict=True):
        run = open_run(
            tmp_path, f"replay-{day}", day, pipeline={"catalog": catalog}, settings=with_profile("promoted"), force=True, row_limit=2
        )  # fmt: skip
        manifest = run_extract(run, warehouse_url)["title"]
        assert (manifest["rows"], manifest["counts"]["deferred"]) == (2, deferred)
        assert manifest["changed_since"] >= 1
        assert finish(run, warehouse_url)["loaded"] == 2
    assert live(warehouse_url) == before
    written = rows(
        warehouse_url, "SELECT engine_profile = 'promoted', count(*) FROM current_copy GROUP BY 1 ORDER BY 1"
    )
    assert written == [(False, 8), (True, 4)]
    assert rows(warehouse_url, "SELECT count(*), min(end_reason) FROM copy_history") == [(4, "replaced")]


def test_the_command_reverts_and_names_an_unknown_run(warehouse_url, tmp_path, monkeypatch, capsys):
    published(tmp_path, warehouse_url, [verdict("l1", "copy")], "run-1")
    monkeypatch.setenv(WAREHOUSE_URL_VARIABLE, warehouse_url)
    assert main(["revert", "--run-id", "run-1", "--task", TASK]) == 0
    assert '"removed": 1' in capsys.readouterr().out
    assert live(warehouse_url) == {}
    assert main(["revert", "--run-id", "run-9", "--task", TASK]) == 2
    assert "no run 'run-9' has loaded title" in capsys.readouterr().err


def test_clean_drops_staging_tables_that_no_run_can_be_using(warehouse_url, tmp_path):
    run = finished_run(tmp_path, [verdict("l1", "copy")])
    acquire(run, warehouse_url=warehouse_url)
    load(run, TASK, warehouse_url=warehouse_url)  # and its reconciliation never comes
    assert len(staging_tables(warehouse_url)) == 4
    assert clean_warehouse(30, warehouse_url=warehouse_url)["staging_tables"] == 0
    release(run, TASK, warehouse_url=warehouse_url)
    assert clean_warehouse(30, warehouse_url=warehouse_url)["staging_tables"] == 4
    assert staging_tables(warehouse_url) == []
    assert live(warehouse_url) == {"l1": "copy"}


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
