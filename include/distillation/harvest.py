"""Training pairs from accepted copy: a finished run, results of a hosted batch, or any JSON Lines of listing and copy.

Every pair passes the validators of its enhancement task, and no pair enters that a judge has failed.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from include.distillation.merchants import FIRST_UPDATE
from include.distillation.pairs import FIELDS, pair, read_jsonl, writer_prompt
from include.records import Listing, Verdict
from include.runs import Run
from include.settings import Settings, digest
from include.validation.checker import Checker
from include.validation.view import Source

log = logging.getLogger(__name__)


def from_batch(results: Path, sources: Path) -> Iterator[dict[str, Any]]:
    """A hosted batch's result file (OpenAI's format), joined by `custom_id` with lines {"id", "source"}."""
    known = {str(row["id"]): row["source"] for row in read_jsonl(sources)}
    for row in read_jsonl(results):
        body = (row.get("response") or {}).get("body") or {}
        choice = (body.get("choices") or [{}])[0]
        text = (choice.get("message") or {}).get("content") or ""
        source = known.get(str(row.get("custom_id")))
        yield {"source": source, "output": text, "finish_reason": choice.get("finish_reason") or ""}


def from_run(run_dir: str, task: str) -> Iterator[dict[str, Any]]:
    """Accepted copy of a finished run, one line per listing; texts that its judge failed are left out.

    Raises FileNotFoundError when the folder holds no run, or no decided gate.
    """
    run = Run.open(run_dir)
    gate = run.store.read_json(run.manifest(task, "gate"))
    if gate is None:
        raise FileNotFoundError(f"{run_dir}: the gate of {task} has not decided yet; take a finished run")
    failed = set(gate.get("failed_text_ids", ()))
    for bin_index in range(len(run.bins(task))):
        for row in run.store.read_rows(run.verdicts(task, bin_index), Verdict):
            if row.ok:
                judged = "fail" if row.text_id in failed else "pass"
                yield {"source": asdict(row), "output": row.output, "finish_reason": "stop", "judge": judged}


def to_pairs(rows: Iterable[dict[str, Any]], settings: Settings, task: str) -> Iterator[dict[str, Any]]:
    """Pairs of the rows that are fit to learn from; what was left out is counted by reason and logged at the end.

    A row is {"source": {"title", "description", "locale", …}, "output", optional "finish_reason", "judge": "pass"|"fail"}.
    """
    checker = Checker.of(settings, task)
    enhancement = settings.task(task)
    seen: set[str] = set()
    left_out: Counter[str] = Counter()
    kept = 0
    for row in rows:
        source = row.get("source")
        if not isinstance(source, dict) or not isinstance(row.get("output"), str):
            left_out["no source or output"] += 1
            continue
        if str(row.get("judge", "pass")) != "pass":
            left_out["failed by the judge"] += 1
            continue
        outcome = checker.check(Source.from_json(source), row["output"], str(row.get("finish_reason") or "stop"))
        key = digest([[source.get(name) for name in enhancement.prompt_fields], outcome.output])
        if not outcome.ok or key in seen:
            left_out[outcome.reasons[0] if outcome.reasons else "repeated"] += 1
            continue
        seen.add(key)
        kept += 1
        listing = as_listing(source)
        prompt = writer_prompt(task, listing, enhancement.template, enhancement.prompt_fields)
        yield pair(prompt, outcome.output, listing.merchant_id, listing)
    log.info("%d pairs kept, %d left out: %s", kept, left_out.total(), json.dumps(dict(left_out.most_common())))


def as_listing(source: dict[str, Any]) -> Listing:
    """A listing from a JSON object; absent and null fields are empty."""
    values = {name: str(source.get(name) or "") for name in (*FIELDS, "locale", "merchant_id", "listing_id")}
    attributes = source.get("attributes") or "{}"
    values["attributes"] = attributes if isinstance(attributes, str) else json.dumps(attributes, ensure_ascii=False)
    return Listing(**values, source_updated_at=FIRST_UPDATE)
