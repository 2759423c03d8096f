"""Merchant feed files in the Google product-data convention as a source: TSV, CSV, RSS or Atom, JSON Lines; plain or gzip.

A broken row is handed on as a RowError and quarantined; a file whose header cannot be used, or that ends in the middle, is
reported and costs its own rows only.
"""

from __future__ import annotations

import csv
import itertools
import json
import posixpath
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from xml.etree import ElementTree

import fsspec

from include.extraction.feed_text import decoded, repaired_xml, uncompressed
from include.extraction.listings import FIELDS, RowError
from include.runs import RunSpec
from include.settings import FeedSettings, resolve_path

MAX_LINE_CHARS = 4_000_000

# Names that merchants use for our fields, by preference; normalised as in `_name`.
_ALIASES: dict[str, tuple[str, ...]] = {
    "merchant_id": ("merchant_id", "seller_id"),
    "listing_id": ("listing_id", "id", "offer_id", "item_id", "sku", "product_id"),
    "title": ("title", "name", "product_title", "product_name"),
    "description": ("description", "product_description", "body", "summary", "content"),
    "brand": ("brand", "manufacturer", "vendor"),
    "category": ("category", "google_product_category", "product_type"),
    "locale": ("locale", "content_language", "language"),
    "attributes": ("attributes",),
    "source_updated_at": ("updated_at", "last_modified", "date_modified", "updated"),
}
# Columns that say something of the product itself and become attributes.
_FACTS = frozenset(
    ["color", "colour", "size", "size_type", "size_system", "material", "pattern", "gender", "age_group", "condition", "mpn",
     "multipack", "is_bundle", "product_length", "product_width", "product_height", "product_weight", "unit_pricing_measure",
     "energy_efficiency_class", "product_highlight", "product_detail"]
)  # fmt: skip


class FeedError(ValueError):
    """A feed file cannot be used, or not to its end."""


@dataclass(slots=True)
class FeedReport:
    """What became of one feed file."""

    url: str
    merchant_id: str | None
    status: str = "read"  # read, missing, broken: what came before the break is used, but nothing is retired
    problem: str = ""
    encoding: str = ""
    rows: int = 0
    repairs: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class FeedFile:
    """One feed file of one run."""

    url: str
    settings: FeedSettings
    merchant_id: str | None
    snapshot: bool

    def expected_rows(self) -> int:
        """A guess from the file's size, at 600 bytes a row, four times that where it is compressed; 0 where it is missing."""
        fs, path = fsspec.core.url_to_fs(self.url)
        return int(fs.size(path)) * (4 if self.url.endswith(".gz") else 1) // 600 if fs.exists(path) else 0


def find_feeds(feeds: Iterable[FeedSettings], spec: RunSpec) -> list[FeedFile]:
    """The files of a run: `{date}` is its partition date, `{merchant}` whatever lies there. A missing file is listed, too."""
    found = []
    for feed in feeds:
        pattern = resolve_path(feed.url.replace("{date}", str(spec.partition_date)))
        snapshot = "{date}" in feed.url
        if "{merchant}" not in pattern:
            found.append(FeedFile(pattern, feed, feed.merchant_id, snapshot))
            continue
        fs, path = fsspec.core.url_to_fs(pattern)
        shape = re.compile(re.escape(path).replace(r"\{merchant\}", "([^/]+)"))
        for name in sorted(fs.glob(path.replace("{merchant}", "*"))):
            match = shape.fullmatch(name)
            if match:
                found.append(FeedFile(fs.unstrip_protocol(name), feed, match[1], snapshot))
    if spec.merchants:
        found = [file for file in found if file.merchant_id is None or file.merchant_id in spec.merchants]
    return found


def _name(column: str) -> str:
    """A column's name without byte order mark, quotes, namespace, case and spaces: `\ufeff"g:ID "` is `id`."""
    text = column.strip().strip("\ufeff\"'").strip().lower()
    return re.sub(r"[\s\-]+", "_", text.removeprefix("g:"))


class _Columns:
    """Finds our fields in a record of a feed. Raises FeedError when the header lacks what a listing needs."""

    def __init__(self, names: Sequence[str], feed: FeedFile) -> None:
        own = {_name(column): ours for ours, column in feed.settings.columns.items()}
        normal = [_name(n) for n in names]
        self.of: dict[str, int] = {}
        for ours, aliases in _ALIASES.items():
            mapped = [column for column, target in own.items() if target == ours]
            for alias in mapped or aliases:
                if alias in normal:
                    self.of[ours] = normal.index(alias)
                    break
        self.facts = {n: i for i, n in enumerate(normal) if n in _FACTS and i not in self.of.values()}
        needed = ["listing_id", "title", *([] if feed.merchant_id else ["merchant_id"])]
        if missing := [n for n in needed if n not in self.of]:
            raise FeedError(
                f"its header lacks {missing}; it has {list(names)[:40]}. Map them under the feed's `columns`"
            )


class _Maker:
    """Raw rows in the order of FIELDS from a feed's records."""

    def __init__(self, feed: FeedFile, updated_at: datetime) -> None:
        self.feed, self.updated_at = feed, updated_at
        self._columns: dict[tuple[str, ...], _Columns] = {}

    def row(self, columns: _Columns, values: Sequence[Any]) -> list[object]:
        raw: list[object] = [values[columns.of[name]] if name in columns.of else None for name in FIELDS]
        if self.feed.merchant_id:
            raw[0] = self.feed.merchant_id
        raw[6] = raw[6] or self.feed.settings.locale
        facts = {name: values[index] for name, index in columns.facts.items() if values[index]}
        if facts and not raw[7]:
            raw[7] = facts
        raw[8] = raw[8] or self.updated_at
        return raw

    def mapping(self, record: Mapping[str, Any]) -> list[object]:
        """A record that names its own fields; raises RowError when it lacks what a listing needs."""
        names = tuple(record)
        if names not in self._columns:
            if len(self._columns) > 1_000:  # records of ever new shapes must not pile up
                self._columns.clear()
            try:
                self._columns[names] = _Columns(names, self.feed)
            except FeedError as error:
                raise RowError("missing_id", str(error)) from None
        return self.row(self._columns[names], tuple(record.values()))

    def broken(self, reason: str, detail: str, place: str) -> RowError:
        """A row that cannot be read; its place in the file stands in for its id."""
        return RowError(
            reason, detail, merchant_id=self.feed.merchant_id or "", listing_id=f"{self.feed.url}:{place}"[-255:]
        )


def _unquoted(value: str) -> str:
    if len(value) > 1 and value[0] == value[-1] == '"':
        return value[1:-1].replace('""', '"')
    return value


def _table(records: Iterator[list[str]], maker: _Maker) -> Iterator[object]:
    header = next(records, None)
    if header is None:
        raise FeedError("it is empty")
    columns = _Columns(header, maker.feed)
    for number, record in enumerate(records, start=2):
        if len(record) < len(header) or any(record[len(header) :]):
            yield maker.broken(
                "wrong_column_count", f"{len(record)} columns, the header has {len(header)}", f"row-{number}"
            )
        else:
            yield maker.row(columns, record)


def _csv(text: Any, maker: _Maker) -> Iterator[object]:
    """Comma, semicolon, tab or bar: whichever splits the header most. Quotes hold fields together."""
    csv.field_size_limit(MAX_LINE_CHARS)
    first = text.readline()
    reader = csv.reader(itertools.chain([first], text), delimiter=max(",;\t|", key=first.count))
    return _table((record for record in reader if record), maker)


def _tsv(text: Any, maker: _Maker) -> Iterator[object]:
    """Cut at tabs alone, since `12" plate` is no quoted field."""
    lines = (line.rstrip("\r\n") for line in text)
    return _table(([_unquoted(value) for value in line.split("\t")] for line in lines if line.strip()), maker)


def _jsonl(text: Any, maker: _Maker) -> Iterator[object]:
    for number in itertools.count(1):
        line = text.readline(MAX_LINE_CHARS)
        if not line:
            return
        if not line.strip("\ufeff \t\r\n"):
            continue
        try:
            record = json.loads(line.lstrip("\ufeff"))
            if not isinstance(record, dict):
                raise ValueError("not an object")
            yield maker.mapping(record)
        except RowError as error:
            yield maker.broken(error.reason, str(error), f"line-{number}")
        except (ValueError, RecursionError) as error:
            yield maker.broken("bad_json", str(error), f"line-{number}")


def _xml(text: Any, maker: _Maker, repairs: Counter[str]) -> Iterator[object]:
    parser: Any = ElementTree.XMLPullParser(["start", "end"])
    stack: list[ElementTree.Element] = []
    for chunk in repaired_xml(text, repairs):
        parser.feed(chunk)
        yield from _items(parser, stack, maker)
    parser.close()
    yield from _items(parser, stack, maker)


def _items(parser: Any, stack: list[ElementTree.Element], maker: _Maker) -> Iterator[object]:
    for event, element in parser.read_events():
        if event == "start":
            stack.append(element)
            continue
        stack.pop()
        if element.tag.rpartition("}")[2] in ("item", "entry"):
            try:
                yield maker.mapping(_record(element))
            except RowError as error:
                yield maker.broken(error.reason, str(error), "item")
            if stack:
                stack[-1].remove(element)  # memory stays flat however long the feed is


def _record(item: ElementTree.Element) -> dict[str, str]:
    """Children by name; of a name that repeats the first counts, except for facts, which are joined."""
    record: dict[str, str] = {}
    for child in item:
        name = _name(child.tag.rpartition("}")[2])
        text = " ".join(filter(None, (part.strip() for part in child.itertext())))
        if text and name in record and name in _FACTS:
            record[name] += f"; {text}"
        elif text:
            record.setdefault(name, text)
    return record


_FILE_ERRORS = (FeedError, OSError, EOFError, zlib.error, csv.Error, ElementTree.ParseError, LookupError, UnicodeError)
_READERS: dict[str, Callable[..., Iterator[object]]] = {"tsv": _tsv, "csv": _csv, "jsonl": _jsonl}
_SUFFIXES = {".tsv": "tsv", ".txt": "tsv", ".tab": "tsv", ".csv": "csv", ".xml": "xml", ".rss": "xml", ".atom": "xml",
             ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl"}  # fmt: skip


def _format(file: FeedFile, start: str) -> str:
    if file.settings.format != "auto":
        return file.settings.format
    suffix = posixpath.splitext(file.url.removesuffix(".gz"))[1].lower()
    if start.lstrip("\ufeff \r\n\t").startswith("<"):
        return "xml"
    if suffix in _SUFFIXES:
        return _SUFFIXES[suffix]
    return "jsonl" if start.lstrip().startswith("{") else "csv"


def read_feed(file: FeedFile, spec: RunSpec, batch_rows: int, report: FeedReport) -> Iterator[list[object]]:
    """Batches of raw rows, RowErrors among them. What goes wrong with the file itself is put into `report`."""
    fs, path = fsspec.core.url_to_fs(file.url)
    try:
        if not fs.exists(path):
            report.status, report.problem = "missing", "there is no such file"
            return
        maker = _Maker(file, _version(fs, path, file, spec))
        with fs.open(path, "rb") as opened:
            buffered = uncompressed(opened)
            text, report.encoding = decoded(buffered, file.settings.encoding)
            kind = _format(file, buffered.peek(64)[:64].decode("ascii", "ignore"))
            rows = _xml(text, maker, report.repairs) if kind == "xml" else _READERS[kind](text, maker)
            yield from _batched(rows, batch_rows, report)
    except _FILE_ERRORS as error:
        report.status, report.problem = "broken", f"after {report.rows} rows: {error}"


def _batched(rows: Iterator[object], batch_rows: int, report: FeedReport) -> Iterator[list[object]]:
    """Rows in batches. Those before a break of the file are given, then the break is raised."""
    batch: list[object] = []
    try:
        for row in rows:
            batch.append(row)
            report.rows += 1
            if len(batch) == batch_rows:
                yield batch
                batch = []
    except _FILE_ERRORS:
        if batch:
            yield batch
        raise
    if batch:
        yield batch


def _version(fs: Any, path: str, file: FeedFile, spec: RunSpec) -> datetime:
    """When the rows of a file without times of their own were changed: the snapshot's day, or when the file was written.

    A file written a while after the interval's end counts for it; one of a later day is out of reach, as its rows' state of
    then is gone.
    """
    last = spec.interval_end - timedelta(microseconds=1)
    if file.snapshot:
        return last
    written: datetime = fs.modified(path)
    written = written.replace(tzinfo=UTC) if written.tzinfo is None else written.astimezone(UTC)
    late = spec.interval_end + timedelta(hours=spec.settings.pipeline.catalog.lateness_hours)
    return min(written, last) if written < late else written
