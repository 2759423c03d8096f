"""Workers without work: an Airflow executor for `benchmarks.scheduling`, whose tasks end as soon as they have begun.

A stub, and no engine: each task of the nightly DAG is reported to the API server as a worker reports it (started, its
templated arguments, its result, succeeded), and nothing of it runs. What is left is the cost of Airflow itself.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import Any

from airflow.executors.base_executor import BaseExecutor
from airflow.executors.local_executor import LocalExecutor
from airflow.sdk.api.client import Client

FIGURES = 40  # of a manifest: a generate manifest has about as many


def report(workload: Any, *, server: str, **_: Any) -> int:
    """One task's life, as the API server sees it; exit status 0."""
    task = workload.ti
    bins = int(os.environ["STUB_BINS"])
    with Client(base_url=server, token=workload.token) as client:
        client.task_instances.start(task.id, os.getpid(), datetime.now(UTC))
        key = (task.dag_id, task.run_id, task.task_id, "return_value")
        if task.task_id.endswith("plan_bins"):
            client.xcoms.set(*key, list(range(bins)), task.map_index, mapped_length=bins)
        else:
            arguments = {
                "arguments": str(["include.generation", "run", "--run-dir", "x" * 100, "--bin", task.map_index])
            }
            client.task_instances.set_rtif(task.id, arguments)
            manifest = {f"figure_{number}": number / 3 for number in range(FIGURES)}
            client.xcoms.set(*key, manifest, task.map_index)
        client.task_instances.succeed(task.id, datetime.now(UTC), [], [], None)
    return 0


class StubExecutor(LocalExecutor):
    """The LocalExecutor with its worker processes, which only report."""

    def start(self) -> None:
        BaseExecutor.run_workload = staticmethod(report)  # type: ignore[assignment]  # before the workers are forked
        super().start()
