"""The Python tasks of `shadow_run`: what is refused before an engine starts, and the arguments of the comparison."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from include.partitions import Store
from listing_operators import shadowing
from tests.generating import item, make_run


def asked(monkeypatch: pytest.MonkeyPatch, **params: Any) -> None:
    context = {"run_id": "manual__1/..", "params": {"task": "title", "map": None, "listings": None} | params}
    monkeypatch.setattr(shadowing, "get_current_context", lambda: context)


def test_parameters_become_the_arguments_of_the_comparison(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run, results = make_run(tmp_path / "data", [item(1)], model=str(tmp_path)), tmp_path / "r.jsonl"
    monkeypatch.setattr("include.settings.PROJECT_ROOT", tmp_path)
    results.write_text("")
    asked(monkeypatch, run_dir=run.store.url, incumbent=str(results), listings=50)
    found = shadowing.prepare()
    assert found["folder"] == str(tmp_path / "build" / "shadow" / "manual__1___")
    assert found["shadow"] == [
        "include.batch", "shadow", "--run-dir", run.store.url, "--task", "title", "--incumbent", str(results),
        "--listings", "50", "--out", found["folder"],
    ]  # fmt: skip
    asked(monkeypatch, run_dir=run.store.url, incumbent="/nowhere")
    with pytest.raises(AirflowFailException, match="incumbent: no file /nowhere"):
        shadowing.prepare()
    asked(monkeypatch, run_dir=str(tmp_path), incumbent=str(results))
    with pytest.raises(AirflowFailException, match="no run at"):
        shadowing.prepare()


def test_the_report_is_written_and_the_verdict_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("include.batch.shadow_report.write_report", lambda folder: folder / "shadow.html")
    Store(str(tmp_path)).write_json("shadow.json", {"verdict": "undecided", "why": ["too few pairs"]})
    with caplog.at_level(logging.INFO):
        assert shadowing.report(str(tmp_path)) == str(tmp_path / "shadow.html")
    assert "undecided: too few pairs" in caplog.text
