"""What the batch tests share: request lines, and a batch on a stub engine that one call runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from include.batch import run as run_module
from include.batch.run import run_batch
from include.generation.session import Session
from include.settings import Settings
from tests.generating import Answer, Engines, say


def line(custom_id: str = "a", **body: Any) -> dict[str, Any]:
    found = {"model": "gpt-x", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8} | body
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": found}


def jsonl(*rows: Any) -> bytes:
    return b"".join((row if isinstance(row, bytes) else json.dumps(row).encode()) + b"\n" for row in rows)


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(row) for row in path.read_bytes().splitlines()]


class Batch:
    """One folder with a request file and its outputs."""

    def __init__(self, folder: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
        self.source, self.out, self.errors = (folder / f"{n}.jsonl" for n in ("requests", "results", "errors"))
        self.manifest = folder / "results.jsonl.manifest.json"
        self.settings, self.monkeypatch = settings, monkeypatch
        self.engines = Engines(say("Fine."))

    def run(self, content: bytes | None = None, answer: Answer | None = None, **options: Any) -> dict[str, Any]:
        if content is not None:
            self.source.write_bytes(content)
        self.engines = Engines(answer or say("Fine."))
        self.monkeypatch.setattr(run_module, "Session", lambda p: Session(p, open_engine=self.engines))
        return run_batch(self.settings, "stub", self.source, self.out, self.errors, **options)

    @property
    def asked(self) -> list[str]:
        return [request for engine in self.engines.opened for request in engine.seen]

    def codes(self) -> list[tuple[int, str]]:
        return [(row["error"]["line"], row["error"]["code"]) for row in rows_of(self.errors)]
