"""Memory of the worker's own process over many rows: the real worker loop, with a stub engine that answers at once.

Prints `{"client_growth_mb": …, …}`: resident memory at 200,000 rows less that at 20,000, in MB.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import psutil

from benchmarks.generation import make_run
from include.generation.engine import Engine, EngineMetrics, Output, Request
from include.generation.session import Session
from include.generation.worker import BinWorker
from include.records import WorkItem
from include.runs import Run
from include.settings import EngineProfile

WARM, ALL, ROWS_PER_SHARD = 20_000, 200_000, 20_000


class InstantEngine:
    """Answers every request at once, oldest first, and notes the process's memory at the rows of interest."""

    def __init__(self, profile: EngineProfile) -> None:
        self.profile = profile
        self.flight: deque[Request] = deque()
        self.answered = 0
        self.memory_mb: dict[int, float] = {}

    def encode(self, requests: Sequence[Request]) -> Sequence[list[int] | None]:
        return [None] * len(requests)

    def submit(self, request: Request, tokens: list[int] | None = None) -> Output | None:
        self.flight.append(request)
        return None

    def finished(self) -> list[Output]:
        request = self.flight.popleft()
        self.answered += 1
        if self.answered in (WARM, ALL):
            self.memory_mb[self.answered] = psutil.Process().memory_info().rss / 1e6
        text = f"Blue ceramic mug for tea, 350 ml, dishwasher safe, number {request.id}"
        return [Output(id=request.id, text=text, finish_reason="stop", prompt_tokens=250, output_tokens=18)]

    def limit(self, max_num_seqs: int | None, max_num_batched_tokens: int | None) -> None: ...

    def trace(self, on: bool) -> None: ...

    def metrics(self) -> EngineMetrics:
        return EngineMetrics()

    def pids(self) -> set[int]:
        return set()

    def shutdown(self) -> None: ...


def _item(number: int) -> WorkItem:
    return WorkItem(
        merchant_id=f"m{number % 50}",
        listing_id=f"L{number}",
        title=f"Ceramic mug number {number}",
        description=f"A blue ceramic mug for tea, number {number}. It holds 350 ml. " * 6,
        source_updated_at=datetime(2026, 3, 1, tzinfo=UTC),
        text_id=f"{number:016x}",
        content_hash=f"{number:x}",
        staleness_key=f"{number:x}",
    )


def measure(folder: Path) -> dict[str, float]:
    """Runs the worker over ALL rows in one bin of shards of ROWS_PER_SHARD."""
    model = folder / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"")
    changes = {"model": str(model), "batch_size": 1024}
    run = make_run(folder / "data", [], "title", "cpu-smollm2", changes)
    shards = ALL // ROWS_PER_SHARD
    for shard in range(shards):
        first = shard * ROWS_PER_SHARD
        rows = [_item(n) for n in range(first, first + ROWS_PER_SHARD)]
        run.store.write_part(f"{Run.work('title', shard)}/part-00000.parquet", WorkItem, rows)
    run.store.write_json(Run.plan("title"), {"bins": [list(range(shards))], "rows": [ALL], "counts": {}})
    engines: list[InstantEngine] = []

    @contextmanager
    def open_stub(profile: EngineProfile, *, adapters: Sequence[str] = ()) -> Iterator[Engine]:
        engines.append(InstantEngine(profile))
        yield engines[-1]

    worker = BinWorker(run, "title", 0)
    with Session(worker.profile, open_engine=open_stub) as session:
        worker.generate(session)
    found = engines[0].memory_mb
    return {
        "client_growth_mb": round(found[ALL] - found[WARM], 1),
        "client_mb": round(found[ALL], 1),
        "client_rows_per_s": round(ALL / session.tally.busy_seconds, 0),
    }


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        os.environ["LISTING_LEASE_DIR"] = name
        print(json.dumps(measure(Path(name))))
    sys.exit(0)
