"""Raw rows into listings: what is taken, repaired, refused."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from include.extraction.cleaning import clean
from include.extraction.listings import RowError, attributes_json, to_listing, to_utc

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
GOOD = ["m1", "l1", "Mug", "A mug", None, None, None, None, "2026-03-01T12:00:00Z"]


def parse(**changes):
    names = [
        "merchant_id",
        "listing_id",
        "title",
        "description",
        "brand",
        "category",
        "locale",
        "attributes",
        "updated",
    ]
    raw = [changes.get(name, value) for name, value in zip(names, GOOD, strict=True)]
    seen: Counter[str] = Counter()
    return to_listing(raw, absent_time=NOON, default_locale="en-US", seen=seen), seen


def test_absent_text_is_empty_and_the_locale_has_a_default():
    listing, seen = parse()
    assert listing == ("m1", "l1", "Mug", "A mug", "", "", "en-US", "{}", NOON)
    assert not seen


def test_numbers_and_bytes_are_text():
    listing, _ = parse(listing_id=Decimal("42"), merchant_id=7.0, title="Größe".encode())
    assert listing[:3] == ("7", "42", "Größe")


def test_cleaning_is_counted_by_row():
    _, seen = parse(title="a\0b", description="c\0d\u200b")
    assert seen == {"nul": 1, "zero_width": 1}


@given(st.lists(st.text("ab |\u200bé\n\u0301<", max_size=12), min_size=5, max_size=5))
def test_a_row_told_in_one_pass_is_cleaned_as_its_fields_are(texts):
    listing, _ = parse(**dict(zip(["title", "description", "brand", "category", "locale"], texts, strict=True)))
    *fields, locale = (clean(text) for text in texts)
    assert listing[2:7] == (*fields, locale or "en-US")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"listing_id": None}, "missing_id"),
        ({"merchant_id": " \u200b"}, "missing_id"),
        ({"listing_id": "x" * 256}, "id_too_long"),
        ({"title": "Mug \ud83d"}, "lone_surrogate"),
        ({"title": b"M\xfcg"}, "lone_surrogate"),  # not UTF-8
        ({"attributes": {"Color": "\udc00"}}, "lone_surrogate"),
        ({"description": "x" * 100_001}, "oversized_text"),
        ({"updated": "yesterday"}, "bad_updated_at"),
        ({"updated": datetime.max.replace(tzinfo=UTC).isoformat()[:-6] + "-08:00"}, "bad_updated_at"),
    ],
)
def test_refused_with_a_reason(changes, reason):
    with pytest.raises(RowError) as error:
        parse(**changes)
    assert error.value.reason == reason


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("2026-03-01T22:00-08:00", datetime(2026, 3, 2, 6, tzinfo=UTC)),
        ("2026-03-01 12:00:00", NOON),  # without a zone: UTC
        (datetime(2026, 3, 1, 12), NOON),  # noqa: DTZ001
        (date(2026, 3, 1), datetime(2026, 3, 1, tzinfo=UTC)),
        ("Sun, 01 Mar 2026 13:00:00 +0100", NOON),
        (None, NOON),
        ("", NOON),
    ],
)
def test_times_become_utc(value, expected):
    found = to_utc(value, NOON)
    assert found == expected
    assert found.utcoffset().total_seconds() == 0


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ('{"b": 1, "a": "x\\u0000"}', {"a": "x", "b": "1"}),
        ({"Waterproof": True, "Sizes": ["S", "M"], "Empty": None, "Deep": {"x": 1}}, {"Waterproof": "yes", "Sizes": "S, M", "Deep": '{"x": 1}'}),
        ("Color: red", {"details": "Color: red"}),
        ("[1, 2]", {"details": "1, 2"}),
        ("{}", {}),
        ("", {}),
    ],
)  # fmt: skip
def test_attributes(value, expected):
    text = attributes_json(value, set())
    assert json.loads(text) == expected
    assert list(json.loads(text)) == sorted(expected)


@given(st.dictionaries(st.text('ab" \\é', max_size=4), st.text('ab" \\é\n', max_size=6), max_size=3), st.booleans())
def test_attributes_as_json_text_and_as_a_mapping_are_equal(value, ascii_only):
    assert attributes_json(json.dumps(value, ensure_ascii=ascii_only), set()) == attributes_json(value, set())
