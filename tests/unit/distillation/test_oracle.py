"""The oracle on texts of every kind of fault, and on copy that says the same in other words."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from include.distillation.oracle import check
from include.distillation.world import Product, Quantity
from include.records import Listing

KETTLE = Product(
    category="kettle",
    locale="en-US",
    noun="electric kettle",
    brand="Arvello",
    model="B34",
    colour="navy",
    material="stainless_steel",
    quantities=(Quantity("capacity", 1.7, "l"), Quantity("weight", 0.9, "kg")),
    features=("autooff",),
    uses=("office",),
)
LISTING = Listing(
    merchant_id="m",
    listing_id="1",
    title="ARVELLO Electric Kettle B34 | 1.7L | Navy Blue",
    description="Body in stainless steel. Plus: auto shut-off! A must for the office. Weight approx. 0.9 kg. Since 2009.",
    brand="Arvello",
    locale="en-US",
    attributes=json.dumps({"Color": "navy blue"}),
    source_updated_at=datetime(2026, 1, 1, tzinfo=UTC),
)
WEBCAM = Product(
    category="webcam",
    locale="de-DE",
    noun="Webcam",
    gender="f",
    brand="Drumlin",
    colour="white",
    quantities=(Quantity("width", 70.0, "mm"),),
)
GERMAN = Listing(
    merchant_id="m",
    listing_id="2",
    title="DRUMLIN WEBCAM WEISS",
    description="Breite ca. 70mm",
    locale="de-DE",
    source_updated_at=datetime(2026, 1, 1, tzinfo=UTC),
)


@pytest.mark.parametrize(
    "text",
    [
        "Arvello B34 Stainless Steel Electric Kettle, 1.7 L",
        "The Arvello B34 is an electric kettle made of stainless steel. It holds 1.7 L and weighs 0.9 kg.",
        "This navy kettle switches off automatically. Use it for the office.",
        "Electric Kettle by ARVELLO, 1.7 liters, steel",
    ],
)
def test_true_copy_has_no_fault(text: str) -> None:
    found = check(KETTLE, LISTING, text)
    assert (found.unsupported, found.contradictory, found.omitted) == ((), (), ())


@pytest.mark.parametrize(
    ("text", "unsupported", "contradictory"),
    [
        ("Arvello Electric Kettle, 1.5 L", (), ("1.5 L",)),
        ("Arvello Electric Kettle, 17 L", (), ("17 L",)),
        ("Arvello Electric Kettle, 1.7 kg", (), ("1.7 kg",)),
        ("The kettle weighs 1.7 L.", (), ("1.7 L",)),
        ("Arvello Electric Kettle, 2200 W", ("2200 W",), ()),
        ("Arvello Red Electric Kettle", (), ("Red",)),
        ("Arvello Glass Electric Kettle", (), ("Glass",)),
        ("Hexworth Electric Kettle", (), ("Hexworth",)),
        ("Arvelo Electric Kettle", (), ("Arvelo",)),
        ("Arvello B43 Electric Kettle", (), ("B43",)),
        ("Arvello Electric Kettle. It is dishwasher safe.", ("is dishwasher safe",), ()),
        ("Arvello Electric Kettle for camping", ("camping",), ()),
        ("Arvello Electric Kettle with a lifetime guarantee", ("lifetime guarantee",), ()),
        ("Award-winning Arvello Electric Kettle", ("Award-winning",), ()),
    ],
)
def test_each_kind_of_fault_is_quoted(text: str, unsupported: tuple[str, ...], contradictory: tuple[str, ...]) -> None:
    found = check(KETTLE, LISTING, text)
    assert (found.unsupported, found.contradictory) == (unsupported, contradictory)
    assert not found.faithful


def test_a_copy_that_does_not_name_the_product_omits_it() -> None:
    assert check(KETTLE, LISTING, "Arvello B34, 1.7 L").omitted == ("electric kettle",)


def test_german_forms_and_the_right_attribute() -> None:
    assert check(WEBCAM, GERMAN, "Diese Webcam von Drumlin kommt in Weiß. Sie ist 70 mm breit.").faithful
    assert check(WEBCAM, GERMAN, "Diese weiße Webcam ist 70 mm breit.").faithful
    assert check(WEBCAM, GERMAN, "Die Webcam ist 70 mm dick.").faithful is False
    assert check(WEBCAM, GERMAN, "Die Webcam ist 70 mm hoch.").contradictory == ("70 mm",)
    assert check(WEBCAM, GERMAN, "Die Webcam ist schwarz.").contradictory == ("schwarz",)
