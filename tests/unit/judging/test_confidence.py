"""The score read from token alternatives."""

import math

import pytest

from include.generation.engine import TokenLogprob
from include.judging.confidence import clean_probability


def token(text):
    return alternatives(text, {text: 1.0})


def alternatives(text, shares):
    return TokenLogprob(text, math.log(shares[text]), {k: math.log(p) for k, p in shares.items()})


PLAIN = [
    token(t) for t in ('{"', "unsupported", '":', " []", ', "', "contradictory", '":', " []", ', "omitted": [], "')
]


def test_product_of_the_three_decisions():
    tokens = [
        *PLAIN[:3],
        alternatives(" []", {" []": 0.8, ' ["': 0.2}),
        *PLAIN[4:7],
        alternatives("[]", {"[]": 0.5, '["': 0.5}),
        *PLAIN[8:],
        token("verdict"),
        token('": "'),
        alternatives("pass", {"pass": 0.9, "fail": 0.1}),
        token('"}'),
    ]
    assert clean_probability(tokens) == pytest.approx(0.8 * 0.5 * 0.9)


def test_a_decision_spread_over_two_tokens():
    tokens = [
        *PLAIN[:3],
        alternatives("[", {"[": 0.5, "[]": 0.25, '["': 0.25}),
        alternatives('"', {'"': 0.6, "]": 0.4}),
        token('holds 2 l"], "'),
        *PLAIN[5:],
        token("verdict"),
        token('":'),
        alternatives('"', {'"': 1.0}),
        alternatives("fail", {"fail": 0.75, "pass": 0.25}),
        token('"}'),
    ]
    assert clean_probability(tokens) == pytest.approx((0.25 + 0.5 * 0.4) * 1.0 * 0.25)


def test_other_tokens_do_not_count():
    tokens = [
        *PLAIN,
        token("verdict"),
        token('": "'),
        alternatives("pass", {"pass": 0.3, "fail": 0.1, "Sure": 0.6}),
    ]
    assert clean_probability(tokens) == pytest.approx(0.75)


def test_no_score_without_all_decisions_or_without_probabilities():
    assert clean_probability(PLAIN) is None
    assert clean_probability([]) is None
    assert clean_probability([TokenLogprob('{"', -0.1, {})]) is None
