"""Looks every half hour whether the night's run is late or silent, and pages once. Wiring only."""

from __future__ import annotations

from datetime import UTC, datetime

from airflow.sdk import dag, task

from listing_operators import stages


@dag(
    schedule="*/30 * * * *",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    tags=["listings", "on-call"],
    doc_md="### Late or silent runs\n\nFor a scheduler that is down itself, run `python -m include.reporting watch` from cron on another host.",
)
def watch_nightly_run() -> None:
    task(stages.watch)()


watch_nightly_run()
