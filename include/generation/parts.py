"""Generation parts of one bin: what a retry may keep, and the writer that fills the rest in completion order."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from include.partitions import Store, TornPartError
from include.records import Generation

log = logging.getLogger(__name__)


def _name(shard: int, number: int) -> str:
    return f"shard-{shard:05d}-{number:05d}.parquet"


def drop_invalid(store: Store, folder: str, fingerprint: str) -> list[str]:
    """Removes parts that are torn or of another fingerprint; returns the valid ones."""
    kept, dropped = [], 0
    for path in store.list(folder):
        try:
            valid = store.part_metadata(path).get("fingerprint") == fingerprint
        except TornPartError:
            valid = False
        if valid:
            kept.append(path)
        else:
            store.remove(path)
            dropped += 1
    if dropped:
        log.info("%d parts were torn or made with other settings and are made again", dropped)
    return kept


def parts_of(paths: Iterable[str], shard: int) -> list[str]:
    """The parts of one shard among a bin's parts."""
    prefix = f"/shard-{shard:05d}-"
    return [path for path in paths if prefix in path]


@dataclass
class _Buffer:
    rows: list[Generation] = field(default_factory=list)
    since: float = 0.0


class GenerationParts:
    """Buffers answers by shard and writes a part every `rows_per_part` rows, or when a row has waited `seconds_per_part`.

    An answer on disk survives whatever ends the process; an answer in a buffer is made again.
    """

    def __init__(
        self,
        store: Store,
        folder: str,
        fingerprint: str,
        existing: Iterable[str],
        rows_per_part: int,
        seconds_per_part: float,
    ) -> None:
        self.store, self.folder, self.fingerprint = store, folder, fingerprint
        self.rows_per_part, self.seconds_per_part = rows_per_part, seconds_per_part
        self._numbers: dict[int, int] = {}
        for path in existing:
            _, shard, number = path.rsplit("/", 1)[1].removesuffix(".parquet").split("-")
            self._numbers[int(shard)] = max(self._numbers.get(int(shard), 0), int(number) + 1)
        self._buffers: dict[int, _Buffer] = {}

    def write(self, shard: int, row: Generation) -> None:
        buffer = self._buffers.setdefault(shard, _Buffer())
        if not buffer.rows:
            buffer.since = time.monotonic()
        buffer.rows.append(row)
        if len(buffer.rows) >= self.rows_per_part:
            self.flush(shard)
        self.flush_old()

    def flush_old(self) -> None:
        """Writes what has waited long enough; cheap enough to call for every answer."""
        now = time.monotonic()
        for shard, buffer in list(self._buffers.items()):
            if buffer.rows and now - buffer.since >= self.seconds_per_part:
                self.flush(shard)

    def flush(self, shard: int | None = None) -> None:
        """Writes the buffer of one shard, or all."""
        for key in list(self._buffers) if shard is None else [shard]:
            buffer = self._buffers.pop(key, None)
            if buffer is None or not buffer.rows:
                continue
            number = self._numbers.get(key, 0)
            path = f"{self.folder}/{_name(key, number)}"
            self.store.write_part(path, Generation, buffer.rows, {"fingerprint": self.fingerprint})
            self._numbers[key] = number + 1
