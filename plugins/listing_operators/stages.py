"""The nightly DAG's Python tasks: each calls a function of include/ for the run's folder and returns what XCom may carry.

Heavy imports stand inside the functions, since the DAG processor imports this module.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

from airflow.sdk import PokeReturnValue, Variable, conf, get_current_context
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from listing_operators.alerts import send_alert
from listing_operators.urls import sqlalchemy_url

log = logging.getLogger(__name__)

CATALOG, WAREHOUSE = "merchant_catalog", "ads_warehouse"
RETRIES: dict[str, Any] = {  # 30 s, 1 min, 2 min: long enough for a database restart or a lost worker
    "retries": 3,
    "retry_delay": timedelta(seconds=30),
    "retry_exponential_backoff": 2.0,
    "max_retry_delay": timedelta(minutes=20),
}
NIGHTLY_DOC = """
### Nightly listing enhancement

Extracts the interval's new and changed listings, rewrites each enhancement task's text with its task model, validates
every text, lets an LLM judge read a sample, and publishes an enhancement task's copy only if its gate passes.

- **Retry or clear anything**: finished rows are kept, only missing ones are generated again.
- **Backfill** past dates freely: newer copy is never overwritten. The second of two runs of one date waits for the first.
- **A failed gate** publishes nothing of its enhancement task, fails the run and sends one alert that says what is safe.
- **Params**: partition date, enhancement tasks, merchants, row limit, force.
"""


def _run(run_dir: str) -> Any:
    from include.runs import Run

    return Run.open(run_dir)


def open_run() -> PokeReturnValue:
    """Pins the run's parameters and settings and takes the lease of each (partition date, enhancement task).

    Pokes again while another run holds a lease; returns the run's folder.
    """
    from include.runs import Run, plan_run
    from include.settings import load_settings
    from include.warehouse.leases import LeaseHeldError, acquire

    context = get_current_context()
    dag_run = context["dag_run"]
    spec = plan_run(
        run_id=context["run_id"],
        params=context["params"],
        settings=load_settings(),
        logical_date=dag_run.logical_date,
        run_after=dag_run.run_after,
        interval=(dag_run.data_interval_start, dag_run.data_interval_end),
    )
    log.info("partition date %s, interval %s to %s", spec.partition_date, spec.interval_start, spec.interval_end)
    run = Run.create(spec)
    try:
        acquire(run, warehouse_url=sqlalchemy_url(WAREHOUSE))
    except LeaseHeldError as held:
        log.info("waiting: %s", held)
        return PokeReturnValue(is_done=False)
    return PokeReturnValue(is_done=True, xcom_value=run.store.url)


def extract(run_dir: str) -> dict[str, Any]:
    from include.extraction.run import extract as extract_listings

    return extract_listings(_run(run_dir), catalog_url=sqlalchemy_url(CATALOG), warehouse_url=sqlalchemy_url(WAREHOUSE))


def plan_bins(run_dir: str, enhancement_task: str, hosted: bool = False) -> list[int]:
    """Indexes of the bins of the task's own engine, or of the hosted API's while a switch is under way.

    Empty when the task is not asked for or has nothing to do, and then no engine starts.
    """
    run = _run(run_dir)
    return run.own_bins(enhancement_task, hosted) if enhancement_task in run.spec.enhancement_tasks else []


def validate(run_dir: str, enhancement_task: str, bin_index: int) -> dict[str, Any]:
    """Runs also when its generation failed: what was finished is validated, the rest counts as errored."""
    from include.validation.stage import validate as validate_bin

    return validate_bin(_run(run_dir), enhancement_task, bin_index)["counts"]  # type: ignore[no-any-return]


def sample(run_dir: str, enhancement_task: str) -> dict[str, Any]:
    from include.judging.stage import sample as sample_texts

    run = _run(run_dir)
    if enhancement_task not in run.spec.enhancement_tasks:
        raise AirflowSkipException(f"{enhancement_task} is not among this run's enhancement tasks")
    return sample_texts(run, enhancement_task)


def gate(run_dir: str, enhancement_task: str) -> dict[str, Any]:
    """Raises AirflowFailException when copy of this quality must not be published; a retry would not change it."""
    from include.judging.gate import decide

    result = decide(_run(run_dir), enhancement_task)
    if result["status"] not in ("passed", "empty"):
        raise AirflowFailException(f"gate of {enhancement_task} {result['status']}: " + "; ".join(result["reasons"]))
    return {key: result.get(key) for key in ("status", "mode", "pass_rate", "ci95")}


def load(run_dir: str, enhancement_task: str) -> dict[str, Any]:
    from include.warehouse.load import load as load_copy

    return load_copy(_run(run_dir), enhancement_task, warehouse_url=sqlalchemy_url(WAREHOUSE))


def reconcile(run_dir: str, enhancement_task: str) -> dict[str, Any]:
    from include.warehouse.load import reconcile as reconcile_load

    return reconcile_load(_run(run_dir), enhancement_task, warehouse_url=sqlalchemy_url(WAREHOUSE))


def report(run_dir: str) -> str:
    """Writes summary.json and report.html into the run's folder."""
    from include.reporting.report import write_report
    from include.reporting.summary import summarise
    from include.reporting.text import summary_text

    run = _run(run_dir)
    summary = summarise(run)
    run.store.write_json("summary.json", summary)
    log.info("%s", summary_text(summary))
    return write_report(run, warehouse_url=sqlalchemy_url(WAREHOUSE))


def watch() -> list[str]:
    """Sends one alert for each run of the last days that is late or silent, once. Returns the subjects of all that are."""
    from datetime import UTC, datetime

    from include.reporting.watch import remember, troubles, was_told
    from include.settings import load_settings

    settings = load_settings()
    channel = Variable.get("alert_connection", default=None) or None
    found = troubles(settings, datetime.now(UTC))
    for trouble in found:
        if not was_told(settings, trouble) and send_alert(
            trouble.subject, trouble.body, conn_id=channel, dedup_key=trouble.key
        ):
            remember(settings, trouble)
    return [trouble.subject for trouble in found]


def finish(run_dir: str | None) -> None:
    """Sends one alert if anything failed, gives the leases back, and then fails the run.

    The alert comes first: a warehouse that is away, or a run whose files cannot be read, must not keep it from on-call.
    """
    from include.partitions import Store
    from include.reporting.summary import summarise
    from include.reporting.text import alert_subject, alert_text
    from include.warehouse.leases import release

    context = get_current_context()
    base = conf.get("api", "base_url", fallback="") or ""
    url = f"{base.rstrip('/')}/dags/{context['dag'].dag_id}/runs/{context['run_id']}" if base else ""
    channel = Variable.get("alert_connection", default=None) or None
    subject = body = ""
    try:
        if run_dir is None or Store(run_dir).read_json("run.json") is None:
            subject = "Listing enhancement: the run could not be opened"
            body = f"{url}\nno listing was read and nothing was published; next: read the log of open_run, mend what it names (a "
            body += "database, a setting, a run whose lease it waited for) and clear open_run with its downstream tasks"
        else:
            run = _run(run_dir)
            summary = summarise(run)
            gates = {task: run.store.read_json(run.manifest(task, "gate")) for task in run.spec.enhancement_tasks}
            if not summary["ok"]:
                subject, body = alert_subject(summary), alert_text(summary, gates, url)
    except Exception as error:
        subject = "Listing enhancement: the run's results cannot be read"
        body = (
            f"{url}\ndata {run_dir}\n{error}\nnext: mend what the line above names and clear finish; it changes no copy"
        )
    if subject:
        send_alert(subject, body, conn_id=channel, dedup_key=f"{context['run_id']}/{subject}")
    if run_dir is not None and Store(run_dir).exists("run.json"):
        run = _run(run_dir)
        for enhancement_task in run.spec.enhancement_tasks:
            release(run, enhancement_task, warehouse_url=sqlalchemy_url(WAREHOUSE))
    if subject:
        raise AirflowFailException(subject)
