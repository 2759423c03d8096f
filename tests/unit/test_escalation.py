"""Refused answers at a larger model: what is asked, what it may cost, what comes of it, and what a failure leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from include import escalation
from include.batch.joining import answers_of
from include.generation.engine import Output, Request
from include.generation.session import Session
from include.records import Generation, QuarantinedRow, RunCounts, Verdict
from include.reporting.summary import summarise_task
from include.runs import Run, StopMarker
from include.settings import EscalationSettings, SettingsError
from include.validation.stage import validate
from tests.generating import Answer, Engines, item, make_run, profile

GOOD, BAD = "Ceramic mug for tea, 350 ml, dishwasher safe", "Here is the rewritten title: Ceramic mug"
BUDGET = {"engine": "stub", "max_texts": 100}


def model(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "model" / name).write_text("{}")


def refused_run(tmp_path: Path, count: int = 12, bad: int = 5, **budget: Any) -> Run:
    """A validated bin of which the first `bad` texts were refused."""
    model(tmp_path)
    items = [item(n) for n in range(count)]
    run = make_run(tmp_path / "data", items, model=str(tmp_path / "model"), escalation=BUDGET | budget)
    rows = [
        Generation(text_id=row.text_id, text=BAD if n < bad else GOOD, finish_reason="stop")
        for n, row in enumerate(items)
    ]
    run.store.write_part(f"{Run.generated('title', 0)}/shard-00000-00000.parquet", Generation, rows)
    assert validate(run, "title", 0)["rejected"] == bad
    return run


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.setenv("LISTING_LEASE_DIR", str(tmp_path / "leases"))

    def start(answer: Answer) -> Engines:
        engines = Engines(answer)
        monkeypatch.setattr(escalation, "Session", lambda profile: Session(profile, open_engine=engines))
        return engines

    return start


def answers(text: str, seen: list[Request] | None = None) -> Answer:
    def answer(request: Request) -> Output:
        if seen is not None:
            seen.append(request)
        return Output(id=request.id, text=text, finish_reason="stop", prompt_tokens=1000, output_tokens=100)

    return answer


def verdicts(run: Run) -> dict[str, Verdict]:
    return {row.listing_id: row for row in run.store.read_rows(Run.verdicts("title", 0), Verdict)}


def verdict_texts(run: Run) -> list[str]:
    return [row.text_id for row in verdicts(run).values()]


def test_what_the_larger_model_mends_is_accepted_and_leaves_the_quarantine(tmp_path: Path, use: Any) -> None:
    run, seen = refused_run(tmp_path), []
    use(answers(GOOD, seen))
    manifest = escalation.escalate(run, "title")
    assert (manifest["status"], manifest["accepted_listings"]) == ("done", 5)
    assert manifest["texts"] == {"answered": 5, "asked": 5, "over_budget": 0, "resumed": 0}
    assert manifest["refused_listings"] == 5
    assert {verdict.listing_id for verdict in verdicts(run).values() if "escalated" in verdict.flags} == {
        f"L{n}" for n in range(5)
    }
    assert all(verdict.ok for verdict in verdicts(run).values())
    assert not list(run.store.read_rows(Run.quarantine("title", "validate", 0), QuarantinedRow))
    counts = RunCounts.from_dict(run.store.read_json(Run.manifest("title", "validate", 0))["counts"])
    assert (counts.extracted, counts.accepted, counts.quarantined_total) == (12, 12, 0)
    said = [message["content"] for message in seen[0].messages[-2:]]
    assert said[0] == BAD
    assert "meta text" in said[1]


def test_what_is_refused_again_stays_in_quarantine_and_is_not_asked_a_third_time(tmp_path: Path, use: Any) -> None:
    run = refused_run(tmp_path)
    engines = use(answers(BAD))
    first = escalation.escalate(run, "title")
    assert first["accepted_listings"] == 0
    assert len(list(run.store.read_rows(Run.quarantine("title", "validate", 0), QuarantinedRow))) == 5
    again = escalation.escalate(run, "title")
    assert again["texts"]["resumed"] == 5
    assert again["device_s"] == first["device_s"] > 0
    assert len(engines.opened) == 1


def test_the_budgets_of_texts_and_cost_hold(tmp_path: Path, use: Any) -> None:
    run = refused_run(tmp_path / "texts", max_texts=2)
    use(answers(GOOD))
    manifest = escalation.escalate(run, "title")
    assert (manifest["texts"]["asked"], manifest["accepted_listings"]) == (2, 2)
    assert manifest["texts"]["over_budget"] == 1
    # An answer costs 1,000 * 1 + 100 * 10 millionths; at its dearest (every character a token, a second try twice as long) more.
    run = refused_run(tmp_path / "cost", count=40, bad=30, max_cost=0.02, input_price=1.0, output_price=10.0)
    manifest = escalation.escalate(run, "title")
    assert manifest["cost"] <= 0.02
    assert 4 <= manifest["texts"]["asked"] < 10
    assert manifest["texts"]["over_budget"] == 1


def test_answers_of_another_model_or_of_none_count_no_more(tmp_path: Path, use: Any) -> None:
    run = refused_run(tmp_path)
    use(answers(GOOD))
    escalation.escalate(run, "title")
    task = run.spec.settings.task("title")
    for settings in (None, task.escalation.model_copy(update={"max_texts": 1, "template": "other.j2"})):
        changed = run.spec.settings.model_copy(
            update={"tasks": {"title": task.model_copy(update={"escalation": settings})}}
        )
        again = Run(run.spec.model_copy(update={"settings": changed}), run.store)
        assert validate(again, "title", 0)["rejected"] == (5 if settings is None else 0)
        counted = [row.text for row in answers_of(again, "title", set(verdict_texts(run))).values()]
        assert counted.count(BAD) == (5 if settings is None else 0), "a comparison takes what validation took"
    use(answers(BAD))
    changed = task.model_copy(update={"attempts": 1, "sampling_params": {"temperature": 0.7}})
    again = Run(
        run.spec.model_copy(update={"settings": run.spec.settings.model_copy(update={"tasks": {"title": changed}})}),
        run.store,
    )
    manifest = escalation.escalate(again, "title")
    assert (manifest["texts"]["asked"], manifest["accepted_listings"], manifest["refused_listings"]) == (5, 0, 5)


def test_one_text_of_several_listings_is_asked_once(tmp_path: Path, use: Any) -> None:
    model(tmp_path)
    items = [item(0, listing_id=f"L{n}") for n in range(3)]
    run = make_run(tmp_path / "data", items, model=str(tmp_path / "model"), shards=1, escalation=BUDGET)
    row = Generation(text_id=items[0].text_id, text=BAD, finish_reason="stop")
    run.store.write_part(f"{Run.generated('title', 0)}/shard-00000-00000.parquet", Generation, [row])
    validate(run, "title", 0)
    use(answers(GOOD))
    manifest = escalation.escalate(run, "title")
    assert (manifest["texts"]["asked"], manifest["accepted_listings"]) == (1, 3)


def test_an_engine_that_fails_costs_the_gain_and_not_the_night(tmp_path: Path, use: Any) -> None:
    run = refused_run(tmp_path)
    use(lambda request: None)
    manifest = escalation.escalate(run, "title")
    assert manifest["status"] == "failed"
    assert "illegal memory access" in manifest["error"]
    assert sum(verdict.ok for verdict in verdicts(run).values()) == 7


def test_the_larger_model_may_be_an_endpoint(tmp_path: Path, use: Any) -> None:
    run = refused_run(tmp_path)
    engines = run.spec.settings.engines | {"stub": profile(kind="openai", model="large-model", connection="large")}
    endpoint = run.spec.model_copy(update={"settings": run.spec.settings.model_copy(update={"engines": engines})})
    use(answers(GOOD))
    assert escalation.escalate(Run(endpoint, run.store), "title")["accepted_listings"] == 5


def test_a_stopped_task_asks_nothing_and_neither_does_one_without_refusals(tmp_path: Path, use: Any) -> None:
    engines = use(answers(GOOD))
    run = refused_run(tmp_path / "clean", bad=0)
    assert escalation.escalate(run, "title")["status"] == "none"
    run = refused_run(tmp_path / "stopped")
    run.write_stop("title", StopMarker(bin=0, engine="stub", reason="x", reject_rate=0.9))
    assert escalation.escalate(run, "title")["status"] == "stopped"
    assert not engines.opened


def test_the_summary_tells_share_gain_and_cost(tmp_path: Path, use: Any) -> None:
    run = refused_run(tmp_path, input_price=1.0, output_price=10.0)
    use(answers(GOOD))
    escalation.escalate(run, "title")
    found = summarise_task(run, "title")["escalation"]
    assert found == {"status": "done", "engine_profile": "stub", "accepted_listings": 5, "refused_listings": 5, "cost": 0.01, "asked": 5}  # fmt: skip


def test_settings_that_cannot_work_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="max_cost needs input_price"):
        EscalationSettings(engine="stub", max_texts=1, max_cost=1.0)
    model(tmp_path)
    run = make_run(tmp_path / "data", [item(0)], model=str(tmp_path / "model"))
    with pytest.raises(SettingsError, match="no `escalation`"):
        escalation.escalate(run, "title")
