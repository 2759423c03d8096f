"""Progress of a long stage: one plain line every so many seconds, never one a row."""

from __future__ import annotations

import logging

import pytest

from include.generation import progress
from include.generation.progress import Progress


def test_one_line_every_so_many_seconds_with_rate_and_time_left(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    counted = Progress(logging.getLogger("stage"), "title", 1_000, every_seconds=10.0)
    counted.skip(100)
    with caplog.at_level(logging.INFO, "stage"):
        for _ in range(250):  # ten a second
            now[0] += 0.1
            counted.add(tokens=20)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    assert lines[1].startswith("title: ")
    assert "/1,000 (" in lines[1]
    assert "10.0/s, 200 output tokens/s" in lines[1]
    assert not set("".join(lines)) & set("\r\n")
