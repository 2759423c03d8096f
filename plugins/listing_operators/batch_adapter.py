"""Batch adapter of Airflow's common-ai provider: `@task.llm_batch` answered by our own engine instead of a hosted API.

`model_id="listing-engine:<engine profile>"`; the connection's host is the folder of the batches. One batch is one folder
there and one detached `python -m include.batch run`, so that a task that is retried or deferred finds it again. The
folder's name comes from the task instance and its input: a batch that failed half-way is taken up where it stopped.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

try:
    from airflow.providers.common.ai.batch.base import BatchState, RawResultItem, SubmitResult
    from airflow.providers.common.ai.batch.openai import OpenAIBatchAdapter
except ImportError:  # the provider is optional: without it this module is imported by nobody but its tests
    OpenAIBatchAdapter = object

from include.settings import PROJECT_ROOT, load_settings, resolve_path

DEFAULT_FOLDER = "build/batches"
GRACE_SECONDS = 20.0
COMMAND = ("include.batch", "run")
# The names that include.generation.child reads; not imported, to keep parsing fast.
PARENT_VARIABLE, RESULT_VARIABLE = "LISTING_PARENT_PID", "LISTING_RESULT_FILE"


class UnknownBatchError(RuntimeError):
    """There is no such batch folder; the operator then submits a new one, as after a 404 of an API."""

    status_code = 404


class EngineBatchAdapter(OpenAIBatchAdapter):  # type: ignore[misc]
    """The OpenAI adapter's requests and results, over a folder and a process instead of its API.

    The process must outlive the task that starts it and be seen by the one that polls: the same host, and no pod per
    task unless the operator waits in the task (`deferrable=False`).
    """

    name = "listing-engine"
    conn_types = frozenset({"pydanticai", "generic"})

    def __init__(self, *, api_key: str | None = None, base_url: str | None = None, client: Any | None = None) -> None:
        self._client = client  # none is needed; the base class closes what stands here
        self.folder = Path(resolve_path(base_url or DEFAULT_FOLDER))

    def submit(
        self,
        requests: list[Any],
        *,
        model: str,
        idempotency_key: str,
        input_fingerprint: str,
        output_spec: Any,
        system_prompt: str = "",
        max_tokens: int = 1024,
        request_params: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Writes the request file and starts its process, unless that one is at work already."""
        batch_id = _name(idempotency_key, input_fingerprint)
        folder = self.folder / batch_id
        folder.mkdir(parents=True, exist_ok=True)
        if not _alive(folder):
            directive = self.build_output_directive(output_spec)
            lines = self._iter_lines(
                requests,
                model=model,
                idempotency_key=idempotency_key,
                directive=directive,
                system_prompt=system_prompt,
                max_tokens=max_tokens,
                request_params=request_params,
            )
            with open(folder / "requests.jsonl", "w", encoding="utf-8") as file:
                file.writelines(json.dumps(line) + "\n" for line in lines)
            _start(folder, model, endpoint_environment(model))
        return SubmitResult(batch_id=batch_id, provider_input_ref=None)

    def get_batch(self, batch_id: str) -> Any:
        """The state of a batch. Raises UnknownBatchError."""
        folder = self._existing(batch_id)
        counts = None
        if _alive(folder):
            return BatchState(status="in_progress", counts=None, error_message=None)
        ended = _read(folder / "result.json")
        if (manifest := ended.get("result")) is not None:
            found = manifest["request_counts"]
            counts = {"succeeded": found["completed"], "errored": found["failed"], "expired": 0, "cancelled": 0}
            return BatchState(status="completed", counts=counts, error_message=None)
        if (folder / "cancelled").exists():
            return BatchState(status="cancelled", counts=None, error_message="cancelled; what was finished is kept")
        error = ended.get("error") or {
            "kind": "gone",
            "message": f"its process ended without a word; see {folder}/log.txt",
        }
        told = f"{error['kind']}: {error['message']}; a new try does only what is missing"
        return BatchState(status="failed", counts=None, error_message=told)

    def cancel_batch(self, batch_id: str) -> None:
        """Ends the batch's process; finished requests keep their results. Raises UnknownBatchError."""
        from include.generation.processes import end_group

        folder = self._existing(batch_id)
        if _alive(folder):
            (folder / "cancelled").touch()
            end_group(_read(folder / "process.json")["pid"], grace_seconds=GRACE_SECONDS)

    def find_orphaned_batch(self, idempotency_key: str, input_fingerprint: str, not_before: str) -> str | None:
        """The batch of this task instance and input, if its process was started, whenever that was."""
        batch_id = _name(idempotency_key, input_fingerprint)
        return batch_id if (self.folder / batch_id / "process.json").exists() else None

    def iter_results(self, batch_id: str) -> Iterator[Any]:
        """Streams result and error lines; of a cancelled batch those that were finished. Raises UnknownBatchError."""
        return self._results(self._existing(batch_id))

    def _results(self, folder: Path) -> Iterator[RawResultItem]:
        for name in ("results.jsonl", "errors.jsonl"):
            path = folder / name if (folder / name).exists() else folder / f"{name}.part"
            if path.exists():
                with open(path, encoding="utf-8") as file:
                    yield from (self._parse_result_line(json.loads(row)) for row in file if row.endswith("\n"))

    def _existing(self, batch_id: str) -> Path:
        folder = self.folder / Path(batch_id).name
        if not (folder / "process.json").exists():
            raise UnknownBatchError(f"no batch {batch_id} in {self.folder}: look at the connection's host")
        return folder


def _name(idempotency_key: str, input_fingerprint: str) -> str:
    return f"{idempotency_key}-{input_fingerprint[:16]}"


def endpoint_environment(engine: str) -> dict[str, str]:
    """The address of an endpoint's engine profile, from the Airflow connection that it names. Handle as a secret.

    Empty for an engine of our own, and for an unknown profile, which the batch's process refuses. Raises
    AirflowNotFoundException when there is no such connection.
    """
    from listing_operators.gpu import endpoint_connections
    from listing_operators.urls import connection_url

    profile = load_settings().engines.get(engine)
    wanted = endpoint_connections(profile) if profile else {}
    return {variable: connection_url(conn_id) for variable, conn_id in wanted.items()}


def _start(folder: Path, engine: str, endpoint: dict[str, str]) -> None:
    for old in ("result.json", "cancelled"):
        (folder / old).unlink(missing_ok=True)
    hidden = ("AIRFLOW__", "AIRFLOW_CONN_", PARENT_VARIABLE)  # no secrets, and no parent whose end would be its own
    environment = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    files = [
        f"--{option}={folder / name}.jsonl"
        for option, name in (("in", "requests"), ("out", "results"), ("errors", "errors"))
    ]
    with open(folder / "log.txt", "ab") as log:
        process = subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-m", *COMMAND, *files, "--engine", engine],
            cwd=PROJECT_ROOT,
            env=environment | endpoint | {RESULT_VARIABLE: str(folder / "result.json"), "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    import psutil

    told = {"pid": process.pid, "host": socket.gethostname(), "created": psutil.Process(process.pid).create_time()}
    (folder / "process.json").write_text(json.dumps(told), encoding="utf-8")


def _alive(folder: Path) -> bool:
    """Whether the batch's process is at work. On another host that cannot be seen: it is, until its result is there."""
    import psutil

    told = _read(folder / "process.json")
    if told and told["host"] != socket.gethostname():
        return not (folder / "result.json").exists()
    try:
        process = psutil.Process(told["pid"])
        return bool(process.create_time() == told["created"] and process.status() != psutil.STATUS_ZOMBIE)
    except (KeyError, psutil.NoSuchProcess):
        return False


def _read(path: Path) -> dict[str, Any]:
    """A JSON object; empty where the file is missing or still being written."""
    try:
        return dict(json.loads(path.read_text("utf-8")))
    except (FileNotFoundError, ValueError):
        return {}
