"""Escalation on the real CPU engine, by its command: refused answers are asked for again and the bin is validated anew."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from include.records import Generation, RunCounts, Verdict
from include.runs import Run, RunSpec, interval_of
from include.settings import PROJECT_ROOT, Settings, load_settings
from include.validation.stage import validate
from tests.generating import DAY, item

pytestmark = [pytest.mark.engine, pytest.mark.long]

REFUSED = "Here is the rewritten title: Ceramic mug"


def test_refused_answers_are_asked_again_and_accounting_stays_closed(tmp_path: Path) -> None:
    values = load_settings().model_dump()
    values["pipeline"] |= {"data_url": str(tmp_path / "data")}
    values["tasks"]["title"]["escalation"] = {"engine": "cpu-smollm2-title", "max_texts": 5}
    start, end = interval_of(DAY)
    spec = RunSpec(
        run_id="escalated", partition_date=DAY, interval_start=start, interval_end=end, enhancement_tasks=("title",),
        settings=Settings.model_validate(values),
    )  # fmt: skip
    run, items = Run.create(spec), [item(n) for n in range(6)]
    run.store.write_part(f"{Run.work('title', 0)}/part-00000.parquet", type(items[0]), items)
    run.store.write_json(Run.plan("title"), {"bins": [[0]], "rows": [len(items)], "counts": {}})
    rows = [Generation(text_id=row.text_id, text=REFUSED, finish_reason="stop") for row in items]
    run.store.write_part(f"{Run.generated('title', 0)}/shard-00000-00000.parquet", Generation, rows)
    assert validate(run, "title", 0)["rejected"] == 6

    command = [sys.executable, "-m", "include.escalation", "--run-dir", run.store.url, "--task", "title"]
    environment = os.environ | {"LISTING_LEASE_DIR": str(tmp_path / "leases")}
    done = subprocess.run(command, cwd=PROJECT_ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    manifest = run.store.read_json(Run.manifest("title", "escalate"))
    assert (manifest["status"], manifest["texts"]["answered"], manifest["engine_starts"]) == ("done", 5, 1)
    verdicts = list(run.store.read_rows(Run.verdicts("title", 0), Verdict))
    assert manifest["accepted_listings"] == sum(row.ok for row in verdicts) > 0
    assert sum(row.output == REFUSED for row in verdicts) == 6 - manifest["accepted_listings"]
    counts = RunCounts.from_dict(run.store.read_json(Run.manifest("title", "validate", 0))["counts"])
    counts.check_closed()
    assert counts.accepted == manifest["accepted_listings"]
