"""Atomic Parquet parts and JSON manifests under one URL (local folder or object store, through fsspec).

A part is written whole or not at all: on a local disk by writing a hidden file beside it, syncing it and renaming it; on
an object store one PUT is atomic already. Readers skip what they cannot open only when asked to (`valid_parts`), so that
a torn part is redone by the stage that owns it and is an error everywhere else.
"""

from __future__ import annotations

import dataclasses
import io
import json
import math
import os
import posixpath
import re
import types
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from enum import Enum
from functools import cache
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.implementations.local import LocalFileSystem

Row = TypeVar("Row")
_SURROGATES = re.compile("[\ud800-\udfff]")
Paths = list[str]  # named before Store, whose method `list` hides the builtin


class TornPartError(RuntimeError):
    """A part or manifest cannot be read: it was cut short, changed from outside, or written by another version."""


def _arrow_type(hint: Any) -> pa.DataType:
    if get_origin(hint) in (Union, types.UnionType):
        hint = next(arg for arg in get_args(hint) if arg is not type(None))
    if get_origin(hint) is tuple:
        return pa.list_(pa.string())
    if isinstance(hint, type) and issubclass(hint, Enum):
        return pa.string()
    return {
        str: pa.string(),
        int: pa.int64(),
        float: pa.float64(),
        bool: pa.bool_(),
        datetime: pa.timestamp("us", tz="UTC"),
    }[hint]


@cache
def schema_of(record: type) -> pa.Schema:
    """Arrow schema of a record class, one column per field in order; only fields typed `| None` may hold None.

    Raises KeyError for a field type that a record may not have.
    """
    hints = get_type_hints(record)
    return pa.schema(
        pa.field(f.name, _arrow_type(hints[f.name]), nullable=type(None) in get_args(hints[f.name]))
        for f in dataclasses.fields(record)
    )


@cache
def _converters(record: type) -> dict[str, Any]:
    """Fields whose Arrow value differs from the record's: tuples and enums."""
    found: dict[str, Any] = {}
    for name, hint in get_type_hints(record).items():
        if get_origin(hint) is tuple:
            found[name] = tuple
        elif isinstance(hint, type) and issubclass(hint, Enum):
            found[name] = hint
    return found


def to_table(record: type, rows: Sequence[Any], metadata: Mapping[str, str] | None = None) -> pa.Table:
    """Arrow table of records; `metadata` is stored in the file's schema (fingerprints go there).

    A lone surrogate, which UTF-8 cannot hold, becomes U+FFFD: one such row must not cost its whole part.
    """
    schema = schema_of(record).with_metadata(dict(metadata or {}))
    columns = {name: [getattr(row, name) for row in rows] for name in schema.names}
    try:
        return pa.table(columns, schema=schema)
    except UnicodeEncodeError:
        return pa.table({name: [_encodable(v) for v in values] for name, values in columns.items()}, schema=schema)


def _encodable(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_encodable, value))
    return _SURROGATES.sub("\ufffd", value) if isinstance(value, str) else value


def plain_json(value: Any) -> Any:
    """The value as strict JSON has it: NaN and infinities become null, NumPy scalars numbers, sets sorted lists."""
    if isinstance(value, Mapping):
        return {str(key): plain_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_json(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(map(plain_json, value))
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, (str, int)):
        return value
    return plain_json(value.item()) if hasattr(value, "item") else str(value)


class Store:
    """A folder of partitions at `url`. All paths given to its methods are relative to it."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self.fs, self.root = fsspec.core.url_to_fs(self.url)

    def child(self, *parts: str) -> Store:
        return Store(posixpath.join(self.url, *parts))

    def path(self, *parts: str) -> str:
        """Absolute path within the file system, for messages and logs."""
        return posixpath.join(self.root, *parts)

    def exists(self, path: str) -> bool:
        return bool(self.fs.exists(self.path(path)))

    def remove(self, path: str) -> None:
        """Removes a file or a whole folder; does nothing where there is none."""
        if self.exists(path):
            self.fs.rm(self.path(path), recursive=True)

    def write_bytes(self, path: str, data: bytes) -> None:
        """Writes a file whole or not at all. Raises OSError (a full disk, say) and then leaves the old file as it was."""
        target = self.path(path)
        if not isinstance(self.fs, LocalFileSystem):
            self.fs.pipe_file(target, data)
            return
        os.makedirs(os.path.dirname(target), exist_ok=True)
        hidden = os.path.join(os.path.dirname(target), f".{os.path.basename(target)}.{uuid.uuid4().hex}")
        try:
            with open(hidden, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(hidden, target)
        except BaseException:
            if os.path.exists(hidden):
                os.unlink(hidden)
            raise

    def write_json(self, path: str, value: object) -> None:
        """Writes strict JSON (see `plain_json`) whole or not at all."""
        text = json.dumps(plain_json(value), indent=2, sort_keys=True, ensure_ascii=False)
        self.write_bytes(path, text.encode("utf-8", "backslashreplace"))  # a lone surrogate as its JSON escape

    def read_json(self, path: str) -> Any:
        """The file's value, or None where there is no such file. Raises TornPartError when it is not JSON."""
        try:
            return json.loads(self.fs.cat_file(self.path(path)))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise TornPartError(f"{self.path(path)} is not JSON: {error}; remove it and run its stage again") from error

    def list(self, folder: str, suffix: str = ".parquet") -> Paths:
        """Sorted relative paths of the files right below `folder` that end in `suffix`; hidden files are left out."""
        self.fs.invalidate_cache(self.path(folder))  # object stores remember listings; other workers write here, too
        if not self.exists(folder):
            return []
        names = (posixpath.basename(entry) for entry in self.fs.ls(self.path(folder), detail=False))
        return [posixpath.join(folder, n) for n in sorted(names) if n.endswith(suffix) and not n.startswith(".")]

    def write_part(
        self, path: str, record: type[Row], rows: Sequence[Row], metadata: Mapping[str, str] | None = None
    ) -> None:
        """Writes one Parquet part (zstd) atomically."""
        self.write_table(path, to_table(record, rows, metadata))

    def write_table(self, path: str, table: pa.Table) -> None:
        """Writes one Parquet part (zstd) atomically from an Arrow table that has a record's schema."""
        buffer = io.BytesIO()
        pq.write_table(table, buffer, compression="zstd")
        self.write_bytes(path, buffer.getvalue())

    def part_metadata(self, path: str) -> dict[str, str]:
        """The metadata given to `write_part`. Raises TornPartError when the part cannot be read."""
        try:
            with self.fs.open(self.path(path), "rb") as file:
                found = pq.read_schema(file).metadata or {}
        except (pa.ArrowInvalid, OSError) as error:
            raise TornPartError(f"{self.path(path)} is not a whole Parquet file: {error}") from error
        return {k.decode(): v.decode() for k, v in found.items() if not k.startswith(b"ARROW:")}

    def valid_parts(self, folder: str, **metadata: str) -> Paths:
        """Parts of `folder` that can be read and carry this metadata; the others are left out."""
        kept = []
        for path in self.list(folder):
            try:
                found = self.part_metadata(path)
            except TornPartError:
                continue
            if all(found.get(key) == value for key, value in metadata.items()):
                kept.append(path)
        return kept

    def read_rows(self, paths: str | Iterable[str], record: type[Row], batch_rows: int = 4096) -> Iterator[Row]:
        """Streams records from a folder or a list of parts, in order, holding one batch at a time.

        A field that an older version's part lacks takes its default. Raises TornPartError when a part cannot be read.
        """
        convert = _converters(cast("type", record))
        fields = dataclasses.fields(record)  # type: ignore[arg-type]
        needed = {f.name for f in fields if f.default is dataclasses.MISSING}
        for path in self.list(paths) if isinstance(paths, str) else paths:
            try:
                with self.fs.open(self.path(path), "rb") as file:
                    part = pq.ParquetFile(file)
                    names = [f.name for f in fields if f.name in part.schema_arrow.names]
                    if missing := sorted(needed.difference(names)):
                        raise TornPartError(f"{self.path(path)} was written by another version: it has no {missing}")
                    for batch in part.iter_batches(batch_size=batch_rows, columns=names):
                        for values in batch.to_pylist():
                            for name in convert.keys() & values.keys():
                                values[name] = convert[name](values[name])
                            yield record(**values)
            except FileNotFoundError:
                raise
            except (pa.ArrowInvalid, OSError) as error:
                raise TornPartError(f"{self.path(path)} is not a whole Parquet file: {error}") from error

    def read_batches(
        self, paths: str | Iterable[str], columns: Sequence[str], batch_rows: int = 8192
    ) -> Iterator[pa.RecordBatch]:
        """Streams a folder, or a list of parts, as Arrow batches of these columns, in this order.

        Raises TornPartError when a part cannot be read or lacks a column.
        """
        for path in self.list(paths) if isinstance(paths, str) else paths:
            try:
                with self.fs.open(self.path(path), "rb") as file:
                    for batch in pq.ParquetFile(file).iter_batches(batch_size=batch_rows, columns=list(columns)):
                        yield batch.select(list(columns))
            except (pa.ArrowInvalid, OSError, KeyError) as error:
                raise TornPartError(
                    f"{self.path(path)} cannot be read with columns {list(columns)}: {error}"
                ) from error


class PartWriter:
    """Buffers records and writes them as numbered parts of at most `rows_per_part`. Use as a context manager.

    On an exception the rows still in the buffer are dropped: their stage writes them again when it is run again.
    """

    def __init__(
        self,
        store: Store,
        folder: str,
        record: type[Any],
        rows_per_part: int = 50_000,
        metadata: Mapping[str, str] | None = None,
        first: int = 0,
    ) -> None:
        self.store, self.folder, self.record = store, folder, record
        self.rows_per_part, self.metadata, self.number = rows_per_part, metadata, first
        self.buffer: list[Any] = []
        self.rows = 0

    def write(self, row: Any) -> None:
        self.buffer.append(row)
        self.rows += 1
        if len(self.buffer) >= self.rows_per_part:
            self.flush()

    def flush(self) -> None:
        if self.buffer:
            self.store.write_part(
                f"{self.folder}/part-{self.number:05d}.parquet", self.record, self.buffer, self.metadata
            )
            self.buffer, self.number = [], self.number + 1

    def __enter__(self) -> PartWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.flush()
