"""Work items by shard, with one memory budget for all of them, and the bins that share out the shards."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from include.partitions import Store, schema_of
from include.records import WorkItem
from include.runs import Run

BUFFERED_ROWS = 40_000


def shard_count(rows: int, rows_per_shard: int, max_bins: int) -> int:
    """Shards for an expected number of rows: enough to fill the bins evenly, few enough for parts of a fair size."""
    return max(1, min(-(-rows // rows_per_shard), 4 * max_bins))


class ShardWriter:
    """Sends rows of WorkItem, as plain tuples in its field order, to the shard of their text_id."""

    def __init__(
        self, store: Store, task: str, shards: int, first_part: int = 0, buffered_rows: int = BUFFERED_ROWS
    ) -> None:
        self.store, self.task = store, task
        self.rows = [0] * shards
        self._buffers: list[list[tuple[Any, ...]]] = [[] for _ in range(shards)]
        self._parts = [first_part] * shards
        self._buffered, self._limit = 0, buffered_rows
        self._schema = schema_of(WorkItem)
        self._text_id = self._schema.names.index("text_id")

    def write(self, row: tuple[Any, ...]) -> None:
        shard = int(row[self._text_id][:8], 16) % len(self.rows)
        self._buffers[shard].append(row)
        self.rows[shard] += 1
        self._buffered += 1
        if self._buffered >= self._limit:
            self.flush()

    def flush(self) -> None:
        """Writes what is buffered, one part per shard that has rows."""
        for shard, buffer in enumerate(self._buffers):
            if buffer:
                columns = [pa.array(column, field.type) for column, field in zip(zip(*buffer), self._schema)]  # noqa: B905
                path = f"{Run.work(self.task, shard)}/part-{self._parts[shard]:05d}.parquet"
                self.store.write_table(path, pa.Table.from_arrays(columns, schema=self._schema))
                self._parts[shard] += 1
                self._buffers[shard] = []
        self._buffered = 0


def plan_bins(rows: Sequence[int], *, max_bins: int, min_rows_per_bin: int) -> tuple[list[list[int]], list[int]]:
    """Shards of each bin and the rows of each bin: longest shard first into the emptiest bin.

    At most `max_bins` bins, and no more than leave each `min_rows_per_bin` rows, so that an engine's start pays.
    """
    filled = sorted((n, shard) for shard, n in enumerate(rows) if n)
    total = sum(rows)
    if not total:
        return [], []
    count = max(1, min(max_bins, len(filled), total // min_rows_per_bin))
    heap = [(0, index) for index in range(count)]
    bins: list[list[int]] = [[] for _ in range(count)]
    for n, shard in reversed(filled):
        load, index = heapq.heappop(heap)
        bins[index].append(shard)
        heapq.heappush(heap, (load + n, index))
    bins = [sorted(shards) for shards in bins]
    return bins, [sum(rows[shard] for shard in shards) for shards in bins]
