"""The run's report: one self-contained HTML page from manifests and verdict parts. It owns no data of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jinja2

from include.numerals import percent
from include.records import Verdict
from include.reporting.summary import summarise
from include.reporting.text import escalation_text, interval, routes_text
from include.runs import Run

EXAMPLES = 5  # of each kind; a page to read, not a dump: the partitions hold every row


def _verdicts(run: Run, task: str) -> Iterator[Verdict]:
    for index in range(len(run.bins(task))):
        yield from run.store.read_rows(run.verdicts(task, index), Verdict)


def examples(run: Run, task: str, failed_texts: frozenset[str] = frozenset()) -> dict[str, list[dict[str, str]]]:
    """Before and after of a few listings: accepted, rejected by a validator, judged bad. Stops reading when it has them."""
    field = run.spec.settings.task(task).output_field
    found: dict[str, list[dict[str, str]]] = {"accepted": [], "rejected": [], "judged bad": []}
    for row in _verdicts(run, task):
        kind = "rejected" if not row.ok else "judged bad" if row.text_id in failed_texts else "accepted"
        if len(found[kind]) < EXAMPLES and (row.output or kind == "rejected"):
            found[kind].append(
                {
                    "id": f"{row.merchant_id}/{row.listing_id}",
                    "locale": row.locale,
                    "before": getattr(row, field),
                    "after": row.output,
                    "why": ", ".join(row.reasons),
                }
            )
        if all(len(rows) >= EXAMPLES for name, rows in found.items() if name != "judged bad" or failed_texts):
            break
    return found


def write_report(run: Run, out: str | None = None) -> str:
    """Writes the page to `report.html` in the run's folder, or to the local file `out`; returns where it lies."""
    summary = summarise(run)
    gates: dict[str, dict[str, Any]] = {
        task: run.store.read_json(run.manifest(task, "gate")) or {} for task in summary["tasks"]
    }
    shown = {
        task: examples(run, task, frozenset(gates[task].get("failed_text_ids", ())))
        for task in summary["tasks"]
        if run.store.exists(run.plan(task))
    }
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True)
    environment.filters.update(
        percent=percent, interval=interval, escalation_text=escalation_text, routes_text=routes_text
    )
    page = environment.get_template("report.html.j2").render(
        summary=summary, gates=gates, examples=shown, raw=json.dumps(summary, indent=2)
    )
    if out:
        Path(out).parent.mkdir(parents=True, exist_ok=True)
        Path(out).write_text(page, encoding="utf-8")
        return out
    run.store.write_bytes("report.html", page.encode())
    return run.store.path("report.html")
