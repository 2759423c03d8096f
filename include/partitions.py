"""Atomic Parquet parts and JSON manifests under one URL (local folder or object store, through fsspec).

A part is written whole or not at all: on a local disk by writing a hidden file beside it, syncing it and renaming it; on
an object store one PUT is atomic already. Readers skip what they cannot open only when asked to (`valid_parts`), so that
a torn part is redone by the stage that owns it and is an error everywhere else.
"""

from __future__ import annotations

import dataclasses
import io
import json
import os
import posixpath
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
Paths = list[str]  # named before Store, whose method `list` hides the builtin


class TornPartError(RuntimeError):
    """A Parquet part cannot be read: it was cut short or changed by something other than this project."""


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
    """Arrow schema of a record class, one column per field in order.

    Raises KeyError for a field type that a record may not have.
    """
    hints = get_type_hints(record)
    return pa.schema([(f.name, _arrow_type(hints[f.name])) for f in dataclasses.fields(record)])


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
    """Arrow table of records; `metadata` is stored in the file's schema (fingerprints go there)."""
    schema = schema_of(record).with_metadata(dict(metadata or {}))
    return pa.table({name: [getattr(row, name) for row in rows] for name in schema.names}, schema=schema)


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
        self.write_bytes(path, json.dumps(value, indent=2, sort_keys=True, default=str, ensure_ascii=False).encode())

    def read_json(self, path: str) -> Any:
        """The file's value, or None where there is no such file."""
        try:
            return json.loads(self.fs.cat_file(self.path(path)))
        except FileNotFoundError:
            return None

    def list(self, folder: str, suffix: str = ".parquet") -> Paths:
        """Sorted relative paths of the files right below `folder` that end in `suffix`; hidden files are left out."""
        if not self.exists(folder):
            return []
        names = (posixpath.basename(entry) for entry in self.fs.ls(self.path(folder), detail=False))
        return [posixpath.join(folder, n) for n in sorted(names) if n.endswith(suffix) and not n.startswith(".")]

    def write_part(
        self, path: str, record: type[Row], rows: Sequence[Row], metadata: Mapping[str, str] | None = None
    ) -> None:
        """Writes one Parquet part (zstd) atomically."""
        buffer = io.BytesIO()
        pq.write_table(to_table(record, rows, metadata), buffer, compression="zstd")
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

        Raises TornPartError when a part cannot be read.
        """
        convert = _converters(cast("type", record))
        names = [f.name for f in dataclasses.fields(record)]  # type: ignore[arg-type]
        for path in self.list(paths) if isinstance(paths, str) else paths:
            try:
                with self.fs.open(self.path(path), "rb") as file:
                    for batch in pq.ParquetFile(file).iter_batches(batch_size=batch_rows, columns=names):
                        for values in batch.to_pylist():
                            for name, change in convert.items():
                                values[name] = change(values[name])
                            yield record(**values)
            except pa.ArrowInvalid as error:
                raise TornPartError(f"{self.path(path)} is not a whole Parquet file: {error}") from error


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
