"""Shards and bins."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from include.extraction.shards import ShardWriter, plan_bins, plan_routes, shard_count
from include.partitions import Store
from include.records import WorkItem
from tests.integration.warehouse_runs import DAY, moment


def test_shard_count():
    assert shard_count(0, 20_000, 64) == 1
    assert shard_count(20_001, 20_000, 64) == 2
    assert shard_count(10**9, 20_000, 64) == 256


@given(st.lists(st.integers(0, 5_000), max_size=60), st.integers(1, 20), st.integers(1, 4_000))
def test_bins_hold_every_shard_once_and_pay_for_an_engine(rows, max_bins, min_rows):
    bins, sizes = plan_bins(rows, max_bins=max_bins, min_rows_per_bin=min_rows)
    assert sorted(s for shards in bins for s in shards) == [s for s, n in enumerate(rows) if n]
    assert sizes == [sum(rows[s] for s in shards) for shards in bins]
    assert len(bins) <= max_bins
    assert len(bins) <= max(1, sum(rows) // min_rows)
    assert all(sizes)


@given(
    st.integers(1, 20).flatmap(lambda n: st.lists(st.integers(0, 5_000), min_size=2 * n, max_size=2 * n)),
    st.integers(2, 20),
)
def test_bins_are_of_one_route_and_together_no_more_than_allowed(rows, max_bins):
    bins, sizes, owners = plan_routes(rows, max_bins=max_bins, min_rows_per_bin=[1, 2_000])
    assert sorted(s for shards in bins for s in shards) == [s for s, n in enumerate(rows) if n]
    assert sizes == [sum(rows[s] for s in shards) for shards in bins]
    assert [{2 * s // len(rows) for s in shards} for shards in bins] == [{owner} for owner in owners]
    assert len(bins) <= max_bins


def test_one_route_is_planned_as_ever():
    rows = [7, 1, 0, 2, 5, 3]
    assert plan_routes(rows, max_bins=3, min_rows_per_bin=[2])[:2] == plan_bins(rows, max_bins=3, min_rows_per_bin=2)


def test_longest_first_balances():
    bins, sizes = plan_bins([7, 1, 6, 2, 5, 3], max_bins=2, min_rows_per_bin=1)
    assert sorted(sizes) == [12, 12]
    assert len(bins) == 2


def test_equal_texts_share_a_shard_and_nothing_is_lost(tmp_path):
    writer = ShardWriter(Store(str(tmp_path)), "title", shards=4, buffered_rows=10)
    for i in range(95):
        text_id = f"{i % 30:032x}"[::-1]
        writer.write(("m", f"l{i}", "t", "d", "", "", "en-US", "{}", moment(DAY), text_id, "c", "s", "h"))
    writer.flush()
    shards_of: dict[str, set[int]] = {}
    found = []
    for shard in range(4):
        for row in Store(str(tmp_path)).read_rows(f"work/title/shard-{shard:05d}", WorkItem):
            shards_of.setdefault(row.text_id, set()).add(shard)
            found.append(row.listing_id)
    assert sorted(found) == sorted(f"l{i}" for i in range(95))
    assert all(len(shards) == 1 for shards in shards_of.values())
    assert sum(writer.rows) == 95
