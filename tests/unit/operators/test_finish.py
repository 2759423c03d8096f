"""The end of a night: on-call hears of it whatever else is broken."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from include.runs import Run, plan_run
from include.settings import load_settings
from include.warehouse.database import UnreachableError
from listing_operators import stages


@pytest.fixture
def alerts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    sent: list[tuple[str, str]] = []
    context = {"run_id": "manual__1", "dag": SimpleNamespace(dag_id="enhance_listings")}
    monkeypatch.setattr(stages, "get_current_context", lambda: context)
    monkeypatch.setattr(stages.Variable, "get", lambda *_, **__: None)
    monkeypatch.setattr(stages, "send_alert", lambda subject, body, **_: sent.append((subject, body)))
    monkeypatch.setattr(stages, "sqlalchemy_url", lambda _: "postgresql://u:p@127.0.0.1:9/none")
    return sent


@pytest.fixture
def run(tmp_path: Path) -> Run:
    settings = load_settings()
    pipeline = settings.pipeline.model_copy(update={"data_url": str(tmp_path)})
    moment = datetime(2026, 3, 2, tzinfo=UTC)
    changed: Any = settings.model_copy(update={"pipeline": pipeline})
    return Run.create(plan_run(run_id="r", params={}, settings=changed, logical_date=None, run_after=moment))


def test_a_warehouse_that_is_away_does_not_keep_the_alert_back(run: Run, alerts: list[tuple[str, str]]) -> None:
    with pytest.raises(UnreachableError):
        stages.finish(run.store.url)
    assert [subject for subject, _ in alerts] == [
        "Listing enhancement 2026-03-02: description (stopped after open), title (stopped after open)"
    ]


def test_results_that_cannot_be_read_are_an_alert_too(run: Run, alerts: list[tuple[str, str]]) -> None:
    run.store.write_bytes(run.manifest("title", "extract"), b"{")
    with pytest.raises(UnreachableError):
        stages.finish(run.store.url)
    assert "extract.json is not JSON" in alerts[0][1]


def test_a_run_that_was_never_opened_is_an_alert(alerts: list[tuple[str, str]]) -> None:
    with pytest.raises(AirflowFailException, match="could not be opened"):
        stages.finish(None)
    assert "nothing was published" in alerts[0][1]
