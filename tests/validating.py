"""What the validation tests share: work items, their generations, the real configuration with changes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from include.records import Generation, WorkItem
from include.settings import Settings, load_settings

MOMENT = datetime(2026, 3, 1, tzinfo=UTC)
TITLE = "Acme ceramic pour-over dripper with wooden stand"
DESCRIPTION = "A ceramic pour-over coffee dripper with a wooden stand, made for two cups and easy to rinse by hand."


def work_item(number: int, **changes: Any) -> WorkItem:
    values: dict[str, Any] = {
        "merchant_id": f"merchant-{number % 2}",
        "listing_id": f"L{number:05d}",
        "title": TITLE,
        "description": DESCRIPTION,
        "locale": "en-US",
        "source_updated_at": MOMENT,
        "text_id": f"text-{number:05d}",
        "content_hash": f"hash-{number}",
        "staleness_key": f"key-{number}",
    }
    return WorkItem(**(values | changes))


def answer(item: WorkItem, text: str = "Acme ceramic coffee dripper with wooden stand", **changes: Any) -> Generation:
    return Generation(**({"text_id": item.text_id, "text": text, "finish_reason": "stop"} | changes))


def settings_with(task: str = "title", *, gate: dict[str, Any] | None = None, **validators: Any) -> Settings:
    """The project's settings with changed gate and validator thresholds of one task."""
    values = load_settings().model_dump()
    values["tasks"][task]["gate"] |= gate or {}
    values["tasks"][task]["validators"] |= validators
    return Settings.model_validate(values)
