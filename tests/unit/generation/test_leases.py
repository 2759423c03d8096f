"""Device leases: no two engines on one GPU, the holder named, the lock gone with its holder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from include.generation import leases
from include.generation.engine import EngineStartError
from include.generation.leases import Gpu, device_lease
from include.settings import PROJECT_ROOT


def gpu(index: int, used_mb: float = 4.0, holders: tuple[int, ...] = ()) -> Gpu:
    return Gpu(index, f"GPU-{index}", "NVIDIA H200", 90, 143_000.0, used_mb, holders)


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def set_gpus(*found: Gpu) -> None:
        monkeypatch.setattr(leases, "is_cpu_build", lambda: False)
        monkeypatch.setattr(leases, "visible_gpus", lambda: list(found))

    return set_gpus


def test_two_holders_get_two_gpus_and_a_third_hears_who_has_them(tmp_path: Path, gpus) -> None:
    gpus(gpu(0), gpu(1))
    with device_lease(folder=tmp_path) as first:
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-0"
        with device_lease(folder=tmp_path) as second:
            assert (first.names, second.names) == (["GPU-0"], ["GPU-1"])
            with pytest.raises(EngineStartError, match=f"leased by process {os.getpid()}") as caught:
                device_lease(folder=tmp_path).__enter__()
            assert (caught.value.kind, caught.value.retryable) == ("gpu_busy", True)
    assert "CUDA_VISIBLE_DEVICES" not in os.environ
    with device_lease(folder=tmp_path) as free:
        assert free.names == ["GPU-0"]


def test_a_gpu_that_another_process_fills_is_busy_with_its_pid(tmp_path: Path, gpus) -> None:
    gpus(gpu(0, used_mb=86_000, holders=(4711,)), gpu(1))
    with device_lease(folder=tmp_path) as lease:
        assert lease.names == ["GPU-1"]
    gpus(gpu(0, used_mb=86_000, holders=(4711,)))
    with (
        pytest.raises(EngineStartError, match=r"GPU 0 holds 86000 MB of processes \[4711\]"),
        device_lease(folder=tmp_path),
    ):
        pass


def test_all_or_nothing_for_a_tensor_parallel_engine(tmp_path: Path, gpus) -> None:
    gpus(gpu(0), gpu(1), gpu(2))
    with device_lease(2, folder=tmp_path) as pair:
        assert pair.names == ["GPU-0", "GPU-1"]
        with pytest.raises(EngineStartError, match="no free device"), device_lease(2, folder=tmp_path):
            pass
        with device_lease(1, folder=tmp_path) as single:  # the failed pair gave its one GPU back
            assert single.names == ["GPU-2"]


def test_no_gpu_is_told_apart_from_a_busy_one(tmp_path: Path, gpus) -> None:
    gpus()
    with pytest.raises(EngineStartError, match="1 GPU wanted, 0 usable") as caught, device_lease(folder=tmp_path):
        pass
    assert caught.value.kind == "no_gpu"


def test_the_lease_of_a_killed_process_is_free(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from include.generation.leases import device_lease\n"
        f"with device_lease(folder=Path({str(tmp_path)!r})): print('held', flush=True); time.sleep(600)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code], cwd=PROJECT_ROOT, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(EngineStartError, match=f"process {holder.pid}"), device_lease(folder=tmp_path):
        pass
    holder.kill()
    holder.wait()
    with device_lease(folder=tmp_path) as lease:
        assert lease.names == ["cpu"]


def test_a_lease_that_frees_up_in_time_is_waited_for(tmp_path: Path) -> None:
    code = (
        "import time; from pathlib import Path; from include.generation.leases import device_lease\n"
        f"with device_lease(folder=Path({str(tmp_path)!r})): print('held', flush=True); time.sleep(1)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code], cwd=PROJECT_ROOT, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    holder.stdout.readline()
    with device_lease(wait_seconds=30, folder=tmp_path) as lease:
        assert lease.names == ["cpu"]
    holder.wait()


def test_the_next_holder_ends_the_engine_that_a_killed_one_recorded_and_nothing_else(tmp_path: Path) -> None:
    orphan, other = (subprocess.Popen(["sleep", "600"]) for _ in range(2))
    try:
        with device_lease(folder=tmp_path) as lease:
            lease.record([orphan.pid])
            content = (tmp_path / "cpu.lock").read_text()
        (tmp_path / "cpu.lock").write_text(content)  # as a SIGKILL leaves it
        with device_lease(folder=tmp_path):
            assert not psutil.pid_exists(orphan.pid)
        assert other.poll() is None
        stale = json.loads(content) | {"engine": [[other.pid, 1.0]]}  # a recycled id: another start time
        (tmp_path / "cpu.lock").write_text(json.dumps(stale))
        with device_lease(folder=tmp_path):
            assert other.poll() is None
    finally:
        for process in (orphan, other):
            process.kill()
            process.wait()


def test_memory_of_an_engine_that_ended_is_waited_for(tmp_path: Path, gpus, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(gpu(0))
    used = iter([90_000.0, 40_000.0, 10.0, 10.0])
    monkeypatch.setattr(leases, "all_gpus", lambda: [gpu(0, used_mb=next(used))])
    monkeypatch.setattr(leases.time, "sleep", lambda _: None)
    with device_lease(folder=tmp_path) as lease:
        lease.wait_until_free()
    assert next(used) == 10.0  # three looks were needed
