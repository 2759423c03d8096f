"""A finished run and a hosted API's stored results in, a verdict with its evidence out. Wiring only; see include/batch."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import Param, dag, task

from include.settings import load_settings
from listing_operators import shadowing
from listing_operators.gpu import GPUTaskOperator, endpoint_connections, gpu_placement

SETTINGS = load_settings()
TASKS = sorted(SETTINGS.tasks)
PARAMS = {
    "run_dir": Param(type="string", minLength=1, description="Folder or URL of the run"),
    "task": Param(TASKS[0], enum=TASKS, description="Enhancement task whose copy is compared"),
    "incumbent": Param(type="string", minLength=1, description="Result file of the Batch API"),
    "map": Param(None, type=["null", "string"], description="JSONL of custom_id and text_id, where they differ"),
    "listings": Param(None, type=["null", "integer"], minimum=1, description="Texts at most; empty: tuning.yaml"),
}


@dag(
    schedule=None,
    catchup=False,
    params=PARAMS,
    tags=["listings", "vllm"],
    doc_md=shadowing.DOC,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=30)},
)
def shadow_run() -> None:
    prepared = task(multiple_outputs=True)(shadowing.prepare)()
    compare = GPUTaskOperator(
        task_id="compare",
        arguments=prepared["shadow"],
        connections=endpoint_connections(SETTINGS.engines[SETTINGS.judge.engine]),
        **gpu_placement(SETTINGS.pipeline),
    )
    compare >> task(shadowing.report)(prepared["folder"])


shadow_run()
