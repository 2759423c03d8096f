"""The keys that say what needs work and what may share a generation.

content_hash    what the prompt of one enhancement task uses: locale and plain text of its fields
text_id         content and template: listings that share it get the same rendered prompt, so one generation
staleness_key   content, template and model lineage, but not the engine profile: a promotion rewrites nothing
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import NamedTuple

from include.extraction.cleaning import plain_text
from include.extraction.listings import CleanListing
from include.settings import PipelineSettings, Settings, digest

_VISIBLE = re.compile(r"[^\W_]")  # a letter or digit of any script
_SEPARATOR = "\x1f"  # never in cleaned text


def short_hash(text: str) -> str:
    """128 bits as hex: at 10^9 texts the chance of one collision is about 10^-21."""
    return blake2b(text.encode("utf-8", "backslashreplace"), digest_size=16).hexdigest()


class Keys(NamedTuple):
    """Keys of one listing for one enhancement task, in the order of records.WorkItem."""

    text_id: str
    content_hash: str
    staleness_key: str


def key_function(settings: Settings, task_name: str) -> Callable[[Mapping[str, str]], Keys]:
    """Keys from a listing's prompt texts (see `prompt_texts`), for one enhancement task."""
    task = settings.task(task_name)
    fields = task.prompt_fields
    template = f"{_SEPARATOR}{task.template_version}{_SEPARATOR}".encode()
    lineage = settings.engines[task.engine].lineage.encode()

    def keys(texts: Mapping[str, str]) -> Keys:
        content = _SEPARATOR.join([texts["locale"], *[texts[name] for name in fields]])
        state = blake2b(content.encode("utf-8"), digest_size=16)
        content_hash = state.hexdigest()
        state.update(template)  # after it the hash covers content and template, then the lineage, too
        text_id = state.hexdigest()
        state.update(lineage)
        return Keys(text_id, content_hash, state.hexdigest())

    return keys


def prompt_texts(listing: CleanListing) -> dict[str, str]:
    """What prompts see of a listing: its text fields without markup."""
    texts: tuple[str, ...] = listing[2:6]
    # Most rows in one pass: nothing that markup, entities or runs of spaces are made of.
    joined = "|".join(texts)
    if "<" in joined or ";" in joined or "  " in joined or not joined.isprintable():
        texts = tuple(map(plain_text, texts))
    title, description, brand, category = texts
    return {
        "title": title, "description": description, "brand": brand, "category": category,
        "attributes": listing.attributes, "locale": listing.locale,
    }  # fmt: skip


def says_something(texts: Mapping[str, str], required: tuple[str, ...]) -> bool:
    """Whether at least one required field holds a letter or digit."""
    return any(_VISIBLE.search(texts[name]) for name in required)


def in_holdout(merchant_id: str, listing_id: str, shares: Mapping[str, float]) -> bool:
    """The arm by a stable hash of the listing's key: the same every night, for all enhancement tasks.

    `shares` is by merchant, "*" for all others; raising a share only moves listings into the holdout.
    """
    share = shares.get(merchant_id, shares.get("*", 0.0)) if shares else 0.0
    if share <= 0:
        return False
    point = blake2b(f"holdout{_SEPARATOR}{merchant_id}{_SEPARATOR}{listing_id}".encode(), digest_size=8).digest()
    return int.from_bytes(point, "big") < share * 2**64


def scope_of(settings: Settings, task_name: str) -> str:
    """Hash of everything besides a listing's content that decides whether it needs work.

    A windowed read may rely on earlier runs only where this is the same.
    """
    task, pipeline = settings.task(task_name), settings.pipeline
    decisive: dict[str, object] = {
        "lineage": settings.engines[task.engine].lineage,
        "template": task.template_version,
        "fields": [task.prompt_fields, task.required_fields],
        "arms": _arms(pipeline),
    }
    return digest(decisive)


def _arms(pipeline: PipelineSettings) -> list[object]:
    return [dict(pipeline.holdout_share), sorted(pipeline.opted_out_merchants)]
