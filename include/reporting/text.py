"""The run's summary and alert as plain text, for a terminal, a task log or a pager."""

from __future__ import annotations

from typing import Any

from include.numerals import percent
from include.reporting.summary import GOOD_OUTCOMES

_STATES = ("extracted", "unchanged", "holdout", "deferred", "errored", "accepted", "loaded", "stale")


def interval(values: Any) -> str:
    return "" if not values else f" ({percent(values[0])} to {percent(values[1])})"


def escalation_text(found: dict[str, Any]) -> str:
    """What the larger model was asked, what came of it, and its cost where prices are configured."""
    cost = f", cost {found['cost']:.2f}" if found.get("cost") else ""
    return (
        f"{found['asked']} refused texts to {found['engine_profile']} ({found['status']}), "
        f"{found['accepted_listings']} of {found['refused_listings']} refused listings accepted by it{cost}"
    )


def routes_text(found: dict[str, dict[str, Any]]) -> str:
    """Which engine was to write how many listings, how many it answered, and how many of those the validators accepted."""
    return "; ".join(
        f"{engine}: {row['planned']} listings, {row['answered']} answered, {row['accepted']} accepted by the validators "
        f"({percent(row['pass_rate'])})"
        for engine, row in found.items()
    )


def summary_text(summary: dict[str, Any]) -> str:
    """The summary as a table, one column per enhancement task, with reasons and the gate's words below it."""
    tasks = summary["tasks"]
    width = max(14, *(len(text) + 2 for name, task in tasks.items() for text in (name, task["outcome"])))
    lines = [f"Run {summary['run_id']} of {summary['partition_date']}: {'ok' if summary['ok'] else 'FAILED'}", ""]
    rows: list[tuple[str, list[str]]] = [("", list(tasks))]
    rows += [(state, [str(t[state]) for t in tasks.values()]) for state in _STATES[:4]]
    rows += [("quarantined", [str(sum(t["quarantined"].values())) for t in tasks.values()])]
    rows += [(state, [str(t[state]) for t in tasks.values()]) for state in _STATES[4:]]
    rows += [
        ("judge pass rate", [percent(t["judge"]["pass_rate"]) for t in tasks.values()]),
        ("judged", [f"{t['judge']['evaluable']} of {t['judge']['sampled']}" for t in tasks.values()]),
        ("gate", [str(t["gate"]["status"] or "-") for t in tasks.values()]),
        ("outcome", [t["outcome"] for t in tasks.values()]),
        ("requests/s", [_number(t.get("requests_per_s")) for t in tasks.values()]),
        ("prefix cache hits", [percent(t.get("prefix_cache_hit_rate")) for t in tasks.values()]),
        ("engine starts", [str(t.get("engine_starts", 0)) for t in tasks.values()]),
    ]
    lines += [f"  {label:<18}" + "".join(f"{value:>{width}}" for value in values) for label, values in rows]
    for name, task in tasks.items():
        if task["quarantined"]:
            worst = sorted(task["quarantined"].items(), key=lambda item: -item[1])[:6]
            lines.append(f"  {name} quarantined: " + ", ".join(f"{reason} {rows}" for reason, rows in worst))
        if task["gate"]["mode"] == "demo" and task["gate"]["status"] != "empty":
            lines.append(
                f"  !! {name}: gate in demo mode: compared with the measured baseline of a weak model, "
                "without calibration. Not for production copy."
            )
        if routes := task.get("routes"):
            lines.append(f"  {name} by engine: {routes_text(routes)}")
        if found := task.get("escalation"):
            lines.append(f"  {name} escalated: {escalation_text(found)}")
        lines += [f"  {name} gate: {reason}" for reason in task["gate"]["reasons"] or []]
        if task["outcome"] == "empty":
            lines.append(f"  {name}: nothing new or changed; no engine was started")
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def failed_tasks(summary: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {name: task for name, task in summary["tasks"].items() if task["outcome"] not in GOOD_OUTCOMES}


def alert_subject(summary: dict[str, Any]) -> str:
    """One line that names every enhancement task that failed."""
    failed = failed_tasks(summary)
    what = ", ".join(f"{name} ({task['outcome'].replace('_', ' ')})" for name, task in failed.items())
    return f"Listing enhancement {summary['partition_date']}: {what}"


def alert_text(summary: dict[str, Any], gates: dict[str, dict[str, Any]], run_url: str = "") -> str:
    """What failed, figures against limits, how many listings, five sample ids and what is safe to do next.

    `gates` holds the gate manifests by enhancement task; tasks that stopped before their gate have none.
    """
    lines = [
        alert_subject(summary),
        f"run {summary['run_id']}" + (f"  {run_url}" if run_url else ""),
        f"data {summary['run_dir']}",
    ]
    for name, task in failed_tasks(summary).items():
        gate = gates.get(name) or {}
        waiting = task["extracted"] - task["unchanged"] - task["holdout"] - task["deferred"] - task["loaded"]
        kept = f"{waiting} listings keep their current copy" if task["extracted"] else "no listing was counted yet"
        lines += [
            "",
            f"{name}: {task['outcome'].replace('_', ' ')}; {kept}; published tonight: {task['loaded']}",
        ]
        lines += [f"  - {reason}" for reason in gate.get("reasons", [])]
        judge = task["judge"]
        if judge["pass_rate"] is not None:
            limit = (gate.get("baseline") or 0) - (gate.get("margin") or 0)
            lines.append(
                f"  judge pass rate {percent(judge['pass_rate'])}{interval(judge['ci95'])} of "
                f"{judge['evaluable']} texts; must be shown above {percent(limit)}"
            )
        reasons = sorted(task["quarantined"].items(), key=lambda item: -item[1])[:5]
        if reasons:
            lines.append("  top reasons: " + ", ".join(f"{reason} {rows}" for reason, rows in reasons))
        if gate.get("sample_ids"):
            lines.append("  examples: " + ", ".join(gate["sample_ids"][:5]))
        lines.append(f"  all failing ids: {summary['run_dir']}/quarantine/{name}")
        lines.append("  next: " + (gate.get("next_step") or _next_step(name, task)))
    good = [n for n in summary["tasks"] if n not in failed_tasks(summary)]
    if good:
        lines += ["", f"not affected: {', '.join(good)}"]
    return "\n".join(lines)


def _next_step(name: str, task: dict[str, Any]) -> str:
    if task["outcome"] == "not_loaded":
        return (
            f"nothing of {name} was published, the staged copy is safe; mend the warehouse and clear "
            f"{name}.load (downstream): the load repeats without generating anything again"
        )
    if task["outcome"] == "not_reconciled":
        return f"the copy is live; read the log of {name}.reconcile, mend what it names and clear {name}.reconcile (downstream)"
    failed = "extract" if task["outcome"] == "stopped_after_open" else f"the first failed task of {name}"
    return (
        f"nothing of {name} was published; read the log of {failed}, mend it and clear it (downstream): "
        "finished rows are kept and only missing ones are generated again"
    )
