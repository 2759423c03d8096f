"""The Python task of `quantize_task_model`; the checkpoint is made by a child through GPUTaskOperator."""

from __future__ import annotations

import re

from airflow.sdk import get_current_context
from airflow.sdk.exceptions import AirflowFailException

DOC = """
### Quantize a task model

Makes a smaller, faster checkpoint of an enhancement task's model with llm-compressor, calibrated on prompts of finished runs, under
`build/quantized/<task>-<scheme>-<run>`; the log says what it holds. Nothing is put in force: name the folder as `model` of
a candidate in `tuning.yaml`, and `tune_task_model` measures its speed and its copy against the profile in force.

It needs its own environment on the GPU host (`make quantize-env`, or LISTING_QUANTIZE_PYTHON).
"""


def prepare() -> list[str]:
    """Writes the workload file that calibrates; returns the arguments of the next step."""
    from include.settings import PROJECT_ROOT, SettingsError, load_settings, resolve_path
    from include.tuning.workload import newest_runs, requests_of_runs, write_requests

    context = get_current_context()
    params = context["params"]
    task, run = params["task"], re.sub(r"[^A-Za-z0-9_-]", "_", context["run_id"])
    out = PROJECT_ROOT / "build" / "quantized" / f"{task}-{params['scheme']}-{run}"
    try:
        settings = load_settings()
        run_dirs = params["run_dirs"] or newest_runs(settings, task)
        requests = requests_of_runs(run_dirs, task, settings, limit=params["samples"], seed=7)
    except (SettingsError, OSError) as error:
        raise AirflowFailException(str(error)) from error
    if not requests:
        raise AirflowFailException(f"no finished run of {task} to take prompts from: name some in run_dirs")
    prompts = out.with_suffix(".jsonl")
    prompts.parent.mkdir(parents=True, exist_ok=True)
    write_requests(prompts, requests)
    profile = settings.engines[settings.task(task).engine]
    arguments = ["include.quantization", "make", "--model", profile.model_path(), "--prompts", str(prompts)]
    arguments += ["--scheme", params["scheme"], "--samples", str(params["samples"]), "--out", str(out)]
    if profile.lora and profile.merge_lora:  # an adapter that is applied beside the weights stays beside them
        arguments += ["--adapter", resolve_path(profile.lora)]
    return arguments + (["--revision", profile.revision] if profile.revision else [])
