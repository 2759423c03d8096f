"""The preview shows what a merchant wrote beside what the warehouse has, and reads nothing else."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
import sqlalchemy as sa

from include.reporting.__main__ import main
from include.reporting.preview import preview
from include.settings import load_settings
from include.warehouse.database import engine_for, writing
from include.warehouse.migrate import migrate
from include.warehouse.schema import listing_copy

NOW = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.fixture
def urls(tmp_path: Path) -> dict[str, str]:
    """A catalog of three merchants with two listings each, whose columns have names of their own, and an empty warehouse."""
    catalog, warehouse = f"sqlite:///{tmp_path}/catalog.db", f"sqlite:///{tmp_path}/warehouse.db"
    migrate(warehouse)
    with engine_for(catalog).begin() as connection:
        connection.execute(sa.text("CREATE TABLE offers (merchant_id, listing_id, headline, description)"))
        for merchant in ("acme", "berta", "cadiz"):
            for number in (1, 2):
                row = {"m": merchant, "l": f"L{number}", "t": f"OLD {merchant} {number}!!", "d": None}
                connection.execute(sa.text("INSERT INTO offers VALUES (:m, :l, :t, :d)"), row)
    return {"catalog_url": catalog, "warehouse_url": warehouse}


def publish(url: str, merchant: str, listing: str, task: str, text: str | None, **changes: object) -> None:
    names = (
        "locale",
        "model",
        "engine_profile",
        "template_version",
        "text_id",
        "content_hash",
        "staleness_key",
        "run_id",
    )
    row = dict.fromkeys(names, "x") | {"locale": "de-DE", "arm": "treatment", "text": text, "published_at": NOW}
    row |= {"merchant_id": merchant, "listing_id": listing, "enhancement_task": task}
    row |= {"source_updated_at": NOW, "extracted_at": NOW} | changes
    with writing(url) as connection:
        connection.execute(listing_copy.insert().values(row))


def mapped_settings() -> object:
    settings = load_settings()
    catalog = settings.pipeline.catalog.model_copy(update={"table": "offers", "columns": {"title": "headline"}})
    return settings.model_copy(update={"pipeline": settings.pipeline.model_copy(update={"catalog": catalog})})


def test_five_rows_come_from_as_many_merchants_as_there_are(urls: dict[str, str]) -> None:
    for merchant in ("acme", "berta", "cadiz"):
        for listing in ("L1", "L2"):
            publish(urls["warehouse_url"], merchant, listing, "title", f"New {merchant} {listing}")
    blocks = preview(mapped_settings(), **urls).split("\n\n")
    assert [block.split()[0] for block in blocks] == ["acme/L1", "berta/L1", "cadiz/L1", "acme/L2", "berta/L2"]
    assert "(de-DE)" in blocks[0]
    assert "title before         OLD acme 1!!" in blocks[0]
    assert "after                New acme L1" in blocks[0]


def test_empty_and_long_texts_and_listings_that_are_gone_stay_readable(urls: dict[str, str]) -> None:
    publish(urls["warehouse_url"], "acme", "L1", "description", "Long text. " * 100)
    publish(urls["warehouse_url"], "gone", "L9", "title", "Copy of a listing that was deleted")
    text = preview(mapped_settings(), **urls)
    assert "description before   (empty)" in text
    assert "gone/L9" in text
    assert max(map(len, text.splitlines())) <= 110
    assert len(text) < 1000


def test_retired_and_held_out_copy_is_not_shown(urls: dict[str, str]) -> None:
    publish(urls["warehouse_url"], "acme", "L1", "title", "Retired", retired_at=NOW)
    publish(urls["warehouse_url"], "acme", "L2", "title", None, arm="holdout")
    assert "the warehouse holds no copy yet" in preview(mapped_settings(), **urls)


def test_the_command_needs_a_warehouse_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setenv("MERCHANT_CATALOG_URL", "sqlite://")
    monkeypatch.setenv("ADS_WAREHOUSE_URL", f"sqlite:///{tmp_path}/nowhere/warehouse.db")
    assert main(["preview"]) == 2
    assert "cannot reach" in capsys.readouterr().err
