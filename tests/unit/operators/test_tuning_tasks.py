"""The tasks of `tune_task_model`: who is asked, and what is promoted without an answer (nothing)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from include.tuning import promotion, workload
from listing_operators import tuning


def asked(monkeypatch: pytest.MonkeyPatch, **params: Any) -> dict[str, Any]:
    context = {"run_id": "manual__1/..", "params": {"auto_approve": False, "run_dirs": [], "config": {}} | params}
    monkeypatch.setattr(tuning, "get_current_context", lambda: context)
    return context


def refuse(*_: Any) -> str:
    raise ValueError("nothing is promoted: too few pairs")


def test_a_person_is_asked_with_the_figures_unless_approved_in_advance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "proposal", lambda folder: f"figures of {folder}")
    monkeypatch.setattr(ApprovalOperator, "execute", lambda self, context: self.body)
    noted: list[Path] = []
    monkeypatch.setattr(promotion, "note_question", noted.append)
    operator = tuning.ApprovePromotion(task_id="approve", folder="/f")
    assert operator.execute(asked(monkeypatch)) == "figures of /f"
    with pytest.raises(AirflowSkipException, match="in advance"):
        operator.execute(asked(monkeypatch, auto_approve=True))
    assert noted == [Path("/f")], "once: nobody is asked in the second case"
    monkeypatch.setattr(tuning, "proposal", refuse)
    with pytest.raises(AirflowSkipException, match="too few pairs"):
        operator.execute(asked(monkeypatch))


def test_nothing_is_promoted_without_an_approver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        promotion, "promote_best", lambda folder, settings, by, *, as_asked: f"{folder} by {by}, as asked: {as_asked}"
    )
    asked(monkeypatch)
    assert tuning.promote("/f", "7") == "/f by 7, as asked: True"
    with pytest.raises(AirflowSkipException, match="nobody"):
        tuning.promote("/f", None)
    asked(monkeypatch, auto_approve=True)
    assert tuning.promote("/f", None) == "/f by auto_approve, as asked: False"
    monkeypatch.setattr(promotion, "promote_best", lambda *_, **__: refuse())
    with pytest.raises(AirflowSkipException, match="too few pairs"):
        tuning.promote("/f", "7")


def test_the_proposal_says_how_much_faster_and_how_good(monkeypatch: pytest.MonkeyPatch) -> None:
    quality = {"difference_ci95": [-0.012, 0.004], "pass_rate": 0.94, "incumbent_pass_rate": 0.945, "pairs": 280}
    row = {
        "candidate": "fp8",
        "quality": quality,
        "speedup": 1.41,
        "speedup_ci95": [1.38, 1.44],
        "passed_over": ["awq: worse"],
    }
    monkeypatch.setattr(promotion, "choose", lambda folder: row)
    told = tuning.proposal("/f")
    assert told.startswith("Put fp8 in force: 1.41 times as fast as the profile in force (95%: 1.38 to 1.44).")
    assert "94.0% against 94.5%, difference -1.2 to +0.4 points over 280 listings" in told


def test_prepare_takes_the_newest_runs_and_lays_the_overrides_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("include.settings.PROJECT_ROOT", tmp_path)
    monkeypatch.setenv("LISTING_CONFIG_DIR", str(Path(__file__).parents[3] / "include" / "config"))
    monkeypatch.setattr(workload, "newest_runs", lambda settings, task: [f"/runs/{task}"])
    asked(monkeypatch, task="title", config={"held_out": 900})
    found = tuning.prepare()
    assert found["folder"] == str(tmp_path / "build" / "tuning" / "manual__1___")
    assert found["quality"] == ["include.tuning", "quality", "--dir", found["folder"], "--run-dir", "/runs/title"]
    config = found["run"][found["run"].index("--config") + 1]
    assert '"held_out": 900' in Path(config).read_text()
    asked(monkeypatch, task="title", config={"held_outs": 900})
    with pytest.raises(AirflowFailException, match="held_outs"):
        tuning.prepare()
    monkeypatch.setattr(workload, "newest_runs", lambda settings, task: [])
    asked(monkeypatch, task="title")
    with pytest.raises(AirflowFailException, match="no finished run of title"):
        tuning.prepare()
