"""Measurements of a tuning run: each is written down as it is made, and an interrupted run goes on where it stopped."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from include.generation.processes import end_processes
from include.settings import PROJECT_ROOT, EngineProfile
from include.tuning.plan import Cell, Window, file_name, key_of

log = logging.getLogger(__name__)

# How vLLM tells which kernels it took, and where a GPU lacks what a precision asks for.
_PATH = re.compile(
    r"(?:Using|Selected) \S+ (?:(?:attention )?backend|[Aa]ttention|for|kernel)\b(?:(?! out of potential).)*"
    r"|Using \w+Attention\b.*|FlashInfer resolved .*|.*\bnative support\b.*"
)
_INFO = re.compile(r"^(?:\(\S+ pid=\d+\) )?INFO ")
STARTS = (
    3  # of one candidate's engine: a cell that kills it is recorded, and the next cell gets a new one; as many again
)
# are for cells that an engine has served


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The measurements of a file, without a torn last line. Raises FileNotFoundError."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        with suppress(ValueError):
            rows.append(json.loads(line))
    return rows


def write_json(path: Path, value: Any) -> None:
    """Writes a JSON file, whole or not at all."""
    hidden = path.with_name(f".{path.name}.{os.getpid()}")
    hidden.write_text(json.dumps(value, indent=2, default=str), encoding="utf-8")
    os.replace(hidden, path)


class Notebook:
    """measurements.jsonl: one line per measurement, only ever added to; a line torn by a kill is passed over.

    Without `failures`, failures are dropped: they are measured again.
    """

    def __init__(self, path: Path, *, failures: bool = True) -> None:
        self.path = path
        self.rows = read_rows(path) if path.exists() else []
        kept = [row for row in self.rows if failures or not row.get("error")]
        if len(kept) < len(self.rows):
            self.rows, hidden = kept, path.with_name(f".{path.name}.{os.getpid()}")
            hidden.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
            os.replace(hidden, path)

    def find(self, key: str, repeat: int, candidate: str) -> dict[str, Any] | None:
        """A measurement of this candidate; another one may have the same profile, as a promoted incumbent does."""
        wanted = (key, repeat, candidate)
        return next((row for row in self.rows if (row["key"], row["repeat"], row["candidate"]) == wanted), None)

    def add(self, row: dict[str, Any]) -> dict[str, Any]:
        self.rows.append(row)
        with self.path.open("ab+") as file:
            if end := file.tell():
                file.seek(end - 1)
            torn = b"" if file.read(1) in (b"", b"\n") else b"\n"
            file.write(torn + json.dumps(row).encode() + b"\n")
        return row


class Trial:
    """An engine under test, started with its first measurement that the notebook does not hold."""

    arm = "offline"  # how prompts come to be answered: see include.tuning.trial

    def __init__(self, folder: Path, name: str, stage: str, profile: EngineProfile, notebook: Notebook) -> None:
        self.folder, self.name, self.stage, self.profile, self.notebook = folder, name, stage, profile, notebook
        self._child: subprocess.Popen[str] | None = None
        self._starts = 0
        self._family: set[int] = set()
        self._paths: dict[str, None] = {}  # what the engine said of its kernels at its start, each once
        self.failed = ""  # why no engine is to be had any more, but for cells that worked
        self.engine: dict[str, Any] = {}

    def __enter__(self) -> Trial:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def measure(self, cell: Cell | Window | None, requests: int, repeat: int = 0) -> float | None:
        """Requests per second; None where the engine could not do it. The whole result is in the notebook.

        Raises RuntimeError, and notes nothing, where other processes hold the device.
        """
        key = key_of(self.profile, cell, requests)
        row = self.notebook.find(key, repeat, self.name)
        if row is None:
            row = {
                "key": key,
                "candidate": self.name,
                "stage": self.stage,
                "repeat": repeat,
                "cell": asdict(cell) if cell else None,
                **self._asked(cell, requests),
            }
            row |= {"engine_start_s": self.engine.get("start_s"), "engine": self.engine.get("engine")}
            row["paths"] = list(self._paths)
            row["profile"] = self.profile.model_dump(mode="json")
            self.notebook.add(row)
            told = f"{row['requests_per_s']:.2f} requests/s" if not row.get("error") else f"failed: {row['error']}"
            log.info("%s, %s, %s, %d requests: %s", self.stage, self.name, cell or "as it is", requests, told)
        return None if row.get("error") else float(row["requests_per_s"])

    def _asked(self, cell: Cell | Window | None, requests: int) -> dict[str, Any]:
        if self.failed and (self._starts >= 2 * STARTS or not self._worked(cell)):
            return {"requests": requests, "error": self.failed}
        if self._child is None:
            started = self._start()
            if error := started.get("error"):
                self._stop()
                self.failed, self._starts = str(error), 2 * STARTS  # an engine that does not start serves no cell
                if started.get("kind") == "gpu_busy":  # says nothing of the candidate, so it is no result
                    raise RuntimeError(f"{error}. Measurements so far are kept: start again once the device is free")
                return {"requests": requests, "error": self.failed}
            if workload := started.pop("workload", None):
                write_json(self.folder / "workload.json", workload)
            self.engine = started
        assert self._child is not None
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(json.dumps({"cell": asdict(cell) if cell else None, "requests": requests}) + "\n")
            self._child.stdin.flush()
            found = self._result()
        except OSError as error:
            found = {"error": f"the engine's process is gone ({error.strerror})"}
        if found.get("error"):
            self._stop()
            if self._starts >= STARTS:
                self.failed = f"given up after {STARTS} engine deaths; the last: {found['error']}"
        elif found["errors"]:
            found["error"] = f"{found['errors']} of {requests} prompts got no answer"
        return {"requests": requests} | found

    def _worked(self, cell: Cell | Window | None) -> bool:
        """Whether an engine of this candidate has served the cell: others that killed it are no reason to lose this one."""
        mine = (self.name, self.stage, asdict(cell) if cell else None)
        rows = (row for row in self.notebook.rows if not row.get("error"))
        return any((row["candidate"], row["stage"], row["cell"]) == mine for row in rows)

    def _start(self) -> dict[str, Any]:
        self._starts += 1
        path = self.folder / "engines" / f"{self.stage}-{file_name(self.name)}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.profile.model_dump_json(indent=2), encoding="utf-8")
        command = ["include.tuning", "trial", "--dir", str(self.folder), "--profile", str(path), "--arm", self.arm]
        self._child = subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-m", *command],
            cwd=PROJECT_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"VLLM_LOGGING_LEVEL": "INFO"},  # the paths are told at this level
        )
        self._paths.clear()
        try:
            return self._result()
        finally:
            self._note_family()

    def _note_family(self) -> None:
        """The child's own processes: a server outlives a child that is killed."""
        with suppress(psutil.NoSuchProcess):
            assert self._child is not None
            self._family |= {process.pid for process in psutil.Process(self._child.pid).children(recursive=True)}

    def _result(self) -> dict[str, Any]:
        assert self._child is not None
        assert self._child.stdout is not None
        for line in self._child.stdout:
            if line.startswith("RESULT "):
                return dict(json.loads(line.removeprefix("RESULT ")))
            if not line.strip():
                continue
            if found := _PATH.search(line.rpartition("] ")[2]):
                self._paths[found.group().strip()] = None
            log.log(logging.DEBUG if _INFO.match(line) else logging.INFO, "  [%s] %s", self.name, line.rstrip())
        return {"error": f"the engine's process ended with status {self._child.wait()}"}

    def _stop(self) -> None:
        if self._child is None:
            return
        self._note_family()
        child, self._child = self._child, None
        assert child.stdin is not None
        with suppress(OSError):
            child.stdin.close()
        try:
            child.wait(timeout=60)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        end_processes(self._family, grace_seconds=10.0)
        self._family.clear()
