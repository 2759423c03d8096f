"""The generation stage on an NVIDIA GPU: leases, memory given back, nothing left after a kill. `pytest -m gpu tests/gpu`.

The model has Qwen3-4B's shape and random weights: its answers mean nothing, its engine is the real one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks import dummy_model
from include.generation.engine import EngineStartError, Request
from include.generation.leases import all_gpus, device_lease, visible_gpus
from include.generation.preflight import check_profile
from include.generation.session import Session
from include.runs import Run
from include.settings import PROJECT_ROOT, EngineProfile
from tests.generating import generated, item, make_run, profile

pytestmark = pytest.mark.gpu

ENGINE: dict[str, Any] = {
    "engine_args": {
        "load_format": "dummy",
        "max_model_len": 1024,
        "max_num_seqs": 64,
        "enforce_eager": True,
        "gpu_memory_utilization": 0.5,
    },
    "batch_size": 128,
    "lease_wait_s": 0.0,
    "sampling_params": {"ignore_eos": True},
}


@pytest.fixture(scope="module")
def shaped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dummy_model.make(tmp_path_factory.mktemp("model") / "qwen3-4b-shape")


@pytest.fixture
def gpu_profile(shaped: Path) -> EngineProfile:
    return profile(model=str(shaped), **ENGINE)


@pytest.fixture(autouse=True)
def _leases(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LISTING_LEASE_DIR", str(tmp_path / "leases"))


def used_mb() -> float:
    return max(gpu.used_mb for gpu in visible_gpus())


def wait_for(condition: Callable[[], bool], seconds: float) -> bool:
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.2)
    return True


def chat(count: int) -> Iterator[Request]:
    for n in range(count):
        sampling = {"max_tokens": 8, "temperature": 0.0}
        yield Request(id=str(n), messages=[{"role": "user", "content": f"mug {n}"}], sampling_params=sampling)


def test_a_second_engine_finds_the_memory_of_the_first_given_back(gpu_profile: EngineProfile) -> None:
    before = used_mb()
    for _ in range(2):
        with Session(gpu_profile) as session:
            assert sum(not output.error for output in session.run(chat(200))) == 200
            report = session.report()
        assert report["peak_gpu_memory_mb"] > 8_000
        assert 0 < report["roofline_share"] < 1
        assert wait_for(lambda: used_mb() < before + 500, 15)


def test_a_gpu_filled_by_a_stranger_is_busy_with_its_pid_and_is_retried(gpu_profile: EngineProfile) -> None:
    code = "import torch, time; x = torch.empty(int(6e10), dtype=torch.uint8, device='cuda'); print('held', flush=True); time.sleep(600)"
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        if len(visible_gpus()) == 1:
            with (
                pytest.raises(EngineStartError, match=r"holds .* MB of processes") as caught,
                Session(gpu_profile) as session,
            ):
                list(session.run(chat(1)))
            assert (caught.value.kind, caught.value.retryable) == ("gpu_busy", True)
        else:
            with device_lease() as lease:
                free = [gpu.uuid for gpu in all_gpus() if gpu.used_mb < 1024]
                assert lease.names[0] in free
    finally:
        holder.kill()
        holder.wait()


def test_fp8_runs_here_and_nvfp4_is_refused_before_a_start(gpu_profile: EngineProfile) -> None:
    capability = all_gpus()[0].capability
    for scheme, least in (("fp8", 89), ("nvfp4", 100)):
        wanted = gpu_profile.model_copy(update={"engine_args": gpu_profile.engine_args | {"quantization": scheme}})
        if capability >= least:
            check_profile(wanted, device=True)
        else:
            with pytest.raises(EngineStartError, match="needs compute capability"):
                check_profile(wanted, device=True)


def test_a_killed_worker_gives_its_gpu_back_and_the_retry_does_the_rest(shaped: Path, tmp_path: Path) -> None:
    before = used_mb()
    task = {"sampling_params": {"max_tokens": 64, "temperature": 0.0}, "attempts": 1}
    run = make_run(tmp_path / "data", [item(n) for n in range(800)], model=str(shaped), engine=ENGINE, **task)
    command = [
        sys.executable,
        "-m",
        "include.generation",
        "run",
        "--run-dir",
        run.store.url,
        "--task",
        "title",
        "--bin",
        "0",
    ]

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, cwd=PROJECT_ROOT, env=os.environ.copy(), start_new_session=True)

    worker = start()
    assert wait_for(lambda: bool(run.store.list(Run.generated("title", 0))), 400)
    worker.kill()
    worker.wait()
    assert wait_for(lambda: used_mb() < before + 500, 10), f"{used_mb():.0f} MB still held"
    kept = len(generated(run))
    assert 0 < kept < 800
    assert start().wait(timeout=500) == 0
    manifest = run.store.read_json(Run.manifest("title", "generate", 0))
    assert manifest["texts"] == {"answered": 800 - kept, "resumed": kept}
    assert len({row.text_id for row in generated(run)}) == 800
    assert wait_for(lambda: used_mb() < before + 500, 15)
