"""A file that cannot become the catalog says why and what to do, and leaves the catalog as it was."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa

from include.extraction.seed import SeedError, seed_catalog
from include.settings import load_settings
from include.warehouse.database import connect

CATALOG = load_settings().pipeline.catalog
GOOD = b"title,description,,\nMug,a,,\n"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"title,description,title\nMug,a,b\n", "names the column 'title' twice"),
        ("title,description\nMug,a\n".encode("utf-16"), "is UTF-16, wanted is UTF-8: `iconv -f UTF-16 -t UTF-8"),
        ("title,description\r\nMug,a\r\n".encode("utf-16-be"), "is UTF-16, wanted is UTF-8"),
        (b"title,description\n", "has no rows; the catalog is left as it was"),
        (b"", "lacks the columns"),
        (None, "give the path of a CSV file"),
    ],
)
def test_a_file_that_cannot_be_used_leaves_the_catalog_as_it_was(
    tmp_path: Path, content: bytes | None, told: str
) -> None:
    url, path = f"sqlite:///{tmp_path}/c.db", tmp_path / "my.csv"
    path.write_bytes(GOOD)
    assert seed_catalog(url, path, CATALOG) == 1
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(SeedError, match=told):
        seed_catalog(url, path, CATALOG)
    with connect(url) as connection:
        assert connection.scalar(sa.text("SELECT count(*) FROM listings")) == 1
