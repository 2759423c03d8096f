"""Progress as plain log lines, one every few seconds, with the rate and the time that is left."""

from __future__ import annotations

import logging
import time

EVERY_SECONDS = 10.0


def duration(seconds: float) -> str:
    """1:02:03 or 2:03, for people."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class Progress:
    """Counts finished things of a known total, and tokens if any; the rate counts from `start`: an engine's start is left out."""

    def __init__(self, log: logging.Logger, what: str, total: int, every_seconds: float = EVERY_SECONDS) -> None:
        self.log, self.what, self.total, self.every = log, what, total, every_seconds
        self.done = self.tokens = self.skipped = 0
        self._began = self._last = time.monotonic()

    def start(self) -> None:
        self._began = self._last = time.monotonic()

    def skip(self, count: int = 1) -> None:
        """Counts what needed no work: it moves the share done, not the rate."""
        self.skipped += count

    def add(self, tokens: int = 0) -> None:
        self.done += 1
        self.tokens += tokens
        if time.monotonic() - self._last >= self.every:
            self.report()

    def report(self) -> None:
        self._last = time.monotonic()
        seconds = max(1e-9, self._last - self._began)
        rate = self.done / seconds
        ended = self.done + self.skipped
        left = max(0, self.total - ended)
        share = f"{ended:,}/{self.total:,} ({100 * ended / max(1, self.total):.0f}%)"
        eta = duration(left / rate) if rate else "unknown"
        tokens = f" {self.tokens / seconds:.0f} output tokens/s," if self.tokens else ""
        self.log.info("%s: %s, %.1f/s,%s %s left", self.what, share, rate, tokens, eta)
