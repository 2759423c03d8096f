"""A tuning run's report: one self-contained HTML page from the files in its folder. It owns no data of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jinja2

from include.generation.roofline import Ceilings, data_sheet
from include.judging.plots import data_uri
from include.numerals import number, percent
from include.tuning import figures
from include.tuning.plan import TuningSettings
from include.tuning.plots import comparison_plot, pareto_plot, roofline_plot, step_parts, steps_plot
from include.tuning.promotion import verdict
from include.tuning.run import read_run
from include.tuning.trials import read_rows


def _template(name: str) -> jinja2.Template:
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True)
    environment.filters.update(
        number=number,
        percent=percent,
        points=figures.points,
        times=figures.times,
        between=figures.between,
        cell=figures.cell_text,
        data_uri=data_uri,
    )
    return environment.get_template(name)


def write_comparison(folder: Path) -> Path:
    """Writes `compare.html` beside `compare.json` (see include.tuning.compare)."""
    found = json.loads((folder / "compare.json").read_text(encoding="utf-8"))
    measured = [row for row in found["rows"] if not row.get("error")]
    path = folder / "compare.html"
    plot = comparison_plot(measured) if measured else None
    path.write_text(_template("compare.html.j2").render(found=found, plot=plot), encoding="utf-8")
    return path


def write_report(folder: Path) -> Path:
    """Writes `report.html` into a finished tuning run's folder. Raises FileNotFoundError for a run without a result."""

    def read(name: str) -> Any:
        path = folder / name
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None

    plan, result = read_run(folder)
    tuning = TuningSettings.model_validate(plan["tuning"])
    rows = read_rows(folder / "measurements.jsonl")
    columns = [row for row in (result["baseline"], result.get("incumbent"), *result["finalists"]) if row]
    device = next((name for row in columns if (name := (row.get("engine") or {}).get("device"))), "unknown")
    found = read("ceilings.json")
    ceilings = Ceilings(**found) if found else data_sheet(device)
    dots = [
        (row["candidate"], row["intensity"], row["operations_per_request"] * row["requests_per_s"])
        for row in columns
        if row["requests_per_s"] and row.get("intensity") and row.get("operations_per_request")
    ]
    ranked, quality, steps = figures.ranking(result, rows, tuning), read("quality.json"), read("steps.json")
    qualities = figures.quality_table(quality, ranked) if quality and quality.get("candidates") else []
    both = [row for row in qualities if row["ratio"]]
    incumbents = {row["incumbent_pass_rate"] for row in both}
    hosted = tuning.hosted_price_per_million.get(result["task"], 0.0)
    page = _template("report.html.j2").render(
        result=result, plan=plan, tuning=tuning, rows=rows, device=device, ceilings=ceilings, columns=columns,
        summary=figures.summary_table(columns), settings=figures.settings_table(columns),
        heatmaps=figures.heatmaps([row for row in rows if row["stage"] == "search"], tuning.probe_requests),
        failures=figures.failures(rows), ranked=ranked, quality=qualities, steps=steps,
        uncompared=(quality or {}).get("failed", {}),
        dots=dots, roofline=roofline_plot(dots, ceilings) if dots and ceilings else None,
        pareto=pareto_plot(both, incumbents.pop() if len(incumbents) == 1 else None) if both else None,
        parts=step_parts(steps) if steps else {}, steps_png=steps_plot(step_parts(steps)) if steps else None,
        costs=figures.cost_table(columns, tuning, hosted), hosted=hosted, verdict=verdict(folder),
    )  # fmt: skip
    path = folder / "report.html"
    path.write_text(page, encoding="utf-8")
    return path
