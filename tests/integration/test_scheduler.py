"""The nightly DAG under a real scheduler, DAG processor and API server (LocalExecutor, PostgreSQL as metadata database).

One installation and one title-only configuration; the tests run in order and build on each other, since every engine
start costs half a minute.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.airflow_services import (
    Airflow,
    database,
    dated,
    engine_processes,
    free_port,
    parts,
    service_settings,
    small_title_runs,
)
from tests.nightly import Nightly, sample_rows

pytestmark = [pytest.mark.engine, pytest.mark.scheduler, pytest.mark.long]
YESTERDAY = (datetime.now(UTC) - timedelta(days=1)).date()
GENERATE = "title.process_bin.generate"


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory, postgres_server: str) -> Iterator[Airflow]:
    port, metadata = free_port(), database(postgres_server, "airflow_meta")
    nightly = Nightly(tmp_path_factory.mktemp("scheduler"), **service_settings(metadata, port))
    small_title_runs(nightly)
    rows = dated(sample_rows(48), YESTERDAY, "y")
    for back in (2, 3):
        rows += dated(sample_rows(3, "de-DE"), YESTERDAY - timedelta(days=back), f"b{back}")
    nightly.set_up(rows)
    running = Airflow(nightly, port)
    try:
        running.ready()
        yield running
    finally:
        running.stop()


def run_folder(airflow: Airflow, run_id: str) -> Path:
    found = [
        p.parent for p in (airflow.nightly.root / "data").glob("dt=*/run=*/run.json") if f'"{run_id}"' in p.read_text()
    ]
    assert len(found) == 1, (run_id, found)
    return found[0]


def test_a_scheduled_run_whose_worker_dies_is_retried_and_makes_only_what_is_missing(airflow: Airflow) -> None:
    airflow.call("PATCH", "/dags/enhance_listings", is_paused=False)
    run = airflow.wait("scheduled run", lambda: next(iter(airflow.runs()), None), 90)
    assert run["logical_date"].startswith(str(YESTERDAY))
    run_id = run["dag_run_id"]
    folder = airflow.wait("opened run", lambda: next((airflow.nightly.root / "data").glob("dt=*/run=*"), None), 120)
    airflow.wait("first parts", lambda: len(parts(folder)) >= 2, 300)
    victims = engine_processes()
    assert victims
    for process in victims:
        process.send_signal(signal.SIGKILL)
    before = parts(folder)
    airflow.wait_for_run(run_id, seconds=600)
    after = parts(folder)
    assert airflow.tries(run_id, GENERATE) == {0: 2}
    assert {name: after.get(name) for name in before} == before, "a finished part was written again"
    copies = airflow.nightly.query(
        "select count(*), count(distinct listing_id) from listing_copy where run_id = :r", r=run_id
    )
    assert copies[0][0] == copies[0][1] > 0


def test_clearing_one_mapped_task_generates_nothing_again(airflow: Airflow) -> None:
    run_id = next(r["dag_run_id"] for r in airflow.runs() if r["run_type"] == "scheduled")
    folder = run_folder(airflow, run_id)
    before = parts(folder)
    published = airflow.nightly.query("select listing_id, text, run_id from listing_copy order by 1")
    airflow.call(
        "POST",
        "/dags/enhance_listings/clearTaskInstances",
        dry_run=False,
        only_failed=False,
        dag_run_id=run_id,
        task_ids=[[GENERATE, 0]],
        include_downstream=True,
        reset_dag_runs=True,
    )
    airflow.wait("run to start again", lambda: airflow.tries(run_id, GENERATE)[0] == 3, 90)
    airflow.wait_for_run(run_id, seconds=300)
    assert parts(folder) == before
    assert airflow.nightly.query("select listing_id, text, run_id from listing_copy order by 1") == published


def test_a_backfill_of_two_dates_runs_each_with_its_own_listings(airflow: Airflow) -> None:
    first, last = YESTERDAY - timedelta(days=3), YESTERDAY - timedelta(days=2)
    airflow.call(
        "POST",
        "/backfills",
        dag_id="enhance_listings",
        from_date=f"{first}T00:00:00Z",
        to_date=f"{last}T00:00:00Z",
        max_active_runs=2,
        reprocess_behavior="none",
    )
    started = airflow.wait(
        "two backfill runs",
        lambda: (found := [r for r in airflow.runs() if r["run_type"] == "backfill"]) and len(found) == 2 and found,
        60,
    )
    for run in started:
        airflow.wait_for_run(run["dag_run_id"], seconds=600)
    dates = {run_folder(airflow, r["dag_run_id"]).parent.name for r in started}
    assert dates == {f"dt={first}", f"dt={last}"}


def test_a_manual_run_without_a_logical_date_uses_its_run_after_date(airflow: Airflow) -> None:
    run = airflow.call("POST", "/dags/enhance_listings/dagRuns", logical_date=None, conf={})
    airflow.wait_for_run(run["dag_run_id"], seconds=300)
    assert run_folder(airflow, run["dag_run_id"]).parent.name == f"dt={run['run_after'][:10]}"
