"""Prompts of recent nights in, a quantized checkpoint for tuning out. Wiring only; the work lives in include/quantization."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import Param, dag, task

from include.quantization.recipes import SCHEMES
from include.settings import load_settings
from listing_operators import quantizing
from listing_operators.gpu import GPUTaskOperator, gpu_placement

SETTINGS = load_settings()
TASKS = sorted(SETTINGS.tasks)
PARAMS = {
    "task": Param(TASKS[0], enum=TASKS, description="Enhancement task whose model is quantized"),
    "scheme": Param("w8a8", enum=list(SCHEMES), description="How its weights and inputs are stored"),
    "run_dirs": Param(
        [],
        type="array",
        items={"type": "string"},
        description="Finished runs whose prompts calibrate; empty: the newest",
    ),
    "samples": Param(512, type="integer", minimum=1, description="Most prompts that calibrate"),
}


@dag(
    schedule=None,
    catchup=False,
    params=PARAMS,
    tags=["listings", "training"],
    doc_md=quantizing.DOC,
    default_args={"retries": 1, "retry_delay": timedelta(seconds=30)},
)
def quantize_task_model() -> None:
    arguments = task(quantizing.prepare)()
    GPUTaskOperator(task_id="make", arguments=arguments, **gpu_placement(SETTINGS.pipeline))


quantize_task_model()
