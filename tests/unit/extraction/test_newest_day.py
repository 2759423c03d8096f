"""The day that a run without a date takes: the catalog's latest change, in UTC."""

from pathlib import Path

import pytest
import sqlalchemy as sa

from include.extraction.__main__ import main
from include.extraction.catalog import Catalog
from include.settings import CatalogSettings
from include.warehouse.database import engine_for


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/catalog.db"
    with engine_for(url).begin() as connection:
        connection.execute(
            sa.text("CREATE TABLE listings (merchant_id, listing_id, title, description, updated_at TEXT)")
        )
    return url


def insert(url: str, moment: str | None) -> None:
    with engine_for(url).begin() as connection:
        connection.execute(sa.text("INSERT INTO listings VALUES ('m', 'l', 't', 'd', :moment)"), {"moment": moment})


def test_a_late_evening_in_california_is_the_next_day(url: str) -> None:
    insert(url, "2026-02-27T10:00:00+00:00")
    insert(url, None)
    insert(url, "2026-03-01T22:00:00-08:00")
    assert str(Catalog(url, CatalogSettings()).newest_day()) == "2026-03-02"


def test_a_catalog_without_changes_has_no_day_and_the_command_takes_todays(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert Catalog(url, CatalogSettings()).newest_day() is None
    monkeypatch.setenv("MERCHANT_CATALOG_URL", url)
    assert main(["newest-day"]) == 0
    assert capsys.readouterr().out.strip().startswith("20")
    insert(url, "2026-03-01")
    assert main(["newest-day"]) == 0
    assert capsys.readouterr().out == "2026-03-01\n"
