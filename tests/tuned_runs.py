"""Folders of tuning runs whose rates and verdicts are given, and the night that they are of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from include.runs import Run
from include.settings import Settings, digest
from include.tuning.plan import TuningSettings
from include.tuning.trials import write_json
from tests.generating import item, make_run

TUNING = TuningSettings.model_validate({
    "grid": {"max_num_seqs": [2], "max_num_batched_tokens": [64]},
    "candidates": [{"name": "fast"}, {"name": "wild/../ü"}], "held_out": 50, "margin": 0.1,
})  # fmt: skip
RATES = {"incumbent": [100.0, 101.0, 99.0], "fast": [120.0, 121.0, 119.5], "wild/../ü": [110.0, 111.0, 110.5]}


def night(home: Path, **changes: Any) -> tuple[Run, Settings]:
    """A night of 40 listings, two of which share a text; the judge is taken at its word unless the gate says otherwise."""
    items = [item(n) for n in range(40)] + [item(3, listing_id="twin")]
    run = make_run(home / "data", items, model=str(home / "model"))
    settings, title = run.spec.settings, run.spec.settings.task("title")
    gate = title.gate.model_copy(update={"mode": "demo"} | changes)
    pipeline = settings.pipeline.model_copy(update={"state_url": str(home / "state")})
    tasks = settings.tasks | {"title": title.model_copy(update={"gate": gate})}
    return run, settings.model_copy(update={"tasks": tasks, "pipeline": pipeline})


def tuned(home: Path, settings: Settings, rates: dict[str, list[float]]) -> Path:
    """The folder of a tuning run with these rates; finalists differ in their window: 5, 6, …"""
    base, folder = settings.engines["stub"], home / "tuning"
    folder.mkdir(exist_ok=True)
    rows = [
        {"candidate": name, "rates": found, "requests_per_s": sorted(found)[len(found) // 2] if found else None,
         "profile": base.model_copy(update={"batch_size": 4 + n}).model_dump(mode="json")}
        for n, (name, found) in enumerate(rates.items())
    ]  # fmt: skip
    plan = {"task": "title", "base": base.model_dump(mode="json"), "incumbent": rows[0]["profile"], "device": "NVIDIA X",
            "tuning": TUNING.model_dump(mode="json"), "started_at": "2026-03-02T01:00:00+00:00"}  # fmt: skip
    write_json(folder / "plan.json", plan)
    write_json(folder / "result.json", {"incumbent": rows[0], "finalists": rows[1:], "versions": {"vllm": "0.32.0"}})
    return folder


def judged(folder: Path, **holds: bool) -> None:
    rows = {row["candidate"]: row for row in json.loads((folder / "result.json").read_text())["finalists"]}
    write_json(folder / "quality.json", {"candidates": {
        name: {"holds": ok, "why": "fine" if ok else "judge pass rate may fall", "profile": digest(rows[name]["profile"])}
        for name, ok in holds.items()
    }})  # fmt: skip
