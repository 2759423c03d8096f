"""The nightly run: new and changed listings in, enhanced copy out. Wiring only; each stage lives in include/."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from airflow.sdk import Asset, CronDataIntervalTimetable, Param, TaskGroup, TriggerRule, chain, dag, task, task_group

from include.settings import load_settings
from listing_operators import stages
from listing_operators.gpu import GPUTaskOperator, endpoint_connections, gpu_placement

SETTINGS = load_settings()
GPU = gpu_placement(SETTINGS.pipeline)
PARAMS = {
    "partition_date": Param(
        None,
        type=["null", "string"],
        format="date",
        description="Day to enhance; empty: the run's data interval, or its date in UTC",
    ),
    "enhancement_tasks": Param(
        sorted(SETTINGS.tasks),
        type="array",
        items={"enum": sorted(SETTINGS.tasks)},
        description="Which enhancement tasks run",
    ),
    "merchants": Param([], type="array", items={"type": "string"}, description="Only these merchants; empty: all"),
    "row_limit": Param(
        None,
        type=["null", "integer"],
        minimum=1,
        description="Listings per enhancement task at most; the rest are deferred to the next run",
    ),
    "force": Param(False, type="boolean", description="Rewrite unchanged listings, too"),
}


def process_bins(run_dir: Any, name: str, bins: Any, engine: str, placement: dict[str, Any], group: str) -> Any:
    """Generates and validates the bins of one engine profile, side by side."""

    @task_group(group_id=group)
    def process_bin(bin_index: int) -> None:
        generate = GPUTaskOperator(
            task_id="generate",
            arguments=["include.generation", "run", "--run-dir", run_dir, "--task", name, "--bin", bin_index],
            connections=endpoint_connections(SETTINGS.engines[engine]),
            **placement,
        )
        validate = task(trigger_rule=TriggerRule.ALL_DONE)(stages.validate)(run_dir, name, bin_index)
        generate >> validate

    return process_bin.expand(bin_index=bins)


@dag(
    schedule=CronDataIntervalTimetable("0 0 * * *", timezone="UTC"),
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    params=PARAMS,
    default_args=stages.RETRIES,
    tags=["listings", "vllm"],
    doc_md=stages.NIGHTLY_DOC,
    max_active_tasks=64,
)
def enhance_listings() -> None:
    run_dir = task.sensor(poke_interval=60, timeout=12 * 3600, mode="reschedule")(stages.open_run)()
    extracted = task(stages.extract)(run_dir)
    gates, loads, ends = [], [], []
    for name in sorted(SETTINGS.tasks):
        with TaskGroup(name):
            bins = task(stages.plan_bins)(run_dir, name)
            extracted >> bins
            processed = [process_bins(run_dir, name, bins, SETTINGS.tasks[name].engine, GPU, "process_bin")]
            if routing := SETTINGS.tasks[name].routing:  # the hosted API's bins hold no GPU
                bins = task(task_id="plan_hosted_bins")(stages.plan_bins)(run_dir, name, hosted=True)
                extracted >> bins
                placement = {"pool": routing.pool}
                processed.append(process_bins(run_dir, name, bins, routing.hosted, placement, "process_hosted_bin"))
            if escalation := SETTINGS.tasks[name].escalation:
                escalate = GPUTaskOperator(
                    task_id="escalate",
                    trigger_rule=TriggerRule.NONE_FAILED,
                    arguments=["include.escalation", "--run-dir", run_dir, "--task", name],
                    connections=endpoint_connections(SETTINGS.engines[escalation.engine]),
                    **GPU,
                )
                processed >> escalate
                processed = [escalate]
            sample = task(trigger_rule=TriggerRule.NONE_FAILED)(stages.sample)(run_dir, name)
            judge = GPUTaskOperator(
                task_id="judge",
                arguments=["include.judging", "score", "--run-dir", run_dir, "--task", name],
                connections=endpoint_connections(SETTINGS.engines[SETTINGS.judge.engine]),
                **GPU,
            )
            gate = task(retries=0)(stages.gate)(run_dir, name)
            load = task(outlets=[Asset(f"listing_copy_{name}")])(stages.load)(run_dir, name)
            reconcile = task(stages.reconcile)(run_dir, name)
            chain(processed, sample, judge, gate, load, reconcile)
            gates.append(gate)
            loads.append(load)
            ends.append(reconcile)
    if SETTINGS.pipeline.publish_together:
        for load in loads:
            gates >> load
    report = task(trigger_rule=TriggerRule.ALL_DONE)(stages.report)(run_dir)
    ends >> report >> task(trigger_rule=TriggerRule.ALL_DONE, retries=0)(stages.finish)(run_dir)


enhance_listings()
