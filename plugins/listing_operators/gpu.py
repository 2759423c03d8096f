"""GPUTaskOperator: runs a stage that owns an engine, such as `python -m include.generation run …`, as a child process."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from airflow.sdk.observability.stats import Stats

from include.settings import PROJECT_ROOT, EngineProfile, PipelineSettings, resolve_path
from listing_operators.urls import connection_url

if TYPE_CHECKING:
    from airflow.sdk import Context

# The names that include.generation.child reads and the status that it ends with; not imported, to keep parsing fast.
PARENT_VARIABLE, RESULT_VARIABLE = "LISTING_PARENT_PID", "LISTING_RESULT_FILE"
ENDPOINT_VARIABLE = "LISTING_ENDPOINT_URL"
EXIT_NO_RETRY = 78
GRACE_SECONDS = 20.0
MAX_XCOM_BYTES = 32_768
_METRICS = ("requests_per_s", "output_tokens_per_s", "prefix_cache_hit_rate", "kv_cache_use_peak", "preemptions")


def endpoint_connections(profile: EngineProfile) -> dict[str, str]:
    """The `connections` that a stage with this engine profile needs: its endpoint's, or none for an offline engine."""
    return {ENDPOINT_VARIABLE: profile.connection} if profile.connection else {}


def gpu_placement(pipeline: PipelineSettings) -> dict[str, Any]:
    """Where Airflow runs a task that owns an engine: its pool, and its queue and pod template if the settings name any.

    What they leave out is left to Airflow. The scheduler reads the pod template, from the same path as the workers.
    """
    placement: dict[str, Any] = {"pool": "gpu"}
    if pipeline.gpu_queue:
        placement["queue"] = pipeline.gpu_queue
    if pipeline.gpu_pod_template:
        placement["executor_config"] = {"pod_template_file": resolve_path(pipeline.gpu_pod_template)}
    return placement


class GPUTaskOperator(BaseOperator):
    """Runs `python -m <arguments>` in its own process group and returns the stage's manifest.

    The child's output goes to the task log line by line. Whatever ends the task (kill, timeout, error) ends the group:
    SIGTERM, a grace in which finished rows are written, then SIGKILL; a task that is SIGKILLed takes its child along,
    since the child watches it. A failure that no retry can mend raises AirflowFailException, others AirflowException.

    :param arguments: module and its arguments; templated, and turned into text.
    :param environment: further environment variables of the child; templated. Never secrets.
    :param connections: environment variable to Airflow connection id; the child gets the connection's URL, which is
        looked up when the task runs and stands nowhere else.
    """

    template_fields: Sequence[str] = ("arguments", "environment")
    ui_color = "#d5e8d4"

    def __init__(
        self,
        *,
        arguments: Sequence[Any],
        environment: Mapping[str, str] | None = None,
        connections: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.arguments = arguments
        self.environment = environment or {}
        self.connections = connections or {}
        self._child: subprocess.Popen[bytes] | None = None

    def execute(self, context: Context) -> dict[str, Any]:
        with tempfile.TemporaryDirectory(prefix="listing-task-") as folder:
            result = Path(folder) / "result.json"
            command = [sys.executable, "-m", *map(str, self.arguments)]
            self.log.info("child: %s", " ".join(command[1:]))
            try:
                child = self._child = subprocess.Popen(  # noqa: S603 - our own modules
                    command,
                    cwd=PROJECT_ROOT,
                    env=self._child_environment(result),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
                for line in self._lines(child):
                    self.log.info("%s", line)
                status = child.wait()
            finally:
                self.on_kill()
            return self._outcome(status, result)

    def on_kill(self) -> None:
        """Ends the child's process group; returns within the grace and a little more."""
        if self._child is not None:
            from include.generation.processes import end_group

            child, self._child = self._child, None
            end_group(child.pid, grace_seconds=GRACE_SECONDS)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(timeout=5)

    def _child_environment(self, result: Path) -> dict[str, str]:
        own = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW__", "AIRFLOW_CONN_"))}
        secrets = {variable: connection_url(conn_id) for variable, conn_id in self.connections.items()}
        ours = {PARENT_VARIABLE: str(os.getpid()), RESULT_VARIABLE: str(result), "PYTHONUNBUFFERED": "1"}
        return own | {str(k): str(v) for k, v in self.environment.items()} | secrets | ours

    @staticmethod
    def _lines(child: subprocess.Popen[bytes]) -> Iterator[str]:
        """The child's lines until it has ended. Does not wait for the pipe's end, which a stray grandchild may hold."""
        assert child.stdout is not None
        rest = b""
        with selectors.DefaultSelector() as selector:
            selector.register(child.stdout, selectors.EVENT_READ)
            while True:
                ended = child.poll() is not None
                if selector.select(timeout=0 if ended else 1.0):
                    chunk = os.read(child.stdout.fileno(), 65536)
                    if not chunk:
                        break
                    *lines, rest = (rest + chunk).split(b"\n")
                    yield from (line.decode("utf-8", "replace").rstrip("\r") for line in lines)
                elif ended:
                    break
        if rest:
            yield rest.decode("utf-8", "replace")

    def _outcome(self, status: int, result: Path) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(result.read_text("utf-8")) if result.is_file() else {}
        error = content.get("error")
        if error is not None:
            failure = AirflowException if error["retryable"] else AirflowFailException
            raise failure(f"{error['kind']}: {error['message']}")
        if status != 0:
            failure = AirflowFailException if status == EXIT_NO_RETRY else AirflowException
            told = f"signal {-status}" if status < 0 else f"status {status}"
            raise failure(f"child ended with {told} and gave no reason; its last lines stand above")
        manifest: dict[str, Any] = content.get("result") or {}
        self._send_metrics(manifest)
        if len(json.dumps(manifest).encode()) > MAX_XCOM_BYTES:
            self.log.warning("the manifest is too long for XCom; only its plain figures are returned")
            return {name: value for name, value in manifest.items() if isinstance(value, (str, int, float, type(None)))}
        return manifest

    def _send_metrics(self, manifest: Mapping[str, Any]) -> None:
        """The figures as Airflow gauges, which go to StatsD or OpenTelemetry when either is enabled."""
        for name in _METRICS:
            if isinstance(value := manifest.get(name), (int, float)):
                tags = {"enhancement_task": str(manifest.get("task", "")), "task_id": self.task_id}
                Stats.gauge(f"listing_engine.{name}", value, tags=tags)
