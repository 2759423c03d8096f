"""Accounting: every listing ends in exactly one state, whatever the bins and reasons."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from include.records import AccountingError, RunCounts, TerminalState

counters = st.integers(0, 10**9)
reasons = st.dictionaries(st.sampled_from(["empty", "too_long", "wrong_language", "emoji"]), counters)


@st.composite
def closed_counts(draw: st.DrawFn) -> RunCounts:
    counts = RunCounts(
        unchanged=draw(counters),
        holdout=draw(counters),
        deferred=draw(counters),
        errored=draw(counters),
        accepted=draw(counters),
        quarantined=draw(reasons),
    )
    counts.extracted = (
        counts.unchanged + counts.holdout + counts.deferred + counts.errored + counts.accepted
    ) + counts.quarantined_total
    return counts


@given(closed_counts(), closed_counts())
def test_closed_parts_add_up_to_a_closed_whole(one: RunCounts, other: RunCounts) -> None:
    total = one.extracted + other.extracted
    one.add(other)
    one.check_closed()
    assert one.extracted == total


@given(closed_counts(), st.sampled_from([s.value for s in TerminalState if s != TerminalState.QUARANTINED]))
def test_one_lost_listing_is_noticed(counts: RunCounts, state: str) -> None:
    setattr(counts, state, getattr(counts, state) + 1)
    with pytest.raises(AccountingError, match="nothing was published"):
        counts.check_closed()


def test_a_listing_quarantined_twice_is_noticed() -> None:
    counts = RunCounts(extracted=1)
    counts.quarantine("empty")
    counts.check_closed()
    counts.quarantine("too_long")
    with pytest.raises(AccountingError, match="extracted 1 listings but 2 reached a terminal state"):
        counts.check_closed()


@given(closed_counts())
def test_counts_survive_a_manifest(counts: RunCounts) -> None:
    assert RunCounts.from_dict(json.loads(json.dumps(counts.to_dict()))) == counts


def test_adding_does_not_tie_two_bins_together() -> None:
    total, one_bin = RunCounts(), RunCounts(extracted=2, quarantined={"empty": 2})
    total.add(one_bin)
    total.quarantine("empty")
    assert one_bin.quarantined == {"empty": 2}


def test_every_terminal_state_is_counted() -> None:
    assert {state.value for state in TerminalState} == set(RunCounts().to_dict()) - {"extracted"}
