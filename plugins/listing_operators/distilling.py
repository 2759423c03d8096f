"""The Python tasks of `distill_task_model`; training and evaluation run as children through GPUTaskOperator."""

from __future__ import annotations

import json
import re
from typing import Any

from airflow.sdk import get_current_context
from airflow.sdk.exceptions import AirflowFailException

DOC = """
### Distil a task model

Fine-tunes the small model of one task on copy that was accepted: lines of `source` and `output`, finished runs, and pairs
of the synthetic world. Every pair passes the validators, and none enters that a judge has failed. The result is measured
against the model in use on held-out merchants, registered under the state URL with the hashes of data, code and metrics,
and made current only if it is no worse.

Training needs its own environment (`make train-env`, or LISTING_TRAIN_PYTHON). To use a registered model, set `lora` of the
engine profile to its folder and change `lineage`, so that the catalogue is rewritten.
"""


def collect_pairs() -> dict[str, Any]:
    """Writes the pairs of all sources; returns the arguments of the next steps."""
    from include.distillation.__main__ import make_pairs, parse
    from include.settings import PROJECT_ROOT

    context = get_current_context()
    params = context["params"]
    task = params["task_model"]
    folder = PROJECT_ROOT / "build" / "distill" / re.sub(r"[^A-Za-z0-9_.-]", "_", context["run_id"])
    pairs, model, evaluation = folder / "pairs.jsonl", folder / "model", folder / "evaluation.json"
    arguments = ["pairs", "--task", task, "--world", params["world_pairs"], "--out", pairs, "--workers", 1]
    arguments += ["--jsonl", *params["jsonl"], "--run-dir", *params["run_dirs"]]
    try:
        made = make_pairs(parse(arguments))
    except (ValueError, OSError) as error:
        raise AirflowFailException(str(error)) from error
    recipe = json.dumps(params["recipe"])
    share = params["recipe"].get("held_out_share", 0.02)
    module, common = "include.distillation", ["--task", task, "--pairs", str(pairs)]
    return {
        "pairs": made["pairs"],
        "train": [module, "train", *common, "--recipe", recipe, "--out", str(model)],
        "evaluate": [module, "evaluate", *common, "--candidate", str(model), "--held-out-share", str(share),
                     "--out", str(evaluation)],
        "register": ["register", *common, "--model", str(model), "--evaluation", str(evaluation)],
    }  # fmt: skip


def register(arguments: list[str]) -> dict[str, Any]:
    """Stores the trained model and what was measured; returns its version and whether it became current."""
    from include.distillation.__main__ import parse, register_model

    return register_model(parse(arguments))
