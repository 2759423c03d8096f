"""The frame of every process that owns an engine: started by the GPU task operator, or by a person at a prompt.

It leads its own process group. Whatever ends it, nothing of the group survives: a parent that died is noticed by polling,
and this process's own sudden death by a guard, a shell that waits for the end of a pipe and then kills the group.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from include.generation import console
from include.generation.engine import EngineError
from include.generation.processes import child_pids, end_processes
from include.partitions import plain_json
from include.settings import PROJECT_ROOT, SettingsError

log = logging.getLogger(__name__)

PARENT_VARIABLE = "LISTING_PARENT_PID"
RESULT_VARIABLE = "LISTING_RESULT_FILE"
_TRIED_VARIABLE = "LISTING_TRIED_PYTHON"
EXIT_RETRY, EXIT_NO_RETRY = 75, 78  # EX_TEMPFAIL and EX_CONFIG of sysexits.h
GRACE_SECONDS = 5.0


class Terminated(BaseException):
    """SIGTERM or SIGINT arrived; unwinds through context managers, so that the engine is shut down."""


def _write_result(content: Mapping[str, Any]) -> None:
    if path := os.environ.get(RESULT_VARIABLE):
        with open(path, "w", encoding="utf-8") as file:
            json.dump(plain_json(content), file, ensure_ascii=False)


def _raise_terminated(number: int, _frame: FrameType | None) -> None:
    for again in (signal.SIGTERM, signal.SIGINT):  # a second one must not break the clean-up
        signal.signal(again, signal.SIG_IGN)
    raise Terminated(signal.Signals(number).name)


def _watch_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    log.error("the parent process is gone; ending")
    os.kill(os.getpid(), signal.SIGTERM)  # finished rows are written first
    time.sleep(GRACE_SECONDS)
    os.killpg(os.getpgrp(), signal.SIGKILL)


def _lead_group() -> subprocess.Popen[bytes]:
    """Makes this process a group leader with a guard; the guard kills the group when this process is gone."""
    parent = int(os.environ.get(PARENT_VARIABLE) or 0)
    if os.getpgrp() != os.getpid():
        parent = parent or os.getppid()  # outside the terminal's group, Ctrl-C reaches the parent only
        os.setpgid(0, 0)
    if parent:
        threading.Thread(target=_watch_parent, args=(parent,), name="parent-watch", daemon=True).start()
    return subprocess.Popen(  # noqa: S603 - our own command and process id
        ["/bin/sh", "-c", f"read -r _; kill -KILL -{os.getpid()}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def run_child(stage: Callable[[], Mapping[str, Any]]) -> NoReturn:
    """Runs a stage that owns an engine and ends the process with its status.

    The stage's result, or the error with its kind and whether a retry may help, goes to the file that
    LISTING_RESULT_FILE names, for the operator. Status 0: done; 75: failed, worth another try; 78: a retry will not help.
    """
    guard = _lead_group()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _raise_terminated)
    with console.captured_console():
        logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout, force=True)
        for chatty, level in (("httpx", logging.WARNING), ("httpx2", logging.WARNING), ("vllm", logging.ERROR)):
            logging.getLogger(chatty).setLevel(level)
        try:
            _write_result({"result": stage()})
            status = 0
        except EngineError as error:
            status = _failed(str(error), error.kind, error.retryable)
        except (SettingsError, FileNotFoundError) as error:
            status = _failed(str(error), type(error).__name__, False)
        except Terminated as error:
            status = _failed(f"ended by {error}; finished rows are kept", "terminated", True)
        except Exception as error:
            log.exception("the stage failed")
            status = _failed(f"{type(error).__name__}: {error}", type(error).__name__, True)
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)
            end_processes(child_pids() - {guard.pid}, grace_seconds=GRACE_SECONDS)
    guard.kill()
    guard.wait()
    logging.shutdown()
    with suppress(OSError):  # a log that nobody reads any more fails no finished stage
        sys.stdout.flush()
    os._exit(status)  # everything is written, and taking torch apart costs seconds


def run_child_in(name: str, packages: Sequence[str], module: str, stage: Callable[[], Mapping[str, Any]]) -> NoReturn:
    """`run_child`, for `module`'s command line in `.venv-<name>` or LISTING_<NAME>_PYTHON where this one lacks `packages`."""
    if all(map(find_spec, packages)):
        run_child(stage)
    variable = f"LISTING_{name.upper()}_PYTHON"
    python = Path(os.environ.get(variable) or PROJECT_ROOT / f".venv-{name}" / "bin" / "python")
    if python.is_file() and os.environ.get(_TRIED_VARIABLE) != str(python):  # it may lack the packages, too
        command = [str(python), "-m", module, *sys.argv[1:]]
        os.execve(python, command, os.environ | {_TRIED_VARIABLE: str(python)})  # noqa: S606

    def missing() -> NoReturn:
        told = f"`make {name}-env`, or set {variable} to an interpreter that has requirements-{name}.txt"
        raise SettingsError(f"{' and '.join(packages)} not installed: {told}")

    run_child(missing)


def run_stage(*command: str) -> None:
    """Runs a stage as a child that ends with this process. Raises SettingsError where a retry will not help, or RuntimeError."""
    environment = {name: value for name, value in os.environ.items() if name != RESULT_VARIABLE}
    environment[PARENT_VARIABLE] = str(os.getpid())
    status = subprocess.run(  # noqa: S603 - our own modules
        [sys.executable, "-m", *command], cwd=PROJECT_ROOT, env=environment, check=False
    ).returncode
    if status:
        failure = SettingsError if status in (2, EXIT_NO_RETRY) else RuntimeError
        raise failure(f"{' '.join(command)} ended with status {status}; its last lines stand above")


def _failed(message: str, kind: str, retryable: bool) -> int:
    log.error("error: %s", message)
    _write_result({"error": {"kind": kind, "message": message, "retryable": retryable}})
    return EXIT_RETRY if retryable else EXIT_NO_RETRY
