"""One run: its parameters and settings, pinned at its start, and the folders its stages use.

Everything a stage needs is the run's folder and the name of the enhancement task: `run.json` holds the rest, so that a
retry, a clear or another machine works from the same facts. Database URLs never stand in it; they come by environment.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

from pydantic import AwareDatetime, BaseModel, ConfigDict

from include.commands import command_line
from include.partitions import Store
from include.settings import Settings, SettingsError, load_settings, resolve_path

CATALOG_URL_VARIABLE = "MERCHANT_CATALOG_URL"
WAREHOUSE_URL_VARIABLE = "ADS_WAREHOUSE_URL"


class RunSpec(BaseModel):
    """What one run does. Times are UTC; the interval is half-open."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run_id: str
    partition_date: date
    interval_start: AwareDatetime
    interval_end: AwareDatetime
    enhancement_tasks: tuple[str, ...]
    merchants: tuple[str, ...] = ()  # empty: all
    row_limit: int | None = None  # listings per enhancement task; the rest are `deferred`
    force: bool = False  # rewrite what is unchanged, too
    settings: Settings


class StopMarker(BaseModel):
    """Why the bins of one enhancement task shall stop: one bin's rejection rate was far above normal."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    bin: int
    reason: str
    reject_rate: float
    engine: str  # the engine profile that wrote the bin


def interval_of(partition_date: date) -> tuple[datetime, datetime]:
    """[partition date, +1 day) in UTC: the interval of runs that Airflow gives none."""
    start = datetime(partition_date.year, partition_date.month, partition_date.day, tzinfo=UTC)
    return start, start + timedelta(days=1)


def folder_name(run_id: str) -> str:
    """A run id made safe for a path."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", run_id)


def plan_run(
    *,
    run_id: str,
    params: Mapping[str, Any],
    settings: Settings,
    logical_date: datetime | None,
    run_after: datetime,
    interval: tuple[datetime | None, datetime | None] = (None, None),
) -> RunSpec:
    """What a scheduler's run means: the partition date is the parameter, else the logical date, else the run-after date.

    The interval is the run's own when it starts on the partition date, otherwise [partition date, +1 day): manual and
    asset-triggered runs may have no interval, or one of another day. Raises SettingsError for an unknown enhancement task,
    a partition date that is no day, an empty run id or a row limit below 1.
    """
    asked, row_limit = params.get("partition_date"), params.get("row_limit")
    if not run_id.strip():
        raise SettingsError("the run id (--run-id) is empty: give the run a name")
    if row_limit is not None and row_limit < 1:
        raise SettingsError(f"row_limit (--row-limit) is {row_limit}: give 1 or more, or leave it out to take all")
    try:
        partition_date = (
            (logical_date or run_after).astimezone(UTC).date() if asked is None else date.fromisoformat(asked)
        )
        start, end = interval_of(partition_date)
    except (ValueError, OverflowError):
        raise SettingsError(f"partition_date {asked!r} is not a day: give one as 2026-01-14") from None
    if (
        interval[0]
        and interval[1]
        and interval[0] < interval[1]
        and interval[0].astimezone(UTC).date() == partition_date
    ):
        start, end = interval[0].astimezone(UTC), interval[1].astimezone(UTC)
    tasks = tuple(settings.task(name).name for name in params.get("enhancement_tasks") or sorted(settings.tasks))
    return RunSpec(
        run_id=run_id,
        partition_date=partition_date,
        interval_start=start,
        interval_end=end,
        enhancement_tasks=tasks,
        merchants=tuple(params.get("merchants") or ()),
        row_limit=row_limit,
        force=bool(params.get("force")),
        settings=settings,
    )


class Run:
    """An opened run: its spec and its folder, with the layout of that folder in one place."""

    def __init__(self, spec: RunSpec, store: Store) -> None:
        self.spec, self.store = spec, store

    @classmethod
    def create(cls, spec: RunSpec) -> Run:
        """Writes `run.json` (again on a retry: the settings of now count from here on), clears stop markers, returns the run.

        The folder is `<data_url>/dt=<partition date>/run=<run id made safe for a path>`.
        """
        data = Store(resolve_path(spec.settings.pipeline.data_url))
        store = data.child(f"dt={spec.partition_date}", f"run={folder_name(spec.run_id)}")
        store.write_bytes("run.json", spec.model_dump_json(indent=2).encode())
        for stale in ("stop", "summary.json"):
            store.remove(stale)
        return cls(spec, store)

    @classmethod
    def open(cls, run_dir: str) -> Run:
        """Reads the run of a folder. Raises FileNotFoundError where there is none."""
        store = Store(run_dir)
        found = store.read_json("run.json")
        if found is None:
            raise FileNotFoundError(
                f"no run at {run_dir}: run.json is missing; start with `python -m include.runs open`"
            )
        return cls(RunSpec.model_validate(found), store)

    # Folders, one method per stage's output; every one is relative to `store`.
    @staticmethod
    def work(task: str, shard: int | None = None) -> str:
        return f"work/{task}" + ("" if shard is None else f"/shard-{shard:05d}")

    @staticmethod
    def plan(task: str) -> str:
        """JSON written by extraction: {"bins": [[shard, …], …], "rows": [rows of each bin], "counts": RunCounts}.

        With two routes "engines" names the engine profile of each bin.
        """
        return f"work/{task}/plan.json"

    @staticmethod
    def generated(task: str, bin_index: int) -> str:
        return f"generated/{task}/bin-{bin_index:04d}"

    @staticmethod
    def escalated(task: str, bin_index: int) -> str:
        """A larger model's answers to refused texts; validation puts them in the place of the bin's own."""
        return f"escalated/{task}/bin-{bin_index:04d}"

    @staticmethod
    def verdicts(task: str, bin_index: int) -> str:
        return f"verdicts/{task}/bin-{bin_index:04d}"

    @staticmethod
    def quarantine(task: str, stage: str, bin_index: int = 0) -> str:
        return f"quarantine/{task}/{stage}-{bin_index:04d}"

    @staticmethod
    def sampled(task: str) -> str:
        return f"sampled/{task}"

    @staticmethod
    def judged(task: str) -> str:
        return f"judged/{task}"

    @staticmethod
    def manifest(task: str, stage: str, bin_index: int | None = None) -> str:
        """JSON summary of a finished stage; its presence says the stage is complete."""
        return f"manifests/{task}/{stage}" + ("" if bin_index is None else f"-{bin_index:04d}") + ".json"

    @staticmethod
    def stop(task: str) -> str:
        """JSON of a StopMarker; generation workers of every bin poll it."""
        return f"stop/{task}.json"

    def write_stop(self, task: str, marker: StopMarker) -> None:
        self.store.write_bytes(self.stop(task), marker.model_dump_json(indent=2).encode())

    def read_stop(self, task: str) -> StopMarker | None:
        """The marker that says this task's bins shall stop, or None. One small read; cheap enough for every few seconds."""
        found = self.store.read_json(self.stop(task))
        return None if found is None else StopMarker.model_validate(found)

    def clear_stop(self, task: str, bin_index: int | None = None) -> None:
        """Removes the marker; with `bin_index`, only the one that this bin wrote, as its retry does."""
        marker = self.read_stop(task)
        if marker is not None and bin_index in (None, marker.bin):
            self.store.remove(self.stop(task))

    def read_plan(self, task: str) -> dict[str, Any]:
        """What extraction planned (see `plan`). Raises FileNotFoundError when it has planned nothing yet."""
        plan: dict[str, Any] | None = self.store.read_json(self.plan(task))
        if plan is None:
            raise FileNotFoundError(f"{self.store.url} has no plan for {task}: run the extraction stage first")
        return plan

    def bins(self, task: str) -> list[list[int]]:
        """Shards of each planned bin; empty when there is nothing to do."""
        return [list(shards) for shards in self.read_plan(task)["bins"]]

    def engines(self, task: str) -> list[str]:
        """Engine profile of each planned bin: the task's own, or the hosted API's while a switch is under way."""
        plan = self.read_plan(task)
        return list(plan.get("engines") or [self.spec.settings.task(task).engine] * len(plan["bins"]))

    def own_bins(self, task: str, hosted: bool = False) -> list[int]:
        """Indexes of the bins that the task's own engine writes, or of those that the hosted API does."""
        own = self.spec.settings.task(task).engine
        return [index for index, engine in enumerate(self.engines(task)) if (engine == own) != hosted]

    def work_parts(self, task: str, bin_index: int) -> list[str]:
        """Parts of WorkItem rows of one bin, in shard order."""
        bins = self.bins(task)
        if not 0 <= bin_index < len(bins):
            raise SettingsError(f"{self.store.url} has no bin {bin_index} of {task}: its plan has {len(bins)}, from 0")
        return [part for shard in bins[bin_index] for part in self.store.list(self.work(task, shard))]


def url_from_environment(variable: str) -> str:
    """A database URL from the environment. Raises SettingsError with what to set when it is absent."""
    if url := os.environ.get(variable):
        return url
    raise SettingsError(
        f'{variable} is not set: export an SQLAlchemy URL, or run `eval "$(python -m include.connections)"` first'
    )


@command_line
def main(argv: Sequence[str] | None = None) -> int:
    """`python -m include.runs open …`: opens a run by hand and prints its folder."""
    parser = argparse.ArgumentParser(prog="python -m include.runs")
    command = parser.add_subparsers(dest="command", required=True).add_parser(
        "open", help="open a run, print its folder"
    )
    command.add_argument("--run-id", required=True)
    command.add_argument("--date", required=True, help="partition date, YYYY-MM-DD")
    command.add_argument("--task", action="append", help="enhancement task; may be repeated; default: all")
    command.add_argument("--merchant", action="append", help="only this merchant; may be repeated")
    command.add_argument("--row-limit", type=int)
    command.add_argument("--force", action="store_true", help="rewrite what is unchanged, too")
    args = parser.parse_args(argv)
    params = {
        "partition_date": args.date,
        "enhancement_tasks": args.task,
        "merchants": args.merchant,
        "row_limit": args.row_limit,
        "force": args.force,
    }
    spec = plan_run(
        run_id=args.run_id, params=params, settings=load_settings(), logical_date=None, run_after=datetime.now(UTC)
    )
    sys.stdout.write(Run.create(spec).store.url + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
