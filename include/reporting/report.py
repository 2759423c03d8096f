"""The run's report: one self-contained HTML page from run table, manifests and partitions. It owns no data of its own."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import jinja2

from include.expectations import expected_text, observed_text
from include.judging.costs import ComparisonSettings, load_comparison
from include.judging.plots import data_uri, nights_plot, stacked_plot
from include.numerals import number, percent
from include.reporting import figures
from include.reporting.history import RunPage, TaskNight, run_page
from include.reporting.summary import summarise
from include.reporting.text import escalation_text, interval, routes_text
from include.runs import Run, folder_name
from include.settings import SettingsError

NIGHTS = 30  # earlier runs that the history looks at
_PARTS = 8  # colours of a plot


def price(value: float | None, unknown: str = "not configured") -> str:
    """The price of one listing, which is small."""
    return unknown if value is None else f"{value:.7f}"


def _earlier(run: Run, warehouse_url: str) -> RunPage:
    """The runs before this one, newest first; none for a run that was moved away from its neighbours."""
    place = f"{run.spec.partition_date}", folder_name(run.spec.run_id)
    data_url = run.store.url.removesuffix("/dt={}/run={}".format(*place))
    return RunPage([], "") if data_url == run.store.url else run_page(
        data_url, warehouse_url, after="/".join(place), limit=NIGHTS
    )  # fmt: skip


def _prices() -> tuple[ComparisonSettings, str]:
    """The prices of now, and what is wrong with their file: a report must not fail by it."""
    try:
        return load_comparison(), ""
    except SettingsError as error:
        return ComparisonSettings(), str(error)


def _history_plot(run: Run, task: str, gate: dict[str, Any], earlier: list[TaskNight]) -> bytes | None:
    """Pass rates of the judged nights, the oldest first; None where no earlier run was judged."""
    nights = [
        {
            "date": night.partition_date,
            "pass_rate": night.judge_pass_rate,
            "ci95": night.judge_ci95,
            "status": "failed" if night.status.startswith("gate_") else "passed",
        }
        for night in reversed(earlier)
        if night.judge_ci95
    ]
    if not nights:
        return None
    if (judge := gate.get("judge") or {}).get("ci95"):
        alarm = (gate.get("drift") or {}).get("alarm")
        tonight = {"date": "this run", "status": gate["status"], "alarm": alarm}
        nights.append(tonight | {name: judge[name] for name in ("pass_rate", "ci95")})
    limits = run.spec.settings.task(task).gate.model_dump() | gate
    return nights_plot(nights, limits["baseline"], limits["margin"], task)


def _few(rows: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    """The rows with their commonest parts; the rest of each is `other`, so that the colours tell parts apart."""
    totals: Counter[str] = Counter()
    for row in rows.values():
        totals.update(row)
    kept = [part for part, _ in totals.most_common(_PARTS)]
    return {
        name: {part: row[part] for part in kept if part in row}
        | ({"other": rest} if (rest := sum(n for part, n in row.items() if part not in kept)) else {})
        for name, row in rows.items()
    }  # fmt: skip


def task_figures(
    run: Run, task: str, summary: dict[str, Any], earlier: list[TaskNight], prices: ComparisonSettings
) -> dict[str, Any]:
    """Everything that the page shows of one enhancement task, besides its summary."""
    store = run.store
    gate: dict[str, Any] = store.read_json(run.manifest(task, "gate")) or {}
    bins = [store.read_json(run.manifest(task, "generate", b)) for b in range(summary["bins"])]
    refused = figures.refusals(run, task)
    steps = figures.funnel(run, task, summary)
    passed = {step["step"]: step["listings"] for step in steps if step["listings"] is not None}
    left = zip(passed.items(), [*list(passed.values())[:1], *passed.values()], strict=False)
    bars = {step: {"listings": rows, "left behind": before - rows} for (step, rows), before in left}
    merchants = figures.by_merchant(refused)
    return {
        "gate": gate,
        "steps": steps,
        "funnel": stacked_plot(bars, "listings", grey="left behind") if passed.get("extracted") else None,
        "reasons": figures.by_reason(refused),
        "merchants": merchants,
        "refused": stacked_plot(_few(merchants), "quarantined listings by reason", grey="other") if merchants else None,
        "nights": earlier,
        "history": _history_plot(run, task, gate, earlier),
        "throughput": figures.throughput([bins[b] for b in run.own_bins(task) if bins[b]] if bins else []),
        "costs": figures.costs(run, task, bins, summary["accepted"], prices),
        "examples": figures.examples(run, task, gate, refused) if steps else {},
        "has_quarantine": bool(refused),
        "data_docs": store.exists(f"data_docs/{task}/index.html"),
    }


def write_report(run: Run, out: str | None = None, warehouse_url: str = "") -> str:
    """Writes the page to `report.html` in the run's folder, or to the local file `out`; returns where it lies.

    Earlier runs come from their folders and, where its URL is given, the warehouse's run table.
    """
    summary, found, (prices, trouble) = summarise(run), _earlier(run, warehouse_url), _prices()
    tasks = {
        name: task_figures(run, name, task, [n for n in found.nights if n.task == name], prices)
        for name, task in summary["tasks"].items()
    }
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True)
    environment.filters.update(
        percent=percent,
        interval=interval,
        escalation_text=escalation_text,
        routes_text=routes_text,
        number=number,
        price=price,
        data_uri=data_uri,
        observed_text=observed_text,
        expected_text=expected_text,
    )
    page = environment.get_template("report.html.j2").render(
        summary=summary, tasks=tasks, prices=prices, trouble=trouble, problem=found.problem if warehouse_url else "",
        raw=json.dumps(summary, indent=2),
    )  # fmt: skip
    if out:
        Path(out).parent.mkdir(parents=True, exist_ok=True)
        Path(out).write_text(page, encoding="utf-8", errors="replace")
        return out
    run.store.write_bytes("report.html", page.encode("utf-8", "replace"))
    return run.store.path("report.html")
