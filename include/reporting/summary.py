"""The summary of one run: what every stage's manifest says, by enhancement task, as one JSON value."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from include.partitions import Store
from include.records import RunCounts
from include.runs import Run
from include.settings import SettingsError, load_settings, resolve_path

#: Outcome of one enhancement task. `published` and `empty` are good nights; everything else fails the run.
GOOD_OUTCOMES = frozenset({"published", "empty"})


def _manifest(run: Run, task: str, stage: str, bin_index: int | None = None) -> dict[str, Any]:
    found: dict[str, Any] = run.store.read_json(run.manifest(task, stage, bin_index)) or {}
    return found


def _throughput(run: Run, task: str) -> dict[str, Any]:
    """Engine figures over the bins of the task's own engine: requests over busy time; the cache-hit rate is weighted by
    prompt tokens.
    """
    planned = len(run.bins(task)) if run.store.exists(run.plan(task)) else 0
    bins = [_manifest(run, task, "generate", i) for i in range(planned)]
    done = [bins[i] for i in (run.own_bins(task) if planned else ()) if bins[i]]

    def total(name: str) -> float:
        return float(sum(m.get(name) or 0 for m in done))

    weighted = [
        (m["prefix_cache_hit_rate"], m.get("prompt_tokens") or 0)
        for m in done
        if m.get("prefix_cache_hit_rate") is not None
    ]
    tokens = sum(weight for _, weight in weighted)
    return {
        "requests": int(total("requests")),
        "requests_per_s": round(total("requests") / total("busy_s"), 3) if total("busy_s") else None,
        "output_tokens": int(total("output_tokens")),
        "prefix_cache_hit_rate": round(sum(r * w for r, w in weighted) / tokens, 4) if tokens else None,
        "engine_starts": int(total("engine_starts")),
        "engine_start_seconds": round(sum(m["engine_start_s"] or 0.0 for m in done if m.get("engine_starts")), 1),
        "bins": len(bins),
        "bins_without_result": sum(not m for m in bins),
    }


def _routes(run: Run, task: str) -> dict[str, dict[str, Any]] | None:
    """Listings and the validators' pass rate by engine profile while a switch is under way; else None."""
    routes = run.spec.settings.task(task).routes
    if len(routes) == 1 or not run.store.exists(run.plan(task)):
        return None
    found: dict[str, dict[str, Any]] = {name: dict.fromkeys(("planned", "answered", "accepted"), 0) for name in routes}
    planned = run.store.read_json(run.plan(task))["rows"]
    for index, engine in enumerate(run.engines(task)):
        counts = RunCounts.from_dict(_manifest(run, task, "validate", index).get("counts", {}))
        found[engine]["planned"] += planned[index]
        found[engine]["answered"] += counts.accepted + counts.quarantined_total
        found[engine]["accepted"] += counts.accepted
    for row in found.values():
        row["pass_rate"] = row["accepted"] / row["answered"] if row["answered"] else None
    return found


def _outcome(gate: dict[str, Any], reconciled: dict[str, Any], last_stage: str) -> str:
    """`not_reconciled`: the load published its copy, and the counts were not read back."""
    if not gate:
        return f"stopped_after_{last_stage}"
    status = str(gate["status"])
    if status == "passed":
        waits = "not_reconciled" if last_stage == "load" else "not_loaded"
        return "published" if reconciled.get("status") == "published" else waits
    return status if status == "empty" else f"gate_{status}"


def _escalation(manifest: dict[str, Any]) -> dict[str, Any] | None:
    """What a larger model made of refused texts; None where the enhancement task has no escalation, or it did not run."""
    texts: dict[str, int] = manifest.get("texts", {})
    names = ("status", "engine_profile", "accepted_listings", "refused_listings", "cost")
    asked = texts.get("asked", 0) + texts.get("resumed", 0)
    return {name: manifest.get(name) for name in names} | {"asked": asked} if manifest else None


def summarise_task(run: Run, task: str) -> dict[str, Any]:
    """One enhancement task's figures. A stage that did not run leaves nulls, and `outcome` says where it stopped."""
    extract, gate = _manifest(run, task, "extract"), _manifest(run, task, "gate")
    load, reconciled = _manifest(run, task, "load"), _manifest(run, task, "reconcile")
    reached = [s for s in ("extract", "sample", "gate", "load") if _manifest(run, task, s)]
    counts = RunCounts.from_dict(gate.get("counts") or extract.get("counts") or {})
    settings = run.spec.settings.task(task)
    return {
        **counts.to_dict(),
        "loaded": load.get("loaded", 0),
        "stale": load.get("stale", 0),
        "outcome": _outcome(gate, reconciled, reached[-1] if reached else "open"),
        "gate": {k: gate.get(k) for k in ("status", "mode", "baseline", "margin", "reasons", "suite", "override")},
        "judge": gate.get("judge")
        or {"sampled": 0, "evaluable": 0, "passed": 0, "errors": 0, "pass_rate": None, "ci95": None},
        "engine_profile": settings.engine,
        "routes": _routes(run, task),
        "escalation": _escalation(_manifest(run, task, "escalate")),
        **_throughput(run, task),
    }


def summarise(run: Run) -> dict[str, Any]:
    """Figures of the whole run; `ok` is true when every enhancement task is published or had nothing to do."""
    tasks = {task: summarise_task(run, task) for task in run.spec.enhancement_tasks}
    return {
        "run_id": run.spec.run_id,
        "run_dir": run.store.url,
        "partition_date": str(run.spec.partition_date),
        "interval": [run.spec.interval_start.isoformat(), run.spec.interval_end.isoformat()],
        "written_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "ok": all(t["outcome"] in GOOD_OUTCOMES for t in tasks.values()),
        "tasks": tasks,
    }


def latest_run(partition_date: str) -> Run:
    """The run of a partition date whose `run.json` is newest.

    Raises SettingsError when that date has no run.
    """
    data_url = resolve_path(load_settings().pipeline.data_url)
    day = Store(data_url).child(f"dt={partition_date}")
    folders = day.fs.ls(day.root, detail=False) if day.fs.exists(day.root) else []
    runs = [f for f in folders if day.fs.exists(f"{f}/run.json")]
    if not runs:
        raise SettingsError(
            f"no run of {partition_date} under {data_url}; start one with `make run DATE={partition_date}`"
        )
    newest = max(runs, key=lambda folder: day.fs.modified(f"{folder}/run.json"))
    return Run.open(day.child(newest.rsplit("/", 1)[-1]).url)
