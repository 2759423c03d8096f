"""The `check` command: JSON Lines of pairs in, one verdict a line out, in order and one at a time."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator
from typing import Any

from include.records import Listing
from include.settings import Settings
from include.validation.checker import Checker
from include.validation.view import Source

log = logging.getLogger(__name__)


def check_lines(lines: Iterable[bytes], settings: Settings, task: str) -> Iterator[dict[str, Any]]:
    """A verdict for every line that is not blank: {"id", "ok", "reasons", "output"} and what applies of "repairs" and "flags".

    A line that cannot be read gets the reason `invalid_input` and an "error" that says what to mend; the rest go on.
    """
    checkers: dict[bool | None, Checker] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        row: Any = None
        try:
            try:
                row = json.loads(line, parse_constant=_refuse)
            except RecursionError:
                raise ValueError("the JSON is nested too deeply") from None
            if not isinstance(row, dict):
                raise ValueError("the line must be a JSON object")
            yield _check(row, checkers, settings, task)
        except ValueError as error:  # JSON and Unicode errors are ValueErrors, too
            message = f'line {number}: {error}; wanted {{"id", "source": {{"title", "description", "locale"}}, "output", "finish_reason"}}'
            log.error(message)
            name = row["id"] if isinstance(row, dict) and isinstance(row.get("id"), str) else None
            yield {"id": name, "ok": False, "reasons": ["invalid_input"], "output": "", "error": message}


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON: leave the value out, or write it as text")


def _check(row: dict[str, Any], checkers: dict[bool | None, Checker], settings: Settings, task: str) -> dict[str, Any]:
    source, output, thinking = row.get("source") or {}, row.get("output"), row.get("thinking")
    if not isinstance(source, dict):
        raise ValueError("source must be an object")
    if unknown := source.keys() - Listing.__annotations__.keys():
        raise ValueError(f"source has no field {min(unknown)!r}: rename or remove it")
    if not isinstance(row.get("id"), str | None):
        raise ValueError(f"id must be text, not {row['id']!r:.40}: put it in quotes")
    if output is not None and not isinstance(output, str):
        raise ValueError(f"output must be text, not {type(output).__name__}")
    if thinking is not None and not isinstance(thinking, bool):
        raise ValueError("thinking must be true or false")
    checker = checkers.get(thinking)
    if checker is None:
        checker = checkers[thinking] = Checker.of(settings, task, thinking=thinking)
    outcome = checker.check(Source.from_json(source), output or "", str(row.get("finish_reason") or "stop"))
    verdict = {"id": row.get("id"), "ok": outcome.ok, "reasons": list(outcome.reasons), "output": outcome.output}
    extras = {"repairs": list(outcome.repairs), "flags": list(outcome.flags)}
    return verdict | {name: values for name, values in extras.items() if values}


def to_line(verdict: dict[str, Any]) -> str:
    """One JSON line; text that UTF-8 cannot hold (lone surrogates) is escaped."""
    text = json.dumps(verdict, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(verdict)
    return text
