"""Nothing of an engine's processes survives its worker, its parent, a signal or a hang."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from include.generation.child import EXIT_NO_RETRY, EXIT_RETRY, PARENT_VARIABLE, RESULT_VARIABLE
from include.generation.processes import DeadlineError, deadline, end_processes
from include.settings import PROJECT_ROOT

CHILD = [sys.executable, "-m", "tests.unit.generation.children"]


def wait_for(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if condition():
            return True
        time.sleep(0.05)
    return condition()


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def start(what: str, folder: Path, **environment: str) -> tuple[subprocess.Popen[str], int]:
    """A child with a grandchild; returns it and the grandchild's process id."""
    child = subprocess.Popen(
        [*CHILD, what, str(folder)],
        cwd=PROJECT_ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | environment,
        start_new_session=True,
    )
    assert wait_for((folder / "child").exists, 30), "the child did not start"
    return child, int((folder / "grandchild").read_text())


def test_a_killed_worker_takes_its_engine_along(tmp_path: Path) -> None:
    child, grandchild = start("sleep", tmp_path)
    child.kill()
    assert wait_for(lambda: gone(grandchild), 10)
    child.wait()


def test_a_killed_parent_takes_worker_and_engine_along_after_the_worker_unwound(tmp_path: Path) -> None:
    code = (
        f"import os, subprocess, time; subprocess.Popen({[*CHILD, 'sleep', str(tmp_path)]!r}, start_new_session=True,"
        f" env=os.environ | {{'{PARENT_VARIABLE}': str(os.getpid())}}); time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=PROJECT_ROOT)
    assert wait_for((tmp_path / "child").exists, 30)
    pids = [int((tmp_path / name).read_text()) for name in ("child", "grandchild")]
    parent.kill()
    parent.wait()
    assert wait_for(lambda: all(map(gone, pids)), 10)
    assert (tmp_path / "unwound").exists()


@pytest.mark.parametrize("what", ["sleep", "stubborn"])
def test_sigterm_unwinds_and_says_that_a_retry_helps(tmp_path: Path, what: str) -> None:
    child, grandchild = start(what, tmp_path, **{RESULT_VARIABLE: str(tmp_path / "result")})
    child.send_signal(signal.SIGTERM)
    output, _ = child.communicate(timeout=20)
    assert child.returncode == EXIT_RETRY
    assert gone(grandchild)
    assert (tmp_path / "unwound").exists()
    assert json.loads((tmp_path / "result").read_text())["error"]["kind"] == "terminated"
    assert "ended by SIGTERM" in output


def test_a_worker_that_ends_leaves_no_process(tmp_path: Path) -> None:
    child, grandchild = start("leave", tmp_path)
    assert child.wait(timeout=20) == 0
    assert gone(grandchild)


@pytest.mark.parametrize(
    ("what", "status", "kind", "retryable"),
    [
        ("settings", EXIT_NO_RETRY, "SettingsError", False),
        ("busy", EXIT_RETRY, "gpu_busy", True),
        ("bug", EXIT_RETRY, "ZeroDivisionError", True),
    ],
)
def test_failures_name_their_kind(tmp_path: Path, what: str, status: int, kind: str, retryable: bool) -> None:
    environment = os.environ | {RESULT_VARIABLE: str(tmp_path / "result")}
    done = subprocess.run([*CHILD, what], cwd=PROJECT_ROOT, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == status
    error = json.loads((tmp_path / "result").read_text())["error"]
    assert (error["kind"], error["retryable"]) == (kind, retryable)
    assert error["message"] in done.stdout


def test_a_process_outside_a_group_of_its_own_still_ends_with_its_parent(tmp_path: Path) -> None:
    """As under `make`, where the child shares its parent's group and gets no variable from the operator."""
    code = f"import subprocess, time; subprocess.Popen({[*CHILD, 'sleep', str(tmp_path)]!r}); time.sleep(600)"
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=PROJECT_ROOT, start_new_session=True)
    assert wait_for((tmp_path / "child").exists, 30)
    pids = [int((tmp_path / name).read_text()) for name in ("child", "grandchild")]
    parent.kill()
    parent.wait()
    assert wait_for(lambda: all(map(gone, pids)), 10)


def test_a_call_that_hangs_meets_its_deadline() -> None:
    began = time.monotonic()
    with pytest.raises(DeadlineError, match="engine start took longer"), deadline(0.2, "engine start"):
        time.sleep(30)
    assert time.monotonic() - began < 5
    with deadline(0.2, "engine step"):
        pass
    time.sleep(0.3)  # no alarm is left over


def test_only_the_named_processes_end() -> None:
    stays, goes = (subprocess.Popen(["sleep", "600"]) for _ in range(2))
    try:
        end_processes([goes.pid, 2**22 - 1], grace_seconds=2)
        assert goes.poll() is not None or gone(goes.pid)
        assert not gone(stays.pid)
    finally:
        stays.kill()
        stays.wait()
        goes.wait()
