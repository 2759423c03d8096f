"""Deadlines for calls that may hang, and an end for processes that may not want to go."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

import psutil


class DeadlineError(RuntimeError):
    """A call into an engine took longer than its profile allows."""


@contextmanager
def deadline(seconds: float, what: str) -> Iterator[None]:
    """Raises DeadlineError inside the block after `seconds`. By SIGALRM, so in the main thread only; elsewhere no limit."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def expire(_signal: int, _frame: FrameType | None) -> None:
        raise DeadlineError(f"{what} took longer than {seconds:.0f} s")

    previous = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def child_pids() -> set[int]:
    """Processes below this one, without multiprocessing's resource tracker, which goes by itself."""
    found = set()
    for process in psutil.Process().children(recursive=True):
        try:
            if not any("resource_tracker" in part for part in process.cmdline()):
                found.add(process.pid)
        except psutil.Error:
            continue
    return found


def end_processes(pids: Iterable[int], *, grace_seconds: float) -> None:
    """SIGTERM, then SIGKILL after the grace; returns when the processes are gone. Ids that are gone already are fine."""
    processes = []
    for pid in pids:
        try:
            processes.append(psutil.Process(pid))
        except psutil.NoSuchProcess:
            continue
    for number, seconds in ((signal.SIGTERM, grace_seconds), (signal.SIGKILL, 10.0)):
        for process in processes:
            try:
                process.send_signal(number)
            except psutil.NoSuchProcess:
                continue
        _, processes = psutil.wait_procs(processes, timeout=seconds)


def end_group(group: int, *, grace_seconds: float) -> None:
    """SIGTERM to a process group, SIGKILL to what is left of it after the grace. Never raises for a group that is gone."""
    members = [p for p in psutil.process_iter() if _group_of(p.pid) == group]
    for number, seconds in ((signal.SIGTERM, grace_seconds), (signal.SIGKILL, 10.0)):
        try:
            os.killpg(group, number)
        except ProcessLookupError:
            return
        psutil.wait_procs(members, timeout=seconds)


def _group_of(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None
