"""Runs that are missing, late or silent are told of once; runs at work, finished or failed are not."""

from __future__ import annotations

import os
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from include.reporting.__main__ import main
from include.reporting.watch import remember, trouble_of, was_told
from include.runs import Run
from include.settings import Settings, load_settings
from tests.finished_runs import finished_run

DAY = date(2026, 3, 1)
DUE = datetime(2026, 3, 2, 12, tzinfo=UTC)  # twelve hours after the end of the date
EARLY = datetime(2026, 3, 2, 2, tzinfo=UTC)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    found = load_settings()
    folders = {"data_url": str(tmp_path / "data"), "state_url": str(tmp_path / "state")}
    return found.model_copy(update={"pipeline": found.pipeline.model_copy(update=folders)})


def whole_run(tmp_path: Path, **changes: Any) -> Run:
    return finished_run(tmp_path / "data", DAY, tasks=("title", "description"), **changes)


def written(folder: Path, moment: datetime) -> None:
    for path in folder.rglob("*"):
        os.utime(path, (moment.timestamp(), moment.timestamp()))


def test_a_date_without_a_run_is_missing_once_it_is_due(settings: Settings) -> None:
    assert trouble_of(settings, DAY, DUE - timedelta(minutes=1)) is None
    trouble = trouble_of(settings, DAY, DUE + timedelta(minutes=1))
    assert trouble is not None
    assert trouble.subject == "Listing enhancement 2026-03-01: no run was opened"
    assert "next: look whether the scheduler lives" in trouble.body


def test_a_run_that_stopped_writing_is_silent_and_tells_how_far_it_came(settings: Settings, tmp_path: Path) -> None:
    run = whole_run(tmp_path, summary=False)
    written(tmp_path / "data", EARLY)
    assert trouble_of(settings, DAY, EARLY + timedelta(minutes=59)) is None
    trouble = trouble_of(settings, DAY, EARLY + timedelta(minutes=61))
    assert trouble is not None
    assert "nothing was written since 2026-03-02 02:00 UTC" in trouble.subject
    assert run.store.url in trouble.body
    assert "title: reconcile done, 0 of 1 bins validated" in trouble.body
    assert "clear that task" in trouble.body


def test_a_run_at_work_is_late_only_after_its_time(settings: Settings, tmp_path: Path) -> None:
    whole_run(tmp_path, summary=False)
    written(tmp_path / "data", DUE)
    assert trouble_of(settings, DAY, DUE) is None
    trouble = trouble_of(settings, DAY, DUE + timedelta(minutes=1))
    assert trouble is not None
    assert trouble.subject.endswith("it has not ended")


@pytest.mark.parametrize("status", ["passed", "failed"])
def test_a_run_that_ended_is_no_trouble(settings: Settings, tmp_path: Path, status: str) -> None:
    whole_run(tmp_path, status=status)
    assert trouble_of(settings, DAY, DUE + timedelta(days=9)) is None


def test_a_run_that_waits_for_another_at_work_is_no_trouble(settings: Settings, tmp_path: Path) -> None:
    whole_run(tmp_path, run_id="a_waits", summary=False)
    written(tmp_path / "data", EARLY - timedelta(hours=5))
    whole_run(tmp_path, run_id="b_works", summary=False)
    written(tmp_path / "data" / f"dt={DAY}" / "run=b_works", EARLY)
    assert trouble_of(settings, DAY, EARLY + timedelta(minutes=5)) is None


def test_a_run_of_one_task_stands_for_no_night(settings: Settings, tmp_path: Path) -> None:
    finished_run(tmp_path / "data", DAY, tasks=("title",))
    trouble = trouble_of(settings, DAY, DUE + timedelta(minutes=1))
    assert trouble is not None
    assert "no run was opened" in trouble.subject


def test_one_trouble_pages_once(settings: Settings) -> None:
    trouble = trouble_of(settings, DAY, DUE + timedelta(days=1))
    assert trouble is not None
    assert not was_told(settings, trouble)
    assert not was_told(settings, trouble), "nothing is remembered before the alert is out"
    remember(settings, trouble)
    assert was_told(settings, trouble)


def test_the_command_ends_with_status_1_and_the_alert(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("include.reporting.__main__.load_settings", lambda: settings)
    assert main(["watch", "--date", str(DAY)]) == 1
    assert "no run was opened" in capsys.readouterr().out
    assert main(["watch", "--date", "2126-03-01"]) == 0
