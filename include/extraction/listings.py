"""A source's raw row as a clean listing, or the reason why it cannot be one."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, date, datetime
from email.utils import parsedate_to_datetime
from typing import NamedTuple

from pydantic_core import from_json

from include.extraction.cleaning import LoneSurrogateError, clean, is_plain

MAX_ID_CHARS = 255
MAX_FIELD_CHARS = 100_000


class CleanListing(NamedTuple):
    """The fields of records.Listing, in its order; a tuple, since a night makes hundreds of millions of them."""

    merchant_id: str
    listing_id: str
    title: str
    description: str
    brand: str
    category: str
    locale: str
    attributes: str
    source_updated_at: datetime


FIELDS = CleanListing._fields
_encode = json.JSONEncoder(ensure_ascii=False, default=str).encode


class RowError(ValueError):
    """A row that cannot be a listing: `reason` is its code, the message says what was found."""

    def __init__(self, reason: str, detail: str, *, merchant_id: str = "", listing_id: str = "") -> None:
        super().__init__(detail)
        self.reason, self.merchant_id, self.listing_id = reason, merchant_id, listing_id


def as_text(value: object) -> str:
    """A driver's value as text; nothing is the empty string."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, bytes | memoryview):
        return bytes(value).decode("utf-8", "surrogateescape")
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def to_utc(value: object, absent: datetime) -> datetime:
    """A point in time in UTC. Text may be ISO 8601 or the mail format of RSS; without a zone it is taken as UTC.

    Raises RowError for anything else.
    """
    if value is None or value == "":
        return absent
    moment: datetime
    if isinstance(value, datetime):
        moment = value
    elif isinstance(value, date):
        moment = datetime(value.year, value.month, value.day)  # noqa: DTZ001
    else:
        text = as_text(value).strip()
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            try:
                moment = parsedate_to_datetime(text)
            except (ValueError, TypeError, IndexError):
                raise RowError("bad_updated_at", f"{text[:60]!r} is not a point in time") from None
    try:
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except OverflowError:
        raise RowError("bad_updated_at", f"{moment} is out of range") from None


def attributes_json(value: object, flags: set[str]) -> str:
    """Attributes as a JSON object of text to text with sorted names; text that is no object is kept under `details`."""
    if value is None or value == "" or value == "{}":
        return "{}"
    if isinstance(value, str | bytes):
        text = as_text(value)
        plain = is_plain(text) and "\\" not in text
        try:
            value = from_json(text) if plain else json.loads(text)  # the faster one knows no lone surrogates
        except (ValueError, RecursionError):
            value = {"details": text}
        else:
            if plain and type(value) is dict and set(map(type, value.values())) == {str}:
                pairs = sorted((name.strip(), item.strip()) for name, item in value.items())
                kept = {name: item for name, item in pairs if name and item}
                # Without a backslash no quote stands in a string, so there is nothing to escape.
                return "{" + ", ".join([f'"{name}": "{item}"' for name, item in kept.items()]) + "}"
    if not isinstance(value, dict):
        value = {"details": value}
    pairs = sorted((clean(as_text(name), flags), clean(_flat(item), flags)) for name, item in value.items())
    return _encode({name: item for name, item in pairs if name and item})


def _flat(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(filter(None, map(_flat, value)))
    return _encode(value) if isinstance(value, dict) else as_text(value)


def to_listing(
    raw: Sequence[object], *, absent_time: datetime, default_locale: str, seen: Counter[str]
) -> CleanListing:
    """The clean listing of a raw row, whose values stand in the order of FIELDS; `seen` counts what cleaning met, by row.

    Raises RowError with reason missing_id, id_too_long, lone_surrogate, oversized_text or bad_updated_at.
    """
    flags: set[str] = set()
    try:
        texts = [value if type(value) is str else as_text(value) for value in raw[:7]]
        if is_plain("|".join(texts)):  # most rows, told in one pass
            texts = [text.strip() for text in texts]
        else:
            texts = [clean(text, flags) for text in texts]
        attributes = attributes_json(raw[7], flags)
    except LoneSurrogateError as error:
        raise RowError("lone_surrogate", str(error)) from None
    merchant_id, listing_id, title, description, brand, category, locale = texts
    if not merchant_id or not listing_id:
        raise RowError("missing_id", f"merchant_id {merchant_id!r}, listing_id {listing_id!r}")
    if len(merchant_id) > MAX_ID_CHARS or len(listing_id) > MAX_ID_CHARS:
        raise RowError("id_too_long", f"more than {MAX_ID_CHARS} characters")
    longest = max(len(title), len(description), len(brand), len(category), len(attributes))
    if longest > MAX_FIELD_CHARS:
        raise RowError("oversized_text", f"{longest} characters; at most {MAX_FIELD_CHARS} are taken")
    if flags:
        seen.update(flags)
    return CleanListing(
        merchant_id,
        listing_id,
        title,
        description,
        brand,
        category,
        locale.replace("_", "-") or default_locale,
        attributes,
        to_utc(raw[8], absent_time),
    )
