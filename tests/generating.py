"""What the generation tests share: runs made by hand and an engine that answers from a function, without vLLM."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from include.generation.engine import Engine, EngineDeadError, EngineMetrics, Output, Request
from include.records import Generation, WorkItem
from include.runs import Run, RunSpec, interval_of
from include.settings import EngineProfile, Settings, load_settings

DAY = date(2026, 3, 1)
Answer = Callable[[Request], Output | None]


def profile(**changes: Any) -> EngineProfile:
    """An engine profile of a local folder; `batch_size` 4."""
    values: dict[str, Any] = {"name": "stub", "model": ".models/none", "lineage": "stub", "batch_size": 4}
    return EngineProfile(**(values | changes))


def requests(count: int) -> list[Request]:
    return [Request(id=f"r{n}", messages=[{"role": "user", "content": f"text {n}"}]) for n in range(count)]


def say(text: str, **fields: Any) -> Answer:
    """Answers every request alike."""
    values: dict[str, Any] = {"finish_reason": "stop", "prompt_tokens": 10, "output_tokens": 3} | fields
    return lambda request: Output(id=request.id, text=text, **values)


class StubEngine:
    """Finishes requests last in, first out. `answer` returns an output, or None for a request that kills the engine."""

    def __init__(self, profile: EngineProfile, answer: Answer) -> None:
        self.profile, self.answer = profile, answer
        self.flight: deque[Request] = deque()
        self.widest = 0
        self.seen: list[str] = []
        self.ended = False

    def encode(self, requests: Sequence[Request]) -> list[None]:
        return [None] * len(requests)

    def submit(self, request: Request, tokens: list[int] | None = None) -> Output | None:
        self.seen.append(request.id)
        self.flight.append(request)
        self.widest = max(self.widest, len(self.flight))
        return None

    def finished(self) -> list[Output]:
        answers = [(request, self.answer(request)) for request in self.flight]
        if any(output is None for _, output in answers):
            raise EngineDeadError("RuntimeError: illegal memory access", kind="engine_failed")
        request, output = answers[-1]
        self.flight.remove(request)
        assert output is not None
        return [output]

    def metrics(self) -> EngineMetrics:
        return EngineMetrics(start_seconds=1.0, prefix_cache_queries=100, prefix_cache_hits=40)

    def pids(self) -> set[int]:
        return set()

    def shutdown(self) -> None:
        self.ended = True


class Engines:
    """Opens stub engines and keeps them for a look afterwards."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.opened: list[StubEngine] = []
        self.adapters: list[Sequence[str]] = []

    def make(self, profile: EngineProfile) -> StubEngine:
        return StubEngine(profile, self.answer)

    @contextmanager
    def __call__(self, profile: EngineProfile, *, adapters: Sequence[str] = ()) -> Iterator[Engine]:
        engine = self.make(profile)
        self.opened.append(engine)
        self.adapters.append(tuple(adapters))
        try:
            yield engine
        finally:
            engine.shutdown()


def item(number: int, **changes: Any) -> WorkItem:
    values: dict[str, Any] = {
        "merchant_id": "m1",
        "listing_id": f"L{number}",
        "title": f"Ceramic mug number {number}",
        "description": "A blue ceramic mug for tea. It holds 350 ml. It is safe for the dishwasher.",
        "source_updated_at": datetime(2026, 3, 1, tzinfo=UTC),
        "text_id": f"{number:016x}",
        "content_hash": f"{number:x}",
        "staleness_key": f"s{number}",
    }
    return WorkItem(**(values | changes))


def make_run(
    folder: Path,
    items: Sequence[WorkItem],
    *,
    model: str,
    shards: int = 2,
    engine: dict[str, Any] | None = None,
    description_engine: dict[str, Any] | None = None,
    **task: Any,
) -> Run:
    """A run with one bin of `shards` shards of the title task, on an engine profile of a local `model` folder.

    With `description_engine`, the description task has the same work, on a profile that differs in these fields.
    """
    values = load_settings().model_dump()
    values["pipeline"] |= {"data_url": str(folder), "rows_per_part": 5}
    values["tasks"]["title"] |= {"engine": "stub"} | task
    values["engines"]["stub"] = profile(model=model, **(engine or {})).model_dump()
    values["tasks"]["description"]["engine"] = "stub-description"
    changes = {"name": "stub-description", "model": model, **(engine or {}), **(description_engine or {})}
    values["engines"]["stub-description"] = profile(**changes).model_dump()
    tasks = ("title",) if description_engine is None else ("title", "description")
    start, end = interval_of(DAY)
    spec = RunSpec(
        run_id="test",
        partition_date=DAY,
        interval_start=start,
        interval_end=end,
        enhancement_tasks=tasks,
        settings=Settings.model_validate(values),
    )
    run = Run.create(spec)
    for name in tasks:
        for shard in range(shards):
            rows = [row for row in items if int(row.text_id, 16) % shards == shard]
            run.store.write_part(f"{Run.work(name, shard)}/part-00000.parquet", WorkItem, rows)
        run.store.write_json(Run.plan(name), {"bins": [list(range(shards))], "rows": [len(items)], "counts": {}})
    return run


def generated(run: Run, task: str = "title") -> list[Generation]:
    return list(run.store.read_rows(Run.generated(task, 0), Generation))
