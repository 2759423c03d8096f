"""Start-up failures and deaths told apart by the engines' own words, and the real error found in what was printed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from include.generation import console
from include.generation.engine import EngineDeadError, EngineStartError
from include.generation.failures import classify, explain
from include.generation.processes import DeadlineError
from include.settings import PROJECT_ROOT

MESSAGES = [
    ("gpu_busy", "ValueError: Free memory on device cuda:0 (10.3/139.8 GiB) on startup is less than desired GPU memory utilization (0.9, 125.8 GiB)."),
    ("out_of_memory", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139.80 GiB"),
    ("out_of_memory", "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine."),
    ("no_gpu", "RuntimeError: No CUDA GPUs are available"),
    ("no_gpu", "RuntimeError: Failed to infer device type, please set the environment variable"),
    ("unsupported_quantization", "ValueError: The quantization method fp8 is not supported for the current GPU. Minimum capability: 89. Current capability: 80."),
    ("unsupported_quantization", "ValueError: Unknown quantization method: fp3. Must be one of ['awq', 'fp8']."),
    ("no_egress", "OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them in the cached files."),
    ("no_egress", "huggingface_hub.errors.LocalEntryNotFoundError: Cannot find an appropriate cached snapshot folder"),
    ("model_not_found", "OSError: acme/none is not a local folder and is not a valid model identifier listed on 'https://huggingface.co/models'"),
    ("bad_engine_args", "TypeError: EngineArgs.__init__() got an unexpected keyword argument 'max_num_seq'"),
    ("engine_failed", "RuntimeError: CUDA error: an illegal memory access was encountered"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "text"), MESSAGES)
def test_messages_of_vllm_have_a_kind(kind: str, text: str) -> None:
    assert classify(text)[0] == kind


def test_only_what_may_pass_is_retried() -> None:
    retried = {kind: classify(text)[1] for kind, text in MESSAGES}
    assert retried == {
        "gpu_busy": True, "out_of_memory": True, "no_gpu": True, "no_egress": True, "engine_failed": True,
        "unsupported_quantization": False, "model_not_found": False, "bad_engine_args": False,
    }  # fmt: skip


PRINTED = r"""
import os, subprocess, sys
from include.generation import console
with console.captured_console():
    os.write(1, b"Loading:  10%\rLoading:  55%\rLoading: 100%\n")
    print("(EngineCore pid=77) ERROR 11-29 18:02:49 [core.py:1100] EngineCore encountered a fatal error.")
    subprocess.run([sys.executable, "-c", "raise MemoryError('the grandchild printed this')"])
    print("(EngineCore pid=77) ERROR 11-29 18:02:49 [core.py:1100] torch.OutOfMemoryError: CUDA out of memory. Tried 2 GiB")
    print("vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above)")
    print("RuntimeError: Engine core initialization failed. See root cause above.")
print("last:", console.last_error())
print("lines:", len(console.last_lines(100)))
"""


def test_the_engines_last_error_is_found_in_what_it_printed_and_bars_lose_their_carriage_returns() -> None:
    done = subprocess.run([sys.executable, "-c", PRINTED], cwd=PROJECT_ROOT, capture_output=True, timeout=60)
    text = done.stdout.decode()
    assert "last: torch.OutOfMemoryError: CUDA out of memory. Tried 2 GiB" in text
    assert "\r" not in text
    assert "Loading: 100%\n" in text
    assert "55%" not in text
    assert "MemoryError: the grandchild printed this" in text  # stderr of a grandchild goes the same way


def test_explain_puts_the_printed_error_first(monkeypatch: pytest.MonkeyPatch) -> None:
    hearsay = RuntimeError("Engine core initialization failed. See root cause above.")
    monkeypatch.setattr(console, "last_error", lambda: "torch.OutOfMemoryError: CUDA out of memory")
    error = explain(hearsay, EngineStartError, prefix="engine 'x' did not start")
    assert str(error).startswith("engine 'x' did not start: torch.OutOfMemoryError: CUDA out of memory")
    assert (error.kind, error.retryable) == ("out_of_memory", True)


def test_an_error_of_its_own_is_not_explained_by_what_was_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "last_error", lambda: "ValueError: something long ago")
    error = explain(MemoryError("Cannot allocate memory"), EngineDeadError, prefix="engine 'x' died")
    assert error.kind == "out_of_memory"
    assert "long ago" not in str(error)


def test_a_hang_is_not_explained_by_an_older_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "last_error", lambda: "ValueError: something long ago")
    error = explain(DeadlineError("engine step took longer than 600 s"), EngineDeadError, prefix="engine 'x' died")
    assert error.kind == "engine_stalled"
    assert "long ago" not in str(error)
