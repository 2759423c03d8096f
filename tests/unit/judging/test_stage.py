"""Drawing one run's sample."""

import pytest

from include.judging.stage import sample
from include.records import SampledText
from tests.unit.judging.conftest import TASK, verdict


def drawn(run):
    return list(run.store.read_rows(run.sampled(TASK), SampledText))


def test_census_of_a_small_night_counts_every_accepted_listing_once(make_run):
    run = make_run([[verdict(i, text_id=f"t{i // 3}") for i in range(12)] + [verdict(99, ok=False)]])
    manifest = sample(run, TASK)
    rows = drawn(run)
    assert manifest["population"] == 12
    assert manifest["texts"] == len({r.text_id for r in rows}) == 4
    assert sum(r.weight for r in rows) == pytest.approx(12)
    assert sum(r.listings for r in rows) == 12


def test_weights_add_up_to_the_population_and_the_sample_to_the_computed_size(make_run):
    bins = [
        [verdict(1000 * b + i, merchant=f"m{i % 3}", locale=("en-US", "de-DE")[i % 2]) for i in range(400)]
        for b in range(3)
    ]
    run = make_run(bins, gate={"baseline": 0.8, "margin": 0.1}, sampling={"max_size": 500})
    manifest = sample(run, TASK)
    assert manifest["status"] == "ok"
    assert manifest["listings"] == manifest["size"] == manifest["needed"] < 500
    assert sum(r.weight for r in drawn(run)) == pytest.approx(1200)
    assert len(manifest["strata"]) == 6


def test_a_second_call_draws_the_same_sample(make_run):
    run = make_run([[verdict(i) for i in range(500)]])
    sample(run, TASK)
    first = drawn(run)
    sample(run, TASK)
    assert drawn(run) == first
    assert len(first) < 500


def test_too_few_for_the_wanted_power_is_underpowered(make_run):
    run = make_run([[verdict(i) for i in range(500)]], gate={"margin": 0.02}, sampling={"max_size": 60})
    manifest = sample(run, TASK)
    assert manifest["status"] == "underpowered"
    assert manifest["needed"] > manifest["size"] == 60
    assert manifest["power"] < 0.8


def test_nothing_accepted_is_empty(make_run):
    run = make_run([[verdict(1, ok=False)]])
    assert sample(run, TASK)["status"] == "empty"
    assert drawn(run) == []


def test_bins_without_finished_validation_are_not_sampled(make_run):
    run = make_run([[verdict(1)], None])
    assert sample(run, TASK)["population"] == 1


def test_a_text_of_two_merchants_is_judged_once_and_weighs_in_both_strata(make_run):
    rows = [verdict(i, merchant=f"m{i % 2}", text_id="same" if i < 10 else None) for i in range(40)]
    run = make_run([rows])
    manifest = sample(run, TASK)
    same = [r for r in drawn(run) if r.text_id == "same"]
    assert {r.stratum for r in same} == {"m0/en-US/mugs", "m1/en-US/mugs"}
    assert manifest["texts"] == len({r.text_id for r in drawn(run)})
