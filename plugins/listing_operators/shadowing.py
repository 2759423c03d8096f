"""The Python tasks of `shadow_run`; the comparison, which owns the judge's engine, runs as a child through GPUTaskOperator."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

from airflow.sdk import get_current_context
from airflow.sdk.exceptions import AirflowFailException

log = logging.getLogger(__name__)

DOC = """
### Shadow run

Sets a finished run's copy beside the stored results of a hosted batch API for the same texts, and says `not_worse`, `worse` or
`undecided` by the margin and alpha of the task's gate. Nothing is published.

- **run_dir**: the run; one that holds work items only writes copy for the sample first.
- **incumbent**: a result file of the Batch API whose `custom_id` is the text id (`python -m include.batch export` writes such
  requests), on the worker's disk; with **map**, a JSONL file of `custom_id` and `text_id`, any other.
- **listings**: how many texts at most; empty: `held_out` of `tuning.yaml`.

Retry or clear anything: what was judged is kept. The log of `report` names the page.
"""


def prepare() -> dict[str, Any]:
    """Checks the parameters; returns the run's folder for results and the arguments of the comparison."""
    from include.runs import Run
    from include.settings import PROJECT_ROOT

    context = get_current_context()
    params = context["params"]
    folder = PROJECT_ROOT / "build" / "shadow" / re.sub(r"[^A-Za-z0-9_-]", "_", context["run_id"])
    for name in ("incumbent", "map"):
        if params[name] and not Path(params[name]).is_file():
            raise AirflowFailException(f"{name}: no file {params[name]} on this worker")
    try:
        Run.open(params["run_dir"]).bins(params["task"])
    except FileNotFoundError as error:
        raise AirflowFailException(str(error)) from error
    options = {"--run-dir": "run_dir", "--task": "task", "--incumbent": "incumbent", "--map": "map", "--listings": "listings"}  # fmt: skip
    given = [part for option, name in options.items() if params[name] for part in (option, str(params[name]))]
    return {"folder": str(folder), "shadow": ["include.batch", "shadow", *given, "--out", str(folder)]}


def report(folder: str) -> str:
    """Writes shadow.html and returns its path; the log says the verdict and why."""
    from include.batch.shadow_report import write_report

    path = write_report(Path(folder))
    found = json.loads((Path(folder) / "shadow.json").read_text(encoding="utf-8"))
    log.info("%s: %s; report: %s", found["verdict"], "; ".join(found["why"]), path)
    return str(path)
