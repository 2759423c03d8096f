"""Human labels in, a calibrated judge out. Wiring only; the work lives in include/judging."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import Param, TriggerRule, dag, task

from include.settings import load_settings
from listing_operators import labelling
from listing_operators.gpu import GPUTaskOperator, gpu_placement

SETTINGS = load_settings()
TASKS = sorted(SETTINGS.tasks)
PARAMS = {
    "enhancement_task": Param(TASKS[0], enum=TASKS, description="Whose copy is labelled and whose gate it is for"),
    "run_dir": Param(
        None, type=["null", "string"], description="Folder of a finished run whose judged texts are offered to people"
    ),
    "labels": Param(None, type=["null", "string"], description="JSONL of labelled pairs to use as well"),
    "pairs": Param(20, type="integer", minimum=1, maximum=500, description="Pairs to offer, each to two people"),
    "put_in_force": Param(True, type="boolean", description="Use it in the nightly gate if the judge is good enough"),
}


@dag(
    schedule=None,
    catchup=False,
    params=PARAMS,
    tags=["listings", "judge"],
    doc_md=labelling.CALIBRATION_DOC,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=30)},
)
def calibrate_judge() -> None:
    offered = task(labelling.offer_pairs)()
    first, second = (
        labelling.LabelPairOperator.partial(
            task_id=f"{name}_label", labeller=name, response_timeout=timedelta(days=7)
        ).expand(index=offered)
        for name in ("first", "second")
    )
    collect = task(trigger_rule=TriggerRule.NONE_FAILED)(labelling.collect_labels)
    collected = collect(first.output, second.output)
    GPUTaskOperator(
        task_id="calibrate",
        arguments=collected,
        trigger_rule=TriggerRule.NONE_FAILED,
        **gpu_placement(SETTINGS.pipeline),
    )


calibrate_judge()
