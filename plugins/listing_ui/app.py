"""The web application that Airflow's API server mounts: history, trends, a run's report and its quarantine.

It only reads. Every address asks Airflow whether the user may see the nightly DAG's runs, or, where a listing's texts are
shown, its logs. Pages carry a content security policy that allows no script at all.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable
from datetime import date
from pathlib import Path as FilePath
from typing import Annotated, Any, TypeVar
from urllib.parse import urlencode

import jinja2
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.security import requires_access_dag
from airflow.sdk.exceptions import AirflowNotFoundException
from fastapi import Depends, FastAPI, HTTPException, Path, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse

from include.numerals import percent
from include.partitions import Store, TornPartError
from include.reporting import refused
from include.reporting.history import TaskNight, find_run, one_run, run_nights, run_page, run_store
from include.reporting.text import interval
from include.settings import SettingsError, load_settings, resolve_path
from listing_operators.urls import sqlalchemy_url
from listing_ui.addresses import DAG_ID
from listing_ui.charts import HEIGHT, WIDTH, Chart, chart

log = logging.getLogger(__name__)
Value = TypeVar("Value")
FOLDER = FilePath(__file__).parent / "templates"
TREND_RUNS = 60
PAGE_POLICY = "default-src 'none'; style-src 'self'; frame-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'self'"
# The report brings its style along and needs nothing else; the sandbox takes its origin away, should it hold anything.
REPORT_POLICY = (
    "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'self'"
)
_HEADERS = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "same-origin", "Cache-Control": "no-store"}

may_see_runs = requires_access_dag("GET", DagAccessEntity.RUN, DAG_ID)
may_see_texts = requires_access_dag("GET", DagAccessEntity.TASK_LOGS, DAG_ID)

RunName = Annotated[str, Path(pattern=r"^[A-Za-z0-9_.-]{1,250}$")]
TaskName = Annotated[str, Path(pattern=r"^[A-Za-z0-9_-]{1,100}$")]
DocsPage = Annotated[str, Path(pattern=r"^([A-Za-z0-9_-][A-Za-z0-9_.-]*/)+[A-Za-z0-9_.-]+\.html$")]  # no step upwards
Cursor = Annotated[str, Query(max_length=300)]
Text = Annotated[str, Query(max_length=300)]


def data_url() -> str:
    """Where run folders lie, by the settings of now."""
    return resolve_path(load_settings().pipeline.data_url)


def warehouse_url() -> str:
    """The warehouse's URL, with its password, from Airflow's connection; empty without one, which the history then says."""
    try:
        return sqlalchemy_url("ads_warehouse")
    except (AirflowNotFoundException, SettingsError) as error:
        log.warning("no warehouse: %s", error)
        return ""


DataUrl = Annotated[str, Depends(data_url)]
WarehouseUrl = Annotated[str, Depends(warehouse_url)]


def _environment() -> jinja2.Environment:
    found = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters.update(percent=percent, interval=interval, address=urlencode, rate=rate)
    return found


def rate(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def opened_run(data_url: DataUrl, day: date, name: RunName) -> Store:
    """The folder of a run. Raises 404 where there is none."""
    store = run_store(data_url, day, name)
    if not store.exists("run.json"):
        raise HTTPException(404, f"there is no run {name} of {day}, or its folder was cleaned up")
    return store


OpenedRun = Annotated[Store, Depends(opened_run)]


def charts_of(nights: list[TaskNight]) -> dict[str, list[Chart]]:
    """Pass rates and throughput of each enhancement task over `nights`, which are given newest first."""
    by_task: dict[str, list[TaskNight]] = defaultdict(list)
    for night in reversed(nights):
        by_task[night.task].append(night)
    found = {}
    for task, rows in sorted(by_task.items()):
        drawn = (
            chart(
                "Judge pass rate, with its 95% interval and the baseline",
                rows,
                lambda n: n.judge_pass_rate,
                percent,
                interval=lambda n: n.judge_ci95,
                baseline=lambda n: n.baseline,
                top=1.0,
            ),
            chart("Validator pass rate", rows, lambda n: n.validator_pass_rate, percent, top=1.0),
            chart("Requests a second", rows, lambda n: n.requests_per_s, rate),
        )
        if present := [c for c in drawn if c is not None]:
            found[task] = present
    return found


def create_app() -> FastAPI:
    """The application, to be mounted anywhere: addresses in its pages begin with the path that it is mounted at."""
    app = FastAPI(title="Listing runs", openapi_url=None)
    templates, runs, texts = _environment(), [Depends(may_see_runs)], [Depends(may_see_texts)]

    def page(request: Request, template: str, /, **values: Any) -> HTMLResponse:
        base = request.scope.get("root_path", "")
        text = templates.get_template(f"{template}.html.j2").render(base=base, **values)
        return HTMLResponse(text, headers=_HEADERS | {"Content-Security-Policy": PAGE_POLICY})

    def cursor(read: Callable[[], Value]) -> Value:
        try:
            return read()
        except ValueError as error:
            raise HTTPException(400, f"the address names no place in the list: {error}") from error
        except TornPartError as error:
            raise HTTPException(500, str(error)) from error

    @app.get("/style.css", dependencies=runs)
    def style() -> Response:
        return Response((FOLDER / "style.css").read_bytes(), media_type="text/css", headers=_HEADERS)

    @app.get("/", dependencies=runs)
    def history(request: Request, data: DataUrl, warehouse: WarehouseUrl, after: Cursor = "") -> HTMLResponse:
        return page(request, "history", found=cursor(lambda: run_page(data, warehouse, after=after)), after=after)

    @app.get("/trends", dependencies=runs)
    def trends(request: Request, data: DataUrl, warehouse: WarehouseUrl, after: Cursor = "") -> HTMLResponse:
        found = cursor(lambda: run_page(data, warehouse, after=after, limit=TREND_RUNS))
        charts = charts_of(found.nights)
        return page(request, "trends", found=found, charts=charts, width=WIDTH, height=HEIGHT, after=after)

    @app.get("/find/{run_id}", dependencies=runs)
    def find(request: Request, data: DataUrl, run_id: Annotated[str, Path(max_length=250)]) -> RedirectResponse:
        if (found := find_run(data, run_id)) is None:
            raise HTTPException(404, "the run has no folder: its task `open_run` makes it")
        return RedirectResponse(f"{request.scope.get('root_path', '')}/runs/{found[0]}/{found[1]}", headers=_HEADERS)

    @app.get("/runs/{day}/{name}", dependencies=runs)
    def run(
        request: Request, data: DataUrl, warehouse: WarehouseUrl, store: OpenedRun, day: date, name: RunName
    ) -> HTMLResponse:
        found = one_run(data, warehouse, day, name)
        docs = [night.task for night in found.nights if store.exists(f"data_docs/{night.task}/index.html")]
        has_report = store.exists("report.html")
        return page(request, "run", found=found, day=day, name=name, has_report=has_report, docs=docs)

    @app.get("/runs/{day}/{name}/report", dependencies=texts)
    def report(store: OpenedRun) -> HTMLResponse:
        if not store.exists("report.html"):
            raise HTTPException(404, "the run has no report yet: its task `report` writes it")
        content = store.fs.cat_file(store.path("report.html"))
        return HTMLResponse(content, headers=_HEADERS | {"Content-Security-Policy": REPORT_POLICY})

    @app.get("/runs/{day}/{name}/data_docs/{docs_page:path}", dependencies=texts)
    def data_docs(store: OpenedRun, docs_page: DocsPage) -> HTMLResponse:
        """Great Expectations' own pages, which the policy shows without scripts and without styles from elsewhere."""
        path = f"data_docs/{docs_page}"
        if not store.exists(path):
            raise HTTPException(404, "the run has no such page: its gate writes Data Docs when it checks expectations")
        content = store.fs.cat_file(store.path(path))
        return HTMLResponse(content, headers=_HEADERS | {"Content-Security-Policy": REPORT_POLICY})

    @app.get("/runs/{day}/{name}/quarantine/{task}", dependencies=texts)
    def quarantine(
        request: Request,
        data: DataUrl,
        store: OpenedRun,
        day: date,
        name: RunName,
        task: TaskName,
        reason: Text = "",
        text: Text = "",
        after: Cursor = "",
    ) -> HTMLResponse:
        wanted = refused.Wanted(reason, text.strip())
        found = cursor(lambda: refused.refused_page(store, task, wanted, after=after))
        counted = next((night.rejected for night in run_nights(data, day, name) if night.task == task), {})
        reasons = sorted({reason: 0} | counted if reason else counted)
        place = {"day": day, "name": name, "task": task, "after": after}
        return page(request, "quarantine", found=found, wanted=wanted, reasons=reasons, counted=counted, **place)

    @app.get("/runs/{day}/{name}/quarantine/{task}/csv", dependencies=texts)
    def quarantine_csv(
        store: OpenedRun, day: date, task: TaskName, reason: Text = "", text: Text = ""
    ) -> StreamingResponse:
        lines = refused.csv_lines(store, task, refused.Wanted(reason, text.strip()))
        attached = {"Content-Disposition": f'attachment; filename="quarantine-{day}-{task}.csv"'}
        return StreamingResponse(lines, media_type="text/csv; charset=utf-8", headers=_HEADERS | attached)

    return app
