"""`airflow dags test … 2>&1 | python -m listing_operators.console LOG`: what a person wants to see of a run in a terminal.

Task starts, this project's own lines, warnings and errors go to the terminal; everything goes to the file LOG.
"""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TextIO

_RECORD = re.compile(r"^\d{4}-\d\d-\d\dT(?P<time>\d\d:\d\d:\d\d)[.\d]*Z \[(?P<level>\w+) *\] (?P<message>.*)$")
_SOURCE = re.compile(r" +\[(?P<logger>task|supervisor|[a-z_]\w*(?:\.\w+)+)\](?: \w+=.*)?$")
_START = re.compile(r"\[DAG TEST\] starting task_id=(?P<task>\S+) map_index=(?P<index>-?\d+)")
_OURS = re.compile(r"(^|\.)(include|listing_operators)\.")
# Airflow's remarks on its own deprecations, and the end of a test run, which the summary tells better.
_NOISE = re.compile(r"py\.warnings|airflow\.sdk\.definitions\.dag$")


def readable(lines: Iterable[str]) -> Iterator[str]:
    """The lines worth showing. Lines that start no record belong to the one above; of a traceback the last line is shown."""
    shown, failed, open_record = True, False, ""  # a record of several lines names its logger on the last one
    for line in lines:
        record = _RECORD.match(line)
        if record is None and not open_record:
            if shown and not (failed and (line.startswith((" ", "Traceback")) or not line)):
                yield line
            continue
        if record is not None:
            if open_record:
                yield from _show(open_record)
            open_record = ""
        text = f"{open_record}\n{line}" if open_record else line
        if _SOURCE.search(text):
            found = list(_show(text))
            shown, open_record = bool(found) and not _START.search(text), ""
            failed = "[error" in text[:50]
            yield from found
        else:
            open_record = text
    if open_record:
        yield from _show(open_record)


def _show(text: str) -> Iterator[str]:
    first, *rest = text.split("\n")
    record = _RECORD.match(first)
    assert record is not None
    message, time = "\n".join([record["message"], *rest]), record["time"]
    if start := _START.match(message):
        yield f"{time} {start['task']}" + ("" if start["index"] == "-1" else f" [{start['index']}]")
        return
    source = _SOURCE.search(message)
    logger = source["logger"] if source else ""
    loud = record["level"] in ("warning", "error", "critical") and not _NOISE.search(logger)
    if loud or _OURS.search(logger):
        mark = f"{record['level'].upper()} " if loud else ""
        yield f"{time}   {mark}{message[: source.start()] if source else message}"


def main(source: TextIO, log: Path) -> None:
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8") as file:

        def recorded() -> Iterator[str]:
            for line in source:
                file.write(line)
                file.flush()
                yield line.rstrip("\n")

        for line in readable(recorded()):
            sys.stdout.write(line + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends Airflow, whose last words are still to come
    main(sys.stdin, Path(sys.argv[1]))
