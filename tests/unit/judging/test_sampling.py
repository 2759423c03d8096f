"""Strata, allocation and the seeded draw."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from include.judging.sampling import Draw, allocate, collapse, draw_key

COUNTS = st.dictionaries(
    st.tuples(st.sampled_from("abc"), st.sampled_from("xy"), st.sampled_from("12345")), st.integers(1, 500), min_size=1
)


@given(COUNTS, st.integers(1, 300))
def test_allocation_draws_what_was_asked_for_and_never_more_than_there_is(counts, size):
    drawn = allocate(counts, size)
    assert sum(drawn.values()) == min(size, sum(counts.values()))
    assert all(0 < number <= counts[stratum] for stratum, number in drawn.items())


@given(COUNTS, st.integers(4, 300))
def test_every_listing_is_in_a_stratum_that_is_drawn_from(counts, size):
    targets = collapse(counts, size)
    totals = Counter()
    for stratum, count in counts.items():
        totals[targets[stratum]] += count
    assert set(allocate(totals, size)) == set(totals)


def test_large_strata_stay_apart_and_small_ones_give_up_the_category_first():
    counts = {("m1", "en", "shoes"): 500, ("m1", "en", "hats"): 3, ("m1", "en", "bags"): 60, ("m2", "de", "hats"): 2}
    targets = collapse(counts, 60)
    assert targets[("m1", "en", "shoes")] == ("m1", "en", "shoes")
    assert targets[("m1", "en", "bags")] == ("m1", "en", "bags")
    assert targets[("m2", "de", "hats")] == ("*", "*", "*") == targets[("m1", "en", "hats")]


def test_census_draws_every_listing():
    counts = {("a", "x", "1"): 7, ("b", "x", "1"): 2}
    assert allocate(counts, 1000) == counts


def test_the_draw_is_the_same_in_any_order_and_another_for_another_seed():
    rows = [f"listing-{i}" for i in range(500)]
    stratum = ("m", "en", "c")

    def drawn(order, seed):
        draw = Draw({stratum: 500}, 40)
        for row in order:
            draw.offer(stratum, draw_key(seed, "m", row), row)
        return draw.rows()[stratum]

    assert drawn(rows, "11/title") == drawn(reversed(rows), "11/title")
    assert set(drawn(rows, "11/title")) != set(drawn(rows, "12/title"))


def test_every_listing_has_the_same_chance():
    """400 seeds, 20 of 100 listings each: counts follow a binomial with mean 80 and standard deviation 8."""
    stratum, hits = ("m", "en", "c"), Counter()
    for seed in range(400):
        draw = Draw({stratum: 100}, 20)
        for row in range(100):
            draw.offer(stratum, draw_key(str(seed), str(row)), row)
        hits.update(draw.rows()[stratum])
    assert sum(hits.values()) == 400 * 20
    assert min(hits[row] for row in range(100)) > 80 - 5 * 8
    assert max(hits.values()) < 80 + 5 * 8


def test_a_stratum_that_was_not_counted_is_left_out():
    draw = Draw({("m", "en", "c"): 9}, 9)
    draw.offer(("m", "en", "unknown"), 1, "row")
    assert draw.rows() == {("m", "en", "c"): []}


@given(COUNTS, st.integers(1, 300))
def test_weights_of_the_drawn_texts_add_up_to_each_stratum(counts, size):
    draw = Draw(counts, size)
    for stratum, count in counts.items():
        for number in range(count):
            draw.offer(stratum, draw_key("s", *stratum, str(number)), f"text {number % 7}")
    weights, drawn = Counter(), Counter()
    for stratum, weight, rows in draw.by_text(lambda row: row):
        weights[stratum] += weight
        drawn[stratum] += len(rows)
    assert drawn == draw.sizes
    assert weights == pytest.approx(dict(draw.totals))
    assert sum(weights.values()) == pytest.approx(sum(counts.values()))
