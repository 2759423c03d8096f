"""A small run on disk: work items and their generations in bins."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from datetime import date, timedelta
from pathlib import Path

import pytest

from include.records import Generation, RunCounts, WorkItem
from include.runs import Run, RunSpec
from include.settings import Settings, load_settings
from include.validation import checker
from tests.validating import MOMENT

MakeRun = Callable[..., Run]
special_tokens = functools.cache(checker.special_tokens)


@pytest.fixture(autouse=True)
def _tokenizer_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every checker reads its model's tokenizer, megabytes of JSON: once a file is enough for all tests."""
    monkeypatch.setattr(checker, "special_tokens", special_tokens)


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """Builds a run whose bins hold the given pairs of work item and generation (None: no answer came)."""

    def build(
        bins: Sequence[Sequence[tuple[WorkItem, Generation | None]]],
        task: str = "title",
        settings: Settings | None = None,
    ) -> Run:
        settings = settings or load_settings()
        values = settings.model_dump()
        values["pipeline"]["data_url"] = str(tmp_path / "data")
        spec = RunSpec(
            run_id="test",
            partition_date=date(2026, 3, 1),
            interval_start=MOMENT,
            interval_end=MOMENT + timedelta(days=1),
            enhancement_tasks=(task,),
            settings=Settings.model_validate(values),
        )
        run = Run.create(spec)
        for index, pairs in enumerate(bins):
            run.store.write_part(f"{run.work(task, index)}/part-00000.parquet", WorkItem, [item for item, _ in pairs])
            answers = [generation for _, generation in pairs if generation is not None]
            run.store.write_part(f"{run.generated(task, index)}/part-00000.parquet", Generation, answers)
        rows = [len(pairs) for pairs in bins]
        counts = RunCounts(extracted=sum(rows))
        plan = {"bins": [[i] for i in range(len(bins))], "rows": rows, "counts": counts.to_dict()}
        run.store.write_json(run.plan(task), plan)
        return run

    return build
