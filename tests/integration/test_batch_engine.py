"""A Batch API request file on the real CPU engine, by its command: answers, refusals, a kill and what comes after it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from openai.types.chat import ChatCompletion

from include.settings import PROJECT_ROOT
from tests.batching import jsonl, line, rows_of

pytestmark = [pytest.mark.engine, pytest.mark.long]

SCHEMA = {"type": "object", "properties": {"verdict": {"enum": ["pass", "fail"]}}, "required": ["verdict"], "additionalProperties": False}  # fmt: skip


def start(folder: Path) -> subprocess.Popen[bytes]:
    files = [
        f"--{option}={folder / name}.jsonl"
        for option, name in (("in", "requests"), ("out", "results"), ("errors", "errors"))
    ]
    command = [sys.executable, "-m", "include.batch", "run", *files, "--engine", "cpu-smollm2"]
    environment = os.environ | {"LISTING_LEASE_DIR": str(folder / "leases")}
    return subprocess.Popen(command, cwd=PROJECT_ROOT, env=environment, start_new_session=True)


def test_a_file_of_every_kind_of_line_is_answered_and_a_killed_run_goes_on(tmp_path: Path) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "verdict", "schema": SCHEMA, "strict": True}}
    rows = [
        line("plain", temperature=0, max_tokens=16),
        line("same", temperature=0, max_tokens=16),
        line("schema", temperature=0, max_tokens=24, response_format=form),
        line("logprobs", max_tokens=4, logprobs=True, top_logprobs=2),
        line("long", messages=[{"role": "user", "content": "word " * 200_000}]),
        line("stream", stream=True),
        *(line(f"more-{n}", max_tokens=100, seed=n) for n in range(150)),
    ]
    (tmp_path / "requests.jsonl").write_bytes(jsonl(*rows))
    part = tmp_path / "results.jsonl.part"
    first = start(tmp_path)
    until = time.monotonic() + 300
    while not (part.exists() and part.read_bytes().count(b"\n") >= 20):
        assert first.poll() is None
        assert time.monotonic() < until
        time.sleep(0.1)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    kept = part.read_bytes().count(b"\n")
    assert not (tmp_path / "results.jsonl").exists()

    assert start(tmp_path).wait(timeout=600) == 0
    found = {row["custom_id"]: row["response"]["body"] for row in rows_of(tmp_path / "results.jsonl")}
    assert set(found) == {row["custom_id"] for row in rows} - {"long", "stream"}
    bodies = {name: ChatCompletion.model_validate(body, strict=True) for name, body in found.items()}
    assert bodies["plain"].choices[0].message.content == bodies["same"].choices[0].message.content
    assert json.loads(bodies["schema"].choices[0].message.content or "")["verdict"] in ("pass", "fail")
    logprobs = bodies["logprobs"].choices[0].logprobs
    assert logprobs is not None
    assert all(len(token.top_logprobs) == 2 for token in logprobs.content or ())
    errors = {row["custom_id"]: row["error"]["code"] for row in rows_of(tmp_path / "errors.jsonl")}
    assert errors == {"long": "context_length_exceeded", "stream": "unsupported_parameter"}
    manifest = json.loads((tmp_path / "results.jsonl.manifest.json").read_text())
    assert manifest["request_counts"] == {"total": len(rows), "completed": len(rows) - 2, "failed": 2}
    assert manifest["resumed"] >= kept
    assert manifest["requests_per_s"] > 0
