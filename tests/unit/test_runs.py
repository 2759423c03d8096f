"""Runs: the right day and interval whatever started them, and a folder from which any machine can go on."""

from datetime import UTC, date, datetime, timedelta, timezone
from itertools import pairwise
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from pydantic import ValidationError

from include.records import WorkItem
from include.runs import Run, RunSpec, interval_of, plan_run, url_from_environment
from include.settings import Settings, SettingsError, load_settings

MARCH_1 = datetime(2026, 3, 1, tzinfo=UTC)
DAY = timedelta(days=1)


def planned(**changes: Any) -> RunSpec:
    arguments: dict[str, Any] = {
        "run_id": "scheduled__2026-03-02T00:00:00+00:00",
        "params": {},
        "settings": load_settings(),
        "logical_date": MARCH_1,
        "run_after": MARCH_1 + DAY,
        "interval": (MARCH_1, MARCH_1 + DAY),
    }
    return plan_run(**(arguments | changes))


@pytest.fixture
def spec(tmp_path: Path) -> RunSpec:
    settings = load_settings()
    pipeline = settings.pipeline.model_copy(update={"data_url": str(tmp_path / "data")})
    return planned(settings=settings.model_copy(update={"pipeline": pipeline}))


def test_a_scheduled_run_covers_its_own_interval() -> None:
    spec = planned()
    assert (spec.partition_date, spec.interval_start, spec.interval_end) == (date(2026, 3, 1), MARCH_1, MARCH_1 + DAY)


def test_the_parameter_wins_and_brings_its_own_day() -> None:
    spec = planned(params={"partition_date": "2026-02-10"})
    assert spec.partition_date == date(2026, 2, 10)
    assert (spec.interval_start, spec.interval_end) == interval_of(date(2026, 2, 10))


@pytest.mark.parametrize("asked", ["", "tomorrow", "2026-13-01", "9999-12-31"])
def test_a_partition_date_that_is_no_day_is_named(asked: str) -> None:
    with pytest.raises(SettingsError, match=f"partition_date '{asked}' is not a day"):
        planned(params={"partition_date": asked})


def test_a_run_without_logical_date_takes_the_day_in_utc_that_it_was_asked_for() -> None:
    late_evening_in_california = datetime(2026, 3, 1, 22, 30, tzinfo=timezone(timedelta(hours=-8)))
    spec = planned(logical_date=None, interval=(None, None), run_after=late_evening_in_california)
    assert (spec.partition_date, spec.interval_start) == (date(2026, 3, 2), MARCH_1 + DAY)


@pytest.mark.parametrize("interval", [(MARCH_1, MARCH_1), (MARCH_1, None), (MARCH_1 - DAY, MARCH_1)])
def test_an_interval_of_no_width_or_of_another_day_is_not_used(interval: tuple[datetime, datetime | None]) -> None:
    spec = planned(interval=interval)
    assert (spec.interval_start, spec.interval_end) == (MARCH_1, MARCH_1 + DAY)


@pytest.mark.parametrize("night", [date(2026, 3, 28), date(2026, 10, 24)])
def test_nights_around_a_change_of_the_clock_neither_overlap_nor_leave_a_gap(night: date) -> None:
    berlin, days = ZoneInfo("Europe/Berlin"), [night + n * DAY for n in range(3)]
    starts = [datetime(day.year, day.month, day.day, 12, tzinfo=berlin) for day in days]
    specs = [planned(logical_date=start, run_after=start + DAY, interval=(None, None)) for start in starts]
    assert [spec.partition_date for spec in specs] == days
    assert all(spec.interval_end - spec.interval_start == DAY for spec in specs)
    assert all(a.interval_end == b.interval_start for a, b in pairwise(specs))


def test_a_weekly_interval_is_kept_whole() -> None:
    assert planned(interval=(MARCH_1, MARCH_1 + 7 * DAY)).interval_end == MARCH_1 + 7 * DAY


def test_parameters_reach_the_run() -> None:
    params = {"enhancement_tasks": ["title"], "merchants": ["m1", "m2"], "row_limit": 10, "force": True}
    spec = planned(params=params)
    assert spec.enhancement_tasks == ("title",)
    assert (spec.merchants, spec.row_limit, spec.force) == (("m1", "m2"), 10, True)
    assert planned().enhancement_tasks == tuple(sorted(load_settings().tasks))


def test_an_unknown_enhancement_task_is_refused_before_anything_is_read() -> None:
    with pytest.raises(SettingsError, match="no enhancement task 'titel'; configured are"):
        planned(params={"enhancement_tasks": ["titel"]})


def test_a_time_without_zone_is_refused() -> None:
    with pytest.raises(ValidationError, match="timezone"):
        RunSpec.model_validate(planned().model_dump() | {"interval_start": datetime(2026, 3, 1)})  # noqa: DTZ001


def test_a_run_opens_on_another_machine_as_it_was_pinned(spec: RunSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    created = Run.create(spec)
    monkeypatch.setenv("LISTING_CONFIG_DIR", "/nowhere")
    opened = Run.open(created.store.url)
    assert opened.spec == spec
    assert isinstance(opened.spec.settings, Settings)


def test_the_folder_is_partitioned_by_day_and_safe_for_any_run_id(spec: RunSpec, tmp_path: Path) -> None:
    run = Run.create(spec.model_copy(update={"run_id": "../manual run/ü:1"}))
    folder = Path(run.store.url)
    assert folder.parent == tmp_path / "data" / "dt=2026-03-01"
    assert folder.name == "run=.._manual_run___1"
    assert Run.open(run.store.url).spec.run_id == "../manual run/ü:1"


def test_no_run_says_where_and_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no run at .*: run\.json is missing"):
        Run.open(str(tmp_path))


def test_bins_name_their_parts_in_shard_order(spec: RunSpec) -> None:
    run = Run.create(spec)
    with pytest.raises(FileNotFoundError, match="has no plan for title: run the extraction stage first"):
        run.bins("title")
    run.store.write_json(run.plan("title"), {"bins": [[2, 0], [1]], "rows": [2, 1], "counts": {}})
    for shard in (0, 1, 2):
        run.store.write_part(f"{run.work('title', shard)}/part-00000.parquet", WorkItem, [])
    assert run.work_parts("title", 0) == [f"work/title/shard-0000{shard}/part-00000.parquet" for shard in (2, 0)]
    assert run.work_parts("title", 1) == ["work/title/shard-00001/part-00000.parquet"]
    for missing in (2, -1):
        with pytest.raises(SettingsError, match=f"has no bin {missing} of title: its plan has 2"):
            run.work_parts("title", missing)


def test_own_and_hosted_bins_come_of_one_read_of_the_plan(spec: RunSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    run, own, reads = Run.create(spec), spec.settings.task("title").engine, []
    plan: dict[str, Any] = {"bins": [[0], [1], [2]], "engines": ["hosted", own, "hosted"]}
    monkeypatch.setattr(run.store, "read_json", lambda path: reads.append(path) or plan)
    assert (run.own_bins("title"), run.own_bins("title", hosted=True)) == ([1], [0, 2])
    assert reads == [run.plan("title")] * 2
    del plan["engines"]
    assert (run.own_bins("title"), run.own_bins("title", hosted=True)) == ([0, 1, 2], [])


def test_every_stage_and_bin_has_a_place_of_its_own() -> None:
    places = [
        *(Run.work(task, shard) for task in "ab" for shard in (0, 1)),
        *(place(task, index) for place in (Run.generated, Run.verdicts) for task in "ab" for index in (0, 1)),
        *(Run.quarantine(task, stage, index) for task in "ab" for stage in ("extract", "judge") for index in (0, 1)),
        *(
            Run.manifest(task, stage, index)
            for task in "ab"
            for stage in ("generate", "gate")
            for index in (None, 0, 1)
        ),
        *(place(task) for place in (Run.plan, Run.sampled, Run.judged) for task in "ab"),
    ]
    assert len(set(places)) == len(places)


def test_a_missing_database_variable_says_how_to_set_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ADS_WAREHOUSE_URL", raising=False)
    with pytest.raises(SettingsError, match=r"ADS_WAREHOUSE_URL is not set.*include\.connections"):
        url_from_environment("ADS_WAREHOUSE_URL")
    monkeypatch.setenv("ADS_WAREHOUSE_URL", "sqlite://")
    assert url_from_environment("ADS_WAREHOUSE_URL") == "sqlite://"
