"""An engine under test, as its run hears it: a child that prints what vLLM prints."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import psutil
import pytest

from include.tuning import trials
from include.tuning.plan import Cell
from include.tuning.trial import emit
from include.tuning.trials import Notebook, Trial
from tests.generating import profile

TOLD = [
    "(EngineCore pid=7) INFO 11-30 15:01:45 [cuda.py:477] Using FLASH_ATTN attention backend out of potential backends: ['FLASH_ATTN'].",
    "(EngineCore pid=7) INFO 11-30 15:01:45 [__init__.py:601] Selected MarlinFP8ScaledMMLinearKernel for Fp8LinearMethod",
    "(EngineCore pid=7) INFO 11-30 15:01:46 [__init__.py:601] Selected MarlinFP8ScaledMMLinearKernel for Fp8LinearMethod",
    "(EngineCore pid=7) INFO 11-30 15:01:46 [config.py:3] Using max model len 2048",
    "(EngineCore pid=7) INFO 11-30 18:20:24 [cuda.py:416] Using AttentionBackendEnum.FLASHINFER backend.",
    "(EngineCore pid=7) INFO 11-30 18:20:28 [flashinfer.py:780] FlashInfer resolved query dtypes: decode_backend=xqa, arch=sm90",
    "(EngineCore pid=7) WARNING 11-30 18:20:24 [kv_cache.py:148] Using KV cache scaling factor 1.0 for fp8_e4m3.",
    "WARNING 11-30 15:01:46 [marlin_utils_fp8.py:112] Your GPU does not have native support for FP8 computation but FP8 quantization is being used.",
]
MEASURED = {"errors": 0, "seconds": 2.0, "requests_per_s": 5.0}


def test_a_measurement_keeps_the_kernels_that_the_engine_really_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "child.py"
    lines = [*TOLD, f"RESULT {json.dumps({'start_s': 1.5, 'engine': {'device': 'a card'}})}"]
    script.write_text(
        f"import sys\nprint({chr(10).join(lines)!r}, flush=True)\nfor _ in sys.stdin: print({'RESULT ' + json.dumps(MEASURED)!r}, flush=True)\n"
    )
    started = trials.subprocess.Popen
    levels = []

    def instead(command: list[str], **how: object) -> object:
        levels.append(how["env"]["VLLM_LOGGING_LEVEL"])  # type: ignore[index]
        return started([sys.executable, str(script)], **how)  # type: ignore[call-overload]

    monkeypatch.setattr(trials.subprocess, "Popen", instead)
    notebook = Notebook(tmp_path / "measurements.jsonl")
    with Trial(tmp_path, "Qwen/Qwen3-4B-FP8", "final", profile(), notebook) as trial:
        assert trial.measure(None, 10) == 5.0
    assert levels == ["INFO"]
    assert notebook.rows[0]["paths"] == [
        "Using FLASH_ATTN attention backend",
        "Selected MarlinFP8ScaledMMLinearKernel for Fp8LinearMethod",
        "Using AttentionBackendEnum.FLASHINFER backend.",
        "FlashInfer resolved query dtypes: decode_backend=xqa, arch=sm90",
        "Your GPU does not have native support for FP8 computation but FP8 quantization is being used.",
    ]


def test_a_busy_device_ends_the_run_and_is_no_result_of_the_candidate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notebook = Notebook(tmp_path / "measurements.jsonl")
    busy = {"error": "no free device: GPU 0 holds 5146 MB of processes [7]", "kind": "gpu_busy"}
    with Trial(tmp_path, "fp8", "search", profile(), notebook) as trial:
        monkeypatch.setattr(trial, "_start", lambda: busy)
        with pytest.raises(RuntimeError, match="start again once the device is free"):
            trial.measure(None, 10)
    assert not notebook.rows
    with Trial(tmp_path, "fp8", "search", profile(), notebook) as trial:
        monkeypatch.setattr(trial, "_start", lambda: busy | {"kind": "bad_engine_args"})
        assert trial.measure(None, 10) is None
    assert len(notebook.rows) == 1


def test_cells_that_kill_their_engine_do_not_lose_those_that_worked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, started = tmp_path / "child.py", trials.subprocess.Popen
    script.write_text(
        "import json, os, sys\nprint('RESULT {}', flush=True)\nfor line in sys.stdin:\n"
        "    if json.loads(line)['cell']['max_num_seqs'] > 8 or json.loads(line)['requests'] > 100: os._exit(9)\n"
        f"    print({'RESULT ' + json.dumps(MEASURED)!r}, flush=True)\n"
    )
    engines = []

    def instead(_: list[str], **how: object) -> object:
        engines.append(started([sys.executable, str(script)], **how))  # type: ignore[call-overload]
        return engines[-1]

    monkeypatch.setattr(trials.subprocess, "Popen", instead)
    small, unseen = Cell(8, 64, 8), Cell(4, 64, 4)
    with Trial(tmp_path, "fp8", "search", profile(), Notebook(tmp_path / "measurements.jsonl")) as trial:
        assert trial.measure(small, 10) == 5.0
        for seqs in (16, 32, 64):
            assert trial.measure(Cell(seqs, 64, seqs), 10) is None
        assert trial.measure(unseen, 10) is None  # three deaths: no engine for what may be the fourth
        assert trial.measure(small, 100) == 5.0
        for length in range(1000, 1009):  # one that dies of full lengths only is not started for each cell
            assert trial.measure(small, length) is None
    assert "given up after 3 engine deaths" in trial.failed
    assert len(engines) == 6


def test_an_engine_that_starts_no_more_is_not_tried_for_every_cell_that_worked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notebook = Notebook(tmp_path / "measurements.jsonl")
    for seqs in (1, 2, 4, 8):
        cell = {"max_num_seqs": seqs, "max_num_batched_tokens": 64, "batch_size": 8, "submit": "refill"}
        notebook.add(
            {"key": "k", "candidate": "fp8", "stage": "search", "repeat": 0, "cell": cell, "requests_per_s": 5.0}
        )
    starts = []
    with Trial(tmp_path, "fp8", "search", profile(), notebook) as trial:
        monkeypatch.setattr(trial, "_start", lambda: starts.append(1) or {"error": "the driver is gone"})
        assert [trial.measure(Cell(seqs, 64, 8), 100) for seqs in (1, 2, 4, 8)] == [None] * 4
    assert len(starts) == 1
    with Trial(tmp_path, "fp8", "final", profile(), notebook) as trial:
        assert not trial._worked(Cell(1, 64, 8))  # in another stage it is another engine


def test_a_notebook_is_only_added_to(tmp_path: Path) -> None:
    path = tmp_path / "measurements.jsonl"
    path.write_bytes(b'{"key": "a"}\n{"key": "b", "err')  # killed while a line was written
    before, inode = path.read_bytes(), path.stat().st_ino
    notebook = Notebook(path)
    assert notebook.rows == [{"key": "a"}]
    notebook.add({"key": "c"})
    notebook.add({"key": "d"})
    assert path.read_bytes().startswith(before)
    assert path.stat().st_ino == inode
    assert Notebook(path).rows == [{"key": "a"}, {"key": "c"}, {"key": "d"}]


def test_prompts_without_an_answer_fail_the_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Trial(tmp_path, "serve", "compare", profile(), Notebook(tmp_path / "measurements.jsonl")) as trial:
        monkeypatch.setattr(trial, "_start", lambda: {"start_s": 1.0})
        monkeypatch.setattr(trial, "_result", lambda: MEASURED | {"errors": 3})
        trial._child = trials.subprocess.Popen(
            [sys.executable, "-c", "input()"], stdin=trials.subprocess.PIPE, text=True
        )
        assert trial.measure(None, 10) is None
    assert trial.notebook.rows[0]["error"] == "3 of 10 prompts got no answer"


def test_what_a_killed_child_started_is_ended_with_it(tmp_path: Path) -> None:
    server = "import subprocess, sys, time; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); print(p.pid, flush=True); time.sleep(600)"
    trial = Trial(tmp_path, "serve", "compare", profile(), Notebook(tmp_path / "measurements.jsonl"))
    trial._child = trials.subprocess.Popen(
        [sys.executable, "-c", server], stdin=trials.subprocess.PIPE, stdout=trials.subprocess.PIPE, text=True
    )
    assert trial._child.stdout is not None
    pid = int(trial._child.stdout.readline())
    trial._note_family()
    trial._child.kill()
    trial._stop()
    assert not psutil.pid_exists(pid)


def test_a_result_stands_on_a_line_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    sys.stdout.write("said without a line's end")
    emit(start_s=1.0)
    assert 'RESULT {"start_s": 1.0}' in capsys.readouterr().out.splitlines()
