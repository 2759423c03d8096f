"""What to do with one answer: keep it, or ask once more with other settings (cut off, empty, failed, too long)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import regex

from include.generation.engine import Output, Request
from include.generation.prompts import listing_values, messages
from include.records import Generation, WorkItem
from include.settings import EngineProfile, TaskSettings

SHORTENINGS = 4
_BLANK = regex.compile(r"[\s\p{Default_Ignorable_Code_Point}]*")
_SENTENCE_END = regex.compile(r"(?<=[.!?。！？])[\s\"')\]]+|(?<=[。！？])|\n+")


@dataclass(slots=True)
class Pending:
    """One text that waits for its answer."""

    item: WorkItem
    shard: int
    request: Request
    attempts: int = 1
    shortenings: int = 0
    kept_share: float = 1.0  # of the description, after shortening


def first_request(item: WorkItem, task: TaskSettings, profile: EngineProfile) -> Request:
    """The request of one work item. Its id is the text id; it names the task model's adapter, whoever shares the engine."""
    return Request(
        id=item.text_id,
        messages=messages(task.template, **listing_values(item, task.prompt_fields)),
        sampling_params={**profile.sampling_params, **task.sampling_params},
        thinking=task.thinking,
        adapter=profile.lora,
    )


def shortened(text: str, share: float) -> str:
    """The longest beginning of whole sentences within `share` of the text; cut at a space where no sentence is that short."""
    limit = int(len(text) * share)
    end = 0
    for match in _SENTENCE_END.finditer(text):
        if match.start() > limit:
            break
        end = match.start()
    if not end:
        end = text.rfind(" ", 0, limit + 1)
    return text[: max(0, end)].rstrip()


def next_request(pending: Pending, output: Output, task: TaskSettings) -> Request | None:
    """The request to try once more, or None where the answer stands as it is. Counts the try in `pending`.

    Cut off: twice the tokens. Empty: another seed and at least a few tokens. Failed by no fault of the row: as it was.
    Too long, where the task says `shorten`: the description ends at an earlier sentence.
    """
    if output.error == "input_too_long":
        return _shorter(pending, output, task)
    if output.row_at_fault or pending.attempts >= task.attempts:
        return None
    sampling = pending.request.sampling_params
    changes: dict[str, Any] = {}
    if not output.error:
        if output.finish_reason == "length":
            changes = {"max_tokens": 2 * int(sampling.get("max_tokens", 16))}
        elif _BLANK.fullmatch(output.text):
            changes = {"min_tokens": 4, "seed": int(sampling.get("seed") or 0) + 1}
            if not sampling.get("temperature", 1.0):
                changes["temperature"] = 0.3  # a greedy answer has no other seed
        else:
            return None
    pending.attempts += 1
    pending.request = replace(pending.request, sampling_params={**sampling, **changes})
    return pending.request


def _shorter(pending: Pending, output: Output, task: TaskSettings) -> Request | None:
    if task.overlong != "shorten" or pending.shortenings >= SHORTENINGS or not output.prompt_tokens:
        return None
    values = listing_values(pending.item, task.prompt_fields)
    # The rest of the prompt keeps its tokens, so the description must lose more than the prompt's excess; 0.9 is slack.
    pending.kept_share *= 0.9 * min(1.0, output.token_limit / output.prompt_tokens)
    pending.shortenings += 1
    values["description"] = shortened(values["description"], pending.kept_share)
    pending.request = replace(pending.request, messages=messages(task.template, **values))
    return pending.request


def generation_of(pending: Pending, output: Output) -> Generation:
    """The record of an answer that stands."""
    return Generation(
        text_id=pending.item.text_id,
        text=output.text,
        finish_reason=output.finish_reason,
        prompt_tokens=output.prompt_tokens,
        output_tokens=output.output_tokens,
        attempts=pending.attempts,
        error=output.error,
        quarantine=output.row_at_fault,
    )
