"""Accepted copy in, a new task model out. Wiring only; the work lives in include/distillation."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import Param, dag, task

from include.settings import load_settings
from listing_operators import distilling
from listing_operators.gpu import GPUTaskOperator, gpu_placement

GPU = gpu_placement(load_settings().pipeline)
PARAMS = {
    "task_model": Param("title", enum=["title", "description", "judge"], description="Which task model is trained"),
    "jsonl": Param([], type="array", items={"type": "string"}, description="Files of lines with source and output"),
    "run_dirs": Param(
        [], type="array", items={"type": "string"}, description="Finished runs whose accepted copy counts"
    ),
    "world_pairs": Param(0, type="integer", minimum=0, description="Pairs of the synthetic world to add"),
    "recipe": Param({}, type="object", description="Over the recipe's defaults, such as rank, epochs, learning_rate"),
}


@dag(
    schedule=None,
    catchup=False,
    params=PARAMS,
    tags=["listings", "training"],
    doc_md=distilling.DOC,
    default_args={"retries": 1, "retry_delay": timedelta(seconds=30)},
)
def distill_task_model() -> None:
    commands = task(multiple_outputs=True)(distilling.collect_pairs)()
    train = GPUTaskOperator(task_id="train", arguments=commands["train"], **GPU)
    evaluate = GPUTaskOperator(task_id="evaluate", arguments=commands["evaluate"], **GPU)
    train >> evaluate >> task(distilling.register)(commands["register"])


distill_task_model()
