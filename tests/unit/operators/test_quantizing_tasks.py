"""The Python task of `quantize_task_model`: prompts of finished runs, and the arguments of the child."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from include.settings import load_settings, resolve_path
from include.tuning.workload import read_requests
from listing_operators import quantizing
from tests.generating import item, make_run


def asked(monkeypatch: pytest.MonkeyPatch, **params: Any) -> None:
    known = {"task": "title", "scheme": "w8a8", "run_dirs": [], "samples": 2} | params
    monkeypatch.setattr(quantizing, "get_current_context", lambda: {"run_id": "manual__1/..", "params": known})


def test_prompts_of_runs_calibrate_and_the_adapter_is_folded_in(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = make_run(tmp_path / "data", [item(n) for n in range(3)], model=str(tmp_path))
    monkeypatch.setenv("LISTING_CONFIG_DIR", resolve_path("include/config"))
    monkeypatch.setattr("include.settings.PROJECT_ROOT", tmp_path)
    asked(monkeypatch, run_dirs=[run.store.url])
    out = tmp_path / "build" / "quantized" / "title-w8a8-manual__1___"
    profile = load_settings().engines["cpu-smollm2-title"]
    assert quantizing.prepare() == [
        "include.quantization", "make", "--model", profile.model_path(), "--prompts", f"{out}.jsonl",
        "--scheme", "w8a8", "--samples", "2", "--out", str(out), "--adapter", resolve_path(str(profile.lora)),
    ]  # fmt: skip
    assert len(read_requests(Path(f"{out}.jsonl"))) == 2


def test_a_folder_that_is_no_run_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked(monkeypatch, run_dirs=[str(tmp_path)])
    with pytest.raises(AirflowFailException, match="no run at"):
        quantizing.prepare()
    monkeypatch.setattr("include.tuning.workload.newest_runs", lambda *_: [])
    asked(monkeypatch)
    with pytest.raises(AirflowFailException, match="no finished run of title"):
        quantizing.prepare()
