"""Runs that are missing, late or silent are told of once; runs at work, finished or failed are not."""

from __future__ import annotations

import os
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from include.reporting.__main__ import main
from include.reporting.watch import remember, trouble_of, troubles, was_told
from include.runs import Run
from include.settings import Settings, WatchSettings, load_settings
from listing_operators import stages
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
    assert "title: reconcile done, 1 of 1 bins validated" in trouble.body
    assert "clear that task" in trouble.body


def test_a_run_of_settings_that_are_no_longer_known_is_told_of_like_any(settings: Settings, tmp_path: Path) -> None:
    run = whole_run(tmp_path, summary=False)
    spec = run.store.read_json("run.json")
    run.store.write_json("run.json", spec | {"settings": spec["settings"] | {"of_an_older_version": 1}})
    written(tmp_path / "data", EARLY)
    trouble = trouble_of(settings, DAY, DUE)
    assert trouble is not None
    assert "1 of 1 bins validated" in trouble.body


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


def test_days_are_looked_back_for_what_an_earlier_look_could_not_see(settings: Settings, tmp_path: Path) -> None:
    whole_run(tmp_path, summary=False)
    written(tmp_path / "data", EARLY)
    now = DUE + timedelta(days=2)  # 4 March: of the 1st, 2nd and 3rd only the 1st has a run, and it hangs
    found = troubles(settings, now)
    assert [trouble.key.rsplit("/", 1)[1] for trouble in found] == ["silent", "missing"], "the 3rd is not due yet"
    assert [str(DAY), str(DAY + timedelta(days=1))] == [trouble.key[:10] for trouble in found]
    assert [trouble.key[:10] for trouble in troubles(settings, now + timedelta(hours=12))] == [
        "2026-03-02",
        "2026-03-03",
    ]


def test_dates_before_the_first_run_are_no_trouble_but_yesterday_is(settings: Settings) -> None:
    assert [trouble.key[:10] for trouble in troubles(settings, DUE + timedelta(hours=1))] == [str(DAY)]


def test_a_watch_that_ends_before_a_run_is_due_is_refused() -> None:
    assert WatchSettings(days=2, due_hours=47).due_hours == 47
    with pytest.raises(ValueError, match="not below 1 days"):
        WatchSettings(days=1, due_hours=24)


def test_each_trouble_is_sent_once_and_again_only_if_it_did_not_arrive(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole_run(tmp_path, summary=False)
    found = [
        trouble
        for back in (0, 1)
        if (trouble := trouble_of(settings, DAY + timedelta(days=back), DUE + timedelta(days=9)))
    ]
    sent: list[str] = []
    arrives = [True, False, True]
    monkeypatch.setattr("include.settings.load_settings", lambda: settings)
    monkeypatch.setattr("include.reporting.watch.troubles", lambda *_: found)
    monkeypatch.setattr(stages.Variable, "get", lambda *_, **__: None)
    monkeypatch.setattr(stages, "send_alert", lambda subject, *_, **__: sent.append(subject) or arrives.pop(0))
    subjects = [trouble.subject for trouble in found]
    assert [stages.watch() for _ in range(3)] == [subjects] * 3
    assert sent == [*subjects, subjects[1]]


def test_the_command_ends_with_status_1_and_the_alert(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("include.reporting.__main__.load_settings", lambda: settings)
    assert main(["watch", "--date", str(DAY)]) == 1
    assert "no run was opened" in capsys.readouterr().out
    assert main(["watch", "--date", "2126-03-01"]) == 0
