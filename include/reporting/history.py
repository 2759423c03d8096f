"""The runs of past nights, newest first and a page at a time, from their folders and the warehouse's table `runs`.

A run's folder knows every run, also one that published nothing; the warehouse knows what became of the copy later
(`reverted`), and runs whose folder was cleaned up. A page reads the summary of its own runs and of no other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any

import sqlalchemy as sa

from include.partitions import Store, TornPartError
from include.records import RunCounts
from include.reporting.summary import GOOD_OUTCOMES
from include.runs import Run, folder_name
from include.warehouse.database import UnreachableError, connect
from include.warehouse.schema import runs

RUNS = 20  # on a page
_WAREHOUSE_ROWS = 10  # for each run of a page: enough for ten enhancement tasks
Recorded = dict[tuple[date, str], list[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskNight:
    """One enhancement task of one run. Rates are shares of 1; a figure that was never measured is None."""

    partition_date: date
    run_id: str
    name: str  # run id as it stands in the folder's name and in addresses
    has_folder: bool
    task: str
    status: str  # outcome of the summary, `unfinished`, `unreadable`, or what only the warehouse knows (`reverted`)
    extracted: int = 0
    published: int = 0
    rejected: dict[str, int]  # listings by reason
    validator_pass_rate: float | None = None
    judge_pass_rate: float | None = None
    judge_ci95: tuple[float, float] | None = None
    baseline: float | None = None
    requests_per_s: float | None = None

    @property
    def good(self) -> bool:
        return self.status in GOOD_OUTCOMES

    @property
    def rejected_total(self) -> int:
        return sum(self.rejected.values())


@dataclass(frozen=True, slots=True)
class RunPage:
    """Rows of up to `RUNS` runs, newest first; `after` continues behind them and is empty on the last page."""

    nights: list[TaskNight]
    after: str
    problem: str = ""  # why the warehouse's part is missing


def run_store(data_url: str, day: date, name: str) -> Store:
    """The folder of a run. `name` is the run id made safe for a path."""
    return Store(data_url).child(f"dt={day}", f"run={name}")


def find_run(data_url: str, run_id: str) -> tuple[date, str] | None:
    """(partition date, name) of a run by its id, the newest date if several have it. One look for each date until then."""
    name, data = folder_name(run_id), Store(data_url)
    for day in sorted(_days(data), reverse=True):
        if run_store(data_url, day, name).exists("run.json"):
            return day, name
    return None


def parse_after(after: str) -> tuple[date, str] | None:
    """The cursor `2026-01-14/run name`; None for an empty one. Raises ValueError when it is neither."""
    day, _, name = after.partition("/")
    return (date.fromisoformat(day), name) if after else None


def run_page(data_url: str, warehouse_url: str, *, after: str = "", limit: int = RUNS) -> RunPage:
    """The newest runs behind the cursor. A warehouse that cannot be read is a `problem`, not an error.

    Raises ValueError for a cursor that is none.
    """
    start = parse_after(after)
    recorded, problem = _recorded_or_why_not(warehouse_url, start[0] if start else date.max, limit * _WAREHOUSE_ROWS)
    nights: list[TaskNight] = []
    last = ""
    for number, (day, name, has_folder) in enumerate(_runs(Store(data_url), recorded, start)):
        if number == limit:
            return RunPage(nights, last, problem)
        nights += run_nights(data_url, day, name, recorded.get((day, name), ()), has_folder=has_folder)
        last = f"{day}/{name}"
    return RunPage(nights, "", problem)


def one_run(data_url: str, warehouse_url: str, day: date, name: str) -> RunPage:
    """One run's rows, with what became of its copy later."""
    recorded, problem = _recorded_or_why_not(warehouse_url, day, RUNS * _WAREHOUSE_ROWS)
    return RunPage(run_nights(data_url, day, name, recorded.get((day, name), ())), "", problem)


def _recorded_or_why_not(warehouse_url: str, until: date, limit: int) -> tuple[Recorded, str]:
    try:
        return _recorded(warehouse_url, until, limit), ""
    except (UnreachableError, sa.exc.SQLAlchemyError) as error:
        told = error if isinstance(error, UnreachableError) else type(error).__name__
        return Recorded(), f"What became of the copy later is not shown: {told}"


def _recorded(warehouse_url: str, until: date, limit: int) -> Recorded:
    """The warehouse's newest rows up to a partition date, by (partition date, safe run id)."""
    newest = sa.select(runs).where(runs.c.partition_date <= until).order_by(runs.c.partition_date.desc(), runs.c.run_id)
    found: Recorded = defaultdict(list)
    with connect(warehouse_url) as connection, connection.begin():
        for row in connection.execute(newest.limit(limit)):
            found[row.partition_date, folder_name(row.run_id)].append(row)
    return found


def named(store: Store, prefix: str) -> list[str]:
    """Names of the entries right below a folder that start with `prefix`, without it, sorted."""
    return [name.removeprefix(prefix) for name in store.list("", suffix="") if name.startswith(prefix)]


def _days(store: Store) -> Iterator[date]:
    for name in named(store, "dt="):
        try:
            yield date.fromisoformat(name)
        except ValueError:
            continue  # not one of ours


def _runs(store: Store, recorded: Recorded, start: tuple[date, str] | None) -> Iterator[tuple[date, str, bool]]:
    """(partition date, name, whether it has a folder) behind `start`: newest date first, then the run opened last."""
    known: dict[date, list[str]] = defaultdict(list)
    for day, name in recorded:
        known[day].append(name)
    for day in sorted({*_days(store), *known}, reverse=True):
        if start and day > start[0]:
            continue
        folders = _by_age(store.child(f"dt={day}"))
        names = folders + sorted(set(known[day]) - set(folders), reverse=True)
        if start and day == start[0] and start[1] in names:
            names = names[names.index(start[1]) + 1 :]
        yield from ((day, name, name in folders) for name in names)


def _by_age(day: Store) -> list[str]:
    """Runs of one date, the one opened last first."""
    opened = []
    for name in named(day, "run="):
        try:
            opened.append((day.fs.modified(day.path(f"run={name}", "run.json")), name))
        except FileNotFoundError:
            continue  # no run yet, or cleaned up since
    return [name for _, name in sorted(opened, reverse=True)]


def run_nights(
    data_url: str, day: date, name: str, recorded: Iterable[Any] = (), *, has_folder: bool = True
) -> list[TaskNight]:
    """One row for each enhancement task of a run; `recorded` are its rows of the warehouse. Empty where there is no run."""
    by_task = {row.enhancement_task: row for row in recorded}
    if not has_folder:
        return [_from_warehouse(day, name, row) for row in by_task.values()]
    store = run_store(data_url, day, name)
    try:  # as plain JSON: a run of an older version has settings that today's models refuse
        spec, summary = store.read_json("run.json"), store.read_json("summary.json") or {"tasks": {}}
        found = []
        for task in spec["enhancement_tasks"] if spec else ():
            row = summary["tasks"].get(task) or _so_far(store, task)
            reverted = task in by_task and by_task[task].status == "reverted"
            status = "reverted" if reverted else str(row["outcome"])
            found.append(_night(day, str(spec["run_id"]), name, task, status, row))
        return found
    except (TornPartError, KeyError, TypeError, AttributeError):
        return [
            TaskNight(
                partition_date=day, run_id=name, name=name, has_folder=True, task="-", status="unreadable", rejected={}
            )
        ]


def _so_far(store: Store, task: str) -> dict[str, Any]:
    """What stands in for the summary of a run that has none yet: its gate's manifest, else its extraction's."""
    gate = store.read_json(Run.manifest(task, "gate")) or {}
    counted = gate or store.read_json(Run.manifest(task, "extract")) or {}
    judge = gate.get("judge") or {}
    return {"outcome": "unfinished", "gate": gate, "judge": judge, "quarantined": {}} | (counted.get("counts") or {})


def _night(day: date, run_id: str, name: str, task: str, status: str, row: Mapping[str, Any]) -> TaskNight:
    suite, judge = row["gate"].get("suite") or {}, row["judge"]
    counts: dict[str, int] = suite.get("aggregate") or {}
    answered = sum(counts.values()) - counts.get("errored", 0)
    interval = judge.get("ci95")
    return TaskNight(
        partition_date=day,
        run_id=run_id,
        name=name,
        has_folder=True,
        task=task,
        status=status,
        extracted=int(row.get("extracted", 0)),
        published=int(row.get("loaded", 0)),
        rejected=dict(row["quarantined"]),
        validator_pass_rate=counts.get("accepted", 0) / answered if answered else None,
        judge_pass_rate=judge.get("pass_rate"),
        judge_ci95=(float(interval[0]), float(interval[1])) if interval else None,
        baseline=row["gate"].get("baseline"),
        requests_per_s=row.get("requests_per_s"),
    )


def _from_warehouse(day: date, name: str, row: Any) -> TaskNight:
    return TaskNight(
        partition_date=day,
        run_id=row.run_id,
        name=name,
        has_folder=False,
        task=row.enhancement_task,
        status=row.status,
        extracted=int(row.counts.get("extracted", 0)),
        published=int(row.counts.get("loaded", 0)),
        rejected=RunCounts.from_dict(row.counts).quarantined,
    )
