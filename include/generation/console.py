"""Everything this process and its engine print, through one pipe: as whole lines, and with the last ones remembered.

An engine core prints its traceback and dies; the process that owns it only hears "see above". With the last lines at
hand the real error can stand on top. Progress bars lose their carriage returns on the way.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

_LAST_LINES: deque[str] = deque(maxlen=400)
_PREFIX = re.compile(r"^(?:\(\S+ pid=\d+\) )?(?:(?:ERROR|WARNING|INFO|CRITICAL) \d\d-\d\d [\d:]+ \[\S+\] ?)?")
_EXCEPTION = re.compile(r"^(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception|Interrupt|Exit)\b:? ?.*")
_HEARSAY = re.compile(r"EngineDeadError|Engine core initialization failed|WorkerProc initialization failed|SystemExit")


def is_hearsay(text: str) -> bool:
    """Whether an error's text only says that an engine process is gone, not why."""
    return bool(_HEARSAY.search(text))


def last_error() -> str:
    """The last exception line that the engine printed, without log prefixes; empty when there is none."""
    for line in reversed(_LAST_LINES):
        text = _PREFIX.sub("", line).strip()
        if _EXCEPTION.match(text) and not is_hearsay(text):
            return text
    return ""


def last_lines(count: int = 20) -> list[str]:
    """The last lines printed by this process and its engine."""
    return list(_LAST_LINES)[-count:]


def forget() -> None:
    """Forgets what was printed: an old engine's error must not explain a new one's failure."""
    _LAST_LINES.clear()


def _pump(source: int, target: int) -> None:
    rest = b""
    while chunk := os.read(source, 65536):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            line = line.rstrip(b"\r").rpartition(b"\r")[2]
            _LAST_LINES.append(line.decode("utf-8", "replace"))
            os.write(target, line + b"\n")
    if rest:
        os.write(target, rest.rpartition(b"\r")[2] + b"\n")


@contextmanager
def captured_console() -> Iterator[None]:
    """Sends file descriptors 1 and 2 of this process and its later children through the pipe while the block runs."""
    saved = os.dup(1), os.dup(2)
    source, sink = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    for descriptor in (1, 2):
        os.dup2(sink, descriptor)
    os.close(sink)
    thread = threading.Thread(target=_pump, args=(source, saved[0]), name="console", daemon=True)
    thread.start()
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for descriptor, kept in zip((1, 2), saved, strict=True):
            os.dup2(kept, descriptor)
        thread.join(timeout=2.0)  # ends by itself unless a child still holds the pipe
