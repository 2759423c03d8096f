"""The way out: a run's work items as request files for the hosted Batch API, within its limits."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from include.batch.requests import URL
from include.batch.results import PART
from include.generation.answers import first_request
from include.records import WorkItem
from include.runs import Run

log = logging.getLogger(__name__)

MAX_REQUESTS, MAX_BYTES = 50_000, 200_000_000  # of one file, as the Batch API documents them
_SAME = ("temperature", "top_p", "seed", "stop", "presence_penalty", "frequency_penalty")  # named alike in the API
_RENAMED = {"max_tokens", "json_schema"}


def body_of(messages: Any, sampling: Mapping[str, Any], model: str) -> dict[str, Any]:
    """A chat completion's body; vLLM's own sampling parameters, which the API refuses, are left out."""
    body: dict[str, Any] = {"model": model, "messages": [dict(message) for message in messages]}
    body |= {name: sampling[name] for name in _SAME if sampling.get(name) is not None}
    if sampling.get("max_tokens") is not None:
        body["max_completion_tokens"] = sampling["max_tokens"]
    if (schema := sampling.get("json_schema")) is not None:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    return body


def _lines(run: Run, task: str, model: str) -> Iterator[bytes]:
    """One line per distinct text, whose `custom_id` is the text id; equal texts lie in one shard, so the set stays small."""
    settings = run.spec.settings.task(task)
    profile = run.spec.settings.engines[settings.engine]
    dropped = {**profile.sampling_params, **settings.sampling_params}.keys() - set(_SAME) - _RENAMED
    if dropped:
        log.warning("left out, since they are vLLM's own: %s", ", ".join(sorted(dropped)))
    for shard in (shard for shards in run.bins(task) for shard in shards):
        seen: set[str] = set()
        for item in run.store.read_rows(run.work(task, shard), WorkItem):
            if item.text_id not in seen:
                seen.add(item.text_id)
                request = first_request(item, settings, profile)
                body = body_of(request.messages, request.sampling_params, model)
                line = {"custom_id": item.text_id, "method": "POST", "url": URL, "body": body}
                yield json.dumps(line, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


def export_requests(run: Run, task: str, out: Path, model: str) -> list[Path]:
    """Writes the work items of an enhancement task and returns the files: `out`, or `out-00001` and on beyond the limits.

    They get their names when all are written; files of an earlier export to the same place are replaced. Raises
    SettingsError for an unknown task, FileNotFoundError for a run without a plan.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    parts: list[Path] = []
    rows = size = 0
    file = None
    try:
        for line in _lines(run, task, model):
            if file is None or rows == MAX_REQUESTS or size + len(line) > MAX_BYTES:
                if file is not None:
                    file.close()
                parts.append(out.with_name(f"{out.stem}-{len(parts) + 1:05d}{out.suffix}{PART}"))
                file, rows, size = open(parts[-1], "wb"), 0, 0  # noqa: SIM115
            file.write(line)
            rows, size = rows + 1, size + len(line)
    finally:
        if file is not None:
            file.close()
    for old in (out, *out.parent.glob(f"{out.stem}-[0-9][0-9][0-9][0-9][0-9]{out.suffix}")):
        old.unlink(missing_ok=True)
    names = [out] if len(parts) == 1 else [part.with_name(part.name.removesuffix(PART)) for part in parts]
    for part, name in zip(parts, names, strict=True):
        os.replace(part, name)
    return names
