"""A look from outside at a night's run: is it late, or has it gone silent? A worker that was killed cannot say so itself."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

from include.partitions import Store
from include.reporting.history import named
from include.reporting.summary import GOOD_OUTCOMES
from include.runs import Run, interval_of
from include.settings import Settings, resolve_path

_STAGES = ("extract", "sample", "judge", "gate", "load", "reconcile")


@dataclass(frozen=True, slots=True)
class Trouble:
    """What on-call is told once. `key` is the same for the same trouble of the same run."""

    key: str
    subject: str
    body: str


def troubles(settings: Settings, now: datetime) -> list[Trouble]:
    """What is wrong with the runs of the last `watch.days` partition dates, the oldest first.

    Dates before the first one that has a folder are left out, but for yesterday: nothing was set up then.
    """
    days = [now.date() - timedelta(days=back) for back in range(settings.pipeline.watch.days, 0, -1)]
    begun = min(named(Store(resolve_path(settings.pipeline.data_url)), "dt="), default=str(days[-1]))
    watched = [day for day in days if str(day) >= min(begun, str(days[-1]))]
    return [found for day in watched if (found := trouble_of(settings, day, now))]


def trouble_of(settings: Settings, day: date, now: datetime) -> Trouble | None:
    """What is wrong with the run of a partition date: none was opened, it is late, or it has written nothing for long.

    None for a date with a run that ended well, or one at work; a run that failed has sent its own alert.
    `watch.due_hours` counts from the end of the date, `watch.silent_minutes` from the newest file of the run.
    """
    data, watch = Store(resolve_path(settings.pipeline.data_url)), settings.pipeline.watch
    due = interval_of(day)[1] + timedelta(hours=watch.due_hours)
    by = f"It was due by {due:%Y-%m-%d %H:%M} UTC"
    runs = _runs(data.child(f"dt={day}"))
    if not runs:
        look = "look whether the scheduler lives and enhance_listings is not paused, then trigger it with this date"
        return _trouble(day, "missing", "no run was opened", f"{by}.", look) if now > due else None
    found = None
    for store in runs:
        if (summary := store.read_json("summary.json")) is not None:
            if all(task["outcome"] in GOOD_OUTCOMES for task in summary["tasks"].values()):
                return None
            continue
        newest = _newest(store)
        silent = now - newest > timedelta(minutes=watch.silent_minutes)
        if not silent and now <= due:
            return None  # another run of the date may wait for this one's lease
        what = f"nothing was written since {newest:%Y-%m-%d %H:%M} UTC" if silent else "it has not ended"
        look = (
            "look for the running task of this run: a worker or host that vanished leaves no failure behind; clear that "
            "task, finished rows are kept"
        )
        kind = "silent" if silent else "late"
        found = found or _trouble(day, kind, what, f"{by}; {_reached(store)}.", look, store.url)
    return found


def _trouble(day: date, kind: str, what: str, detail: str, next_step: str, url: str = "") -> Trouble:
    subject = f"Listing enhancement {day}: {what}"
    lines = [subject, *([f"data {url}"] if url else []), detail]
    lines += [
        "Copy that has not passed its gate is not published; that of earlier runs stays live.",
        f"next: {next_step}",
    ]
    return Trouble(f"{day}/{url.rsplit('/', 1)[-1]}/{kind}", subject, "\n".join(lines))


def _runs(day: Store) -> list[Store]:
    """The opened runs of one date that take all of it: a run of some merchants, rows or tasks stands for no night."""
    found = [day.child(f"run={name}") for name in named(day, "run=")]
    return [store for store in found if (spec := store.read_json("run.json")) and _is_whole(spec)]


def _is_whole(spec: dict[str, Any]) -> bool:
    some = spec.get("merchants") or spec.get("row_limit")
    return not some and set(spec["enhancement_tasks"]) >= set(spec["settings"]["tasks"])


def _newest(store: Store) -> datetime:
    """When the run wrote its newest file, in UTC: one listing of its folder, whatever the number of files."""
    store.fs.invalidate_cache()
    found = store.fs.find(store.root, detail=True).values()
    times = [
        entry.get("mtime") or entry.get("LastModified") or entry.get("updated") or entry.get("last_modified")
        for entry in found
    ]
    return max(_moment(time) for time in times if time)


def _moment(time: Any) -> datetime:
    """A file's time as its file system tells it: seconds, ISO 8601, or a moment in UTC."""
    if isinstance(time, int | float):
        return datetime.fromtimestamp(time, UTC)
    moment = datetime.fromisoformat(time) if isinstance(time, str) else time
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _reached(store: Store) -> str:
    """How far each enhancement task came, and how many bins are done; also of a run whose settings are no longer valid."""
    told = []
    for task in (store.read_json("run.json") or {}).get("enhancement_tasks", ()):
        done = [stage for stage in _STAGES if store.exists(Run.manifest(task, stage))]
        bins = len((store.read_json(Run.plan(task)) or {"bins": []})["bins"])
        validated = sum(store.exists(Run.manifest(task, "validate", b)) for b in range(bins))
        told.append(f"{task}: {done[-1] if done else 'open'} done, {validated} of {bins} bins validated")
    return "; ".join(told)


def _marker(settings: Settings, trouble: Trouble) -> tuple[Store, str]:
    return Store(resolve_path(settings.pipeline.state_url)), f"alerts/{trouble.key.replace('/', '_')}.json"


def was_told(settings: Settings, trouble: Trouble) -> bool:
    """Whether this trouble has paged already."""
    state, path = _marker(settings, trouble)
    return state.exists(path)


def remember(settings: Settings, trouble: Trouble) -> None:
    """Notes under the state URL that this trouble has paged."""
    state, path = _marker(settings, trouble)
    state.write_json(path, {"subject": trouble.subject, "at": datetime.now(UTC).isoformat(timespec="seconds")})
