"""Prompts of recent nights in, a faster engine profile of no worse copy out. Wiring only; the work lives in include/tuning."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import Param, TriggerRule, dag, task

from include.settings import load_settings
from listing_operators import tuning
from listing_operators.gpu import GPUTaskOperator, endpoint_connections, gpu_placement

SETTINGS = load_settings()
GPU = gpu_placement(SETTINGS.pipeline)
TASKS = sorted(SETTINGS.tasks)
TASK = Param(TASKS[0], enum=TASKS, description="Enhancement task whose engine profile is meant")
PARAMS = {
    "task": TASK,
    "run_dirs": Param(
        [], type="array", items={"type": "string"}, description="Finished runs whose prompts count; empty: the newest"
    ),
    "config": Param({}, type="object", description="Over tuning.yaml, such as requests, repeats, held_out"),
    "auto_approve": Param(False, type="boolean", description="Promote without asking a person"),
}
ROLL_BACK_PARAMS = {
    "task": TASK,
    "device": Param(None, type=["null", "string"], description="Such as NVIDIA H200; empty: every device"),
}


@dag(
    schedule=None,
    catchup=False,
    params=PARAMS,
    max_active_runs=1,
    tags=["listings", "vllm"],
    doc_md=tuning.DOC,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=30)},
)
def tune_task_model() -> None:
    prepared = task(multiple_outputs=True)(tuning.prepare)()
    run = GPUTaskOperator(task_id="run", arguments=prepared["run"], **GPU)
    quality = GPUTaskOperator(
        task_id="quality",
        arguments=prepared["quality"],
        connections=endpoint_connections(SETTINGS.engines[SETTINGS.judge.engine]),
        **GPU,
    )
    report = task(tuning.report)(prepared["folder"])
    approve = tuning.ApprovePromotion(task_id="approve", folder=prepared["folder"], response_timeout=timedelta(days=7))
    promoted = task(trigger_rule=TriggerRule.NONE_FAILED)(tuning.promote)(prepared["folder"], approve.output)
    run >> quality >> report >> approve >> promoted


@dag(
    schedule=None,
    catchup=False,
    params=ROLL_BACK_PARAMS,
    tags=["listings", "vllm"],
    doc_md=tuning.ROLL_BACK_DOC,
)
def roll_back_profile() -> None:
    task(retries=0)(tuning.roll_back)()  # a second try would go back two steps


tune_task_model()
roll_back_profile()
