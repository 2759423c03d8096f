"""The keys that say what needs work and what may share a generation.

content_hash    what the prompt of one enhancement task uses: locale and plain text of its fields
text_id         content and template, and the hosted route's name: listings that share it share one generation
staleness_key   content, template and the lineage of the model that writes the listing, but not the engine profile: a
                promotion rewrites nothing, and a listing that moves to the other route is rewritten
source_hash     the row as it was delivered, and all that leads from it to the staleness key: rows of one source hash have
                one staleness key, so that a row that comes again need not be cleaned to be known
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import regex

from include.extraction.cleaning import plain_text
from include.extraction.listings import CleanListing
from include.settings import PipelineSettings, RoutingSettings, Settings, digest

_VISIBLE = re.compile(r"[^\W_]")  # a letter or digit of any script
_SEPARATOR = "\x1f"  # never in cleaned text
# What turns a row into its keys; a new version of it knows no row at first, and cleans and compares all of them.
_RULES = [(Path(__file__).parent / name).read_text("utf-8") for name in ("cleaning.py", "listings.py", "keys.py")]
_RULES += [unicodedata.unidata_version, regex.__version__]


def short_hash(text: str) -> str:
    """128 bits as hex: at 10^9 texts the chance of one collision is about 10^-21."""
    return blake2b(text.encode("utf-8", "backslashreplace"), digest_size=16).hexdigest()


class Keys(NamedTuple):
    """Keys of one listing for one enhancement task, in the order of records.WorkItem."""

    text_id: str
    content_hash: str
    staleness_key: str


def key_function(settings: Settings, task_name: str, route: int = 0) -> Callable[[Mapping[str, str]], Keys]:
    """Keys from a listing's prompt texts (see `prompt_texts`), for one enhancement task and one of its `routes`.

    Our own route adds nothing to the keys, so that neither the start nor the end of a switch makes its copy stale.
    """
    task = settings.task(task_name)
    fields = task.prompt_fields
    template = f"{_SEPARATOR}{task.template_version}{_SEPARATOR}".encode()
    lineage = settings.engines[task.routes[route]].lineage.encode()
    hosted = f"{_SEPARATOR}{task.routes[route]}".encode() if route else b""

    def keys(texts: Mapping[str, str]) -> Keys:
        content = _SEPARATOR.join([texts["locale"], *[texts[name] for name in fields]])
        state = blake2b(content.encode("utf-8"), digest_size=16)
        content_hash = state.hexdigest()
        state.update(template)  # after it the hash covers content and template, then the lineage, too
        text = state.copy() if hosted else state
        text.update(hosted)
        text_id = text.hexdigest()
        state.update(lineage)
        return Keys(text_id, content_hash, state.hexdigest())

    return keys


def source_hash_function(settings: Settings, task_name: str, route: int = 0) -> Callable[[bytes], str]:
    """Source hash, 64 bits as hex, of a row's bytes; it is only ever compared with the one hash of the same listing."""
    task, locale = settings.task(task_name), settings.pipeline.catalog.default_locale
    lineage = settings.engines[task.routes[route]].lineage
    start = blake2b(
        digest([_RULES, locale, task.prompt_fields, task.template_version, lineage]).encode(), digest_size=8
    )

    def source_hash(row: bytes) -> str:
        state = start.copy()
        state.update(row)
        return state.hexdigest()

    return source_hash


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


def _in_share(purpose: str, merchant_id: str, listing_id: str, shares: Mapping[str, float]) -> bool:
    """By a stable hash of the listing's key: the same every night, for all enhancement tasks, apart by purpose.

    `shares` is by merchant, "*" for all others; raising a share only adds listings.
    """
    share = shares.get(merchant_id, shares.get("*", 0.0)) if shares else 0.0
    if share <= 0:
        return False
    point = blake2b(f"{purpose}{_SEPARATOR}{merchant_id}{_SEPARATOR}{listing_id}".encode(), digest_size=8).digest()
    return int.from_bytes(point, "big") < share * 2**64


def in_holdout(merchant_id: str, listing_id: str, shares: Mapping[str, float]) -> bool:
    """Whether the listing keeps the merchant's copy; `shares` as `holdout_share` in pipeline.yaml."""
    return _in_share("holdout", merchant_id, listing_id, shares)


def route_of(merchant_id: str, listing_id: str, routing: RoutingSettings | None) -> int:
    """Which of the enhancement task's `routes` writes the listing: 0 is our own engine, 1 the hosted API."""
    return 0 if routing is None or _in_share("route", merchant_id, listing_id, routing.share) else 1


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
    if task.routing:
        decisive["routing"] = [settings.engines[task.routing.hosted].lineage, task.routing.share]
    return digest(decisive)


def _arms(pipeline: PipelineSettings) -> list[object]:
    return [dict(pipeline.holdout_share), sorted(pipeline.opted_out_merchants)]
