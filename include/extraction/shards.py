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
    """Sends rows of WorkItem, as plain tuples in its field order, to the shard of their text_id.

    Each route has `shards` shards of its own, one route's after the other's.
    """

    def __init__(
        self,
        store: Store,
        task: str,
        shards: int,
        first_part: int = 0,
        buffered_rows: int = BUFFERED_ROWS,
        routes: int = 1,
    ) -> None:
        self.store, self.task, self.shards = store, task, shards
        self.rows = [0] * shards * routes
        self._buffers: list[list[tuple[Any, ...]]] = [[] for _ in self.rows]
        self._parts = [first_part] * len(self.rows)
        self._buffered, self._limit = 0, buffered_rows
        self._schema = schema_of(WorkItem)
        self._text_id = self._schema.names.index("text_id")

    def write(self, row: tuple[Any, ...], route: int = 0) -> None:
        shard = route * self.shards + int(row[self._text_id][:8], 16) % self.shards
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


def plan_routes(
    rows: Sequence[int], *, max_bins: int, min_rows_per_bin: Sequence[int]
) -> tuple[list[list[int]], list[int], list[int]]:
    """Shards, rows and route of each bin: `rows` are those of all routes' shards, and no bin is of two routes.

    `min_rows_per_bin` is by route. Each route gets its part of `max_bins` by its rows, and one bin at least.
    """
    bins: list[list[int]] = []
    sizes: list[int] = []
    owners: list[int] = []
    routes = len(min_rows_per_bin)
    shards = len(rows) // routes
    for route, least in enumerate(min_rows_per_bin):
        own = rows[route * shards : (route + 1) * shards]
        fair = max_bins * sum(own) // max(1, sum(rows))
        found, loads = plan_bins(own, max_bins=max(1, fair), min_rows_per_bin=least)
        bins += [[route * shards + shard for shard in shards_of_bin] for shards_of_bin in found]
        sizes += loads
        owners += [route] * len(found)
    return bins, sizes, owners
