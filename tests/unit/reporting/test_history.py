"""The history merges run folders and the warehouse, newest first, and reads no more than its page."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from include.partitions import Store
from include.reporting.history import run_page
from include.warehouse.database import connect, engine_for
from include.warehouse.migrate import migrate
from include.warehouse.schema import runs
from tests.finished_runs import finished_run

DAY = date(2026, 3, 1)


@pytest.fixture
def warehouse(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/warehouse.db"
    migrate(url)
    yield url
    engine_for(url).dispose()


def record(url: str, run_id: str, day: date, status: str, task: str = "title") -> None:
    moment = datetime(2026, 3, 2, tzinfo=UTC)
    values: dict[str, Any] = dict.fromkeys(("interval_start", "interval_end", "extracted_at", "loaded_at"), moment)
    values |= {"scope": "", "counts": {"extracted": 9, "quarantined": {"emoji": 2}, "loaded": 7}, "status": status}
    with connect(url) as connection, connection.begin():
        connection.execute(sa.insert(runs).values(run_id=run_id, enhancement_task=task, partition_date=day, **values))


def test_a_finished_run_shows_what_its_manifests_say(tmp_path: Path, warehouse: str) -> None:
    finished_run(tmp_path / "data", DAY)
    (row,) = run_page(str(tmp_path / "data"), warehouse).nights
    assert (row.status, row.good, row.extracted, row.published, row.rejected_total) == ("published", True, 24, 19, 4)
    assert row.validator_pass_rate == 30 / 40, "errored listings got no answer"
    assert (row.judge_pass_rate, row.judge_ci95, row.baseline) == (0.875, (0.53, 0.98), 0.8)
    assert row.requests_per_s == 2.5
    assert row.run_id == "scheduled__2026-03-01T00:00:00+00:00"


def test_pages_follow_each_other_without_gap_and_read_only_their_own_runs(
    tmp_path: Path, warehouse: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    for back in range(5):
        finished_run(data, DAY - timedelta(days=back))
    finished_run(data, DAY, run_id="manual__again")
    read: list[str] = []
    plain = Store.read_json
    monkeypatch.setattr(Store, "read_json", lambda self, path: read.append(self.url) or plain(self, path))
    seen, after = [], ""
    for page_number in range(3):
        page = run_page(str(data), warehouse, after=after, limit=2)
        seen += [(str(n.partition_date), n.run_id) for n in page.nights]
        if page_number == 0:
            assert len(set(read)) == 2
        after = page.after
    assert after == ""
    assert len(seen) == len(set(seen)) == 6
    assert [day for day, _ in seen] == sorted((day for day, _ in seen), reverse=True)


def test_the_warehouse_adds_reverted_runs_and_runs_whose_folder_is_gone(tmp_path: Path, warehouse: str) -> None:
    run = finished_run(tmp_path / "data", DAY)
    record(warehouse, run.spec.run_id, DAY, "reverted")
    record(warehouse, "old", DAY - timedelta(days=100), "published")
    first, old = run_page(str(tmp_path / "data"), warehouse).nights
    assert (first.status, first.good) == ("reverted", False)
    assert (old.run_id, old.has_folder, old.status, old.published, old.rejected) == (
        "old", False, "published", 7, {"emoji": 2},
    )  # fmt: skip


def test_unfinished_and_unreadable_runs_and_a_lost_warehouse_stop_nothing(tmp_path: Path) -> None:
    data = tmp_path / "data"
    finished_run(data, DAY, summary=False, status="failed")
    torn = finished_run(data, DAY - timedelta(days=1))
    torn.store.write_bytes("summary.json", b"{")
    page = run_page(str(data), f"sqlite:///{tmp_path}/none/warehouse.db")
    assert [n.status for n in page.nights] == ["unfinished", "unreadable"]
    assert page.nights[0].extracted == 24
    assert "cannot reach" in page.problem


def test_an_empty_folder_and_a_wrong_cursor(tmp_path: Path, warehouse: str) -> None:
    assert run_page(str(tmp_path / "nothing"), warehouse).nights == []
    with pytest.raises(ValueError, match="isoformat"):
        run_page(str(tmp_path), warehouse, after="yesterday/x")
