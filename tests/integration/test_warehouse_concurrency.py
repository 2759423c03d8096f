"""Loads at the same time: with overlapping keys, of the same run, against a stranger's locks."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, date, datetime

import pytest
import sqlalchemy as sa

from include.runs import Run, RunSpec
from include.warehouse.database import connect, normalise_url
from include.warehouse.leases import LeaseHeldError, acquire
from include.warehouse.load import load, reconcile
from tests.integration.warehouse_runs import DAY, TASK, finished_run, live, moment, rows, verdict


@pytest.fixture(autouse=True)
def _audit_loaded():
    """Great Expectations is imported before the threads race for it."""
    import great_expectations  # noqa: F401


def publish(run, url):
    load(run, TASK, warehouse_url=url)
    return reconcile(run, TASK, warehouse_url=url)


def test_two_loaders_with_overlapping_keys(warehouse_url, tmp_path):
    """orakl#2503: the same ids in opposite order, of two dates; the newer version wins whoever comes last."""
    keys = [f"l{i:04d}" for i in range(400)]
    newer = [verdict(k, f"newer {k}", updated=moment(DAY)) for k in keys]
    older = [verdict(k, f"older {k}", updated=moment(date(2026, 3, 5))) for k in reversed(keys)]
    older.append(verdict("own", "older own", updated=moment(date(2026, 3, 5))))
    runs = [
        finished_run(tmp_path, newer, run_id="newer", rows_per_part=100),
        finished_run(tmp_path, older, run_id="older", day=date(2026, 3, 5), rows_per_part=100),
    ]
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda run: publish(run, warehouse_url), runs))
    assert live(warehouse_url) == {k: f"newer {k}" for k in keys} | {"own": "older own"}
    assert results[0]["loaded"] == 400
    stale = runs[1].store.read_json(runs[1].manifest(TASK, "load"))["stale"]
    assert results[1]["loaded"] + stale == 401
    assert rows(warehouse_url, "SELECT DISTINCT status FROM runs") == [("published",)]
    twice = rows(warehouse_url, "SELECT listing_id FROM current_copy GROUP BY listing_id HAVING count(*) > 1")
    assert twice == []


def test_the_same_run_loaded_twice_at_once(warehouse_url, tmp_path):
    """A zombie task and its retry: at least one gets through, and the state is that of one load."""
    run = finished_run(tmp_path, [verdict(f"l{i}", f"copy {i}") for i in range(200)], rows_per_part=50)
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(load, run, TASK, warehouse_url=warehouse_url) for _ in range(2)]
    assert any(future.exception() is None for future in futures)
    assert len(live(warehouse_url)) == 200
    assert rows(warehouse_url, "SELECT count(*) FROM copy_history") == [(0,)]
    assert publish(run, warehouse_url)["loaded"] == 200


def test_a_stranger_holding_the_lock_is_waited_for(warehouse_url, tmp_path):
    """On PostgreSQL the stranger takes the same rows in the opposite order: a deadlock, which the load survives."""
    publish(finished_run(tmp_path, [verdict(f"l{i}", "old") for i in range(10)], run_id="old"), warehouse_url)
    later = datetime(2026, 3, 9, tzinfo=UTC)
    run = finished_run(tmp_path, [verdict(f"l{i}", "new") for i in range(10)], run_id="new", extracted_at=later)
    engine = sa.create_engine(normalise_url(warehouse_url))
    touch = sa.text("UPDATE listing_copy SET pinned = pinned WHERE listing_id = :id")
    try:
        with engine.connect() as stranger, ThreadPoolExecutor(1) as pool:
            stranger.execute(touch, {"id": "l9"})
            loading = pool.submit(load, run, TASK, warehouse_url=warehouse_url)
            time.sleep(1.5)
            assert not loading.done()
            with suppress(sa.exc.OperationalError):  # the server ends one of the two, and may choose the stranger
                stranger.execute(touch, {"id": "l0"})
                stranger.commit()
            stranger.rollback()
            assert loading.result(timeout=60)["loaded"] == 10
    finally:
        engine.dispose()
    assert set(live(warehouse_url).values()) == {"new"}


def test_one_of_many_gets_the_lease(warehouse_url, tmp_path):
    run = finished_run(tmp_path, [])
    barrier = threading.Barrier(6)

    def take(number: int) -> bool:
        spec = RunSpec.model_validate(run.spec.model_dump() | {"run_id": f"run-{number}"})
        barrier.wait()
        try:
            acquire(Run(spec, run.store), warehouse_url=warehouse_url)
        except LeaseHeldError:
            return False
        return True

    with ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(take, range(6))) == 1
    assert rows(warehouse_url, "SELECT count(*) FROM leases") == [(1,)]


def test_an_expired_lease_is_taken_over(warehouse_url, tmp_path):
    run = finished_run(tmp_path, [])
    acquire(run, warehouse_url=warehouse_url)
    other = Run(RunSpec.model_validate(run.spec.model_dump() | {"run_id": "other"}), run.store)
    with pytest.raises(LeaseHeldError, match="run-1"):
        acquire(other, warehouse_url=warehouse_url)
    from include.warehouse.schema import leases

    with connect(warehouse_url) as connection, connection.begin():
        connection.execute(leases.update().values(expires_at=datetime(2026, 1, 1, tzinfo=UTC)))
    acquire(other, warehouse_url=warehouse_url)
    assert rows(warehouse_url, "SELECT holder FROM leases") == [("other",)]
