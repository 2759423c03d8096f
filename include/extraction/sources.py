"""Where listings come from: the catalog's table or the merchants' feeds, cut up for readers that work side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from include.extraction.catalog import Catalog, Window
from include.extraction.feeds import FeedFile, FeedReport, find_feeds, read_feed
from include.runs import Run


class Source(Protocol):
    """What a reader reads; `reports` tells of its files afterwards."""

    reports: list[FeedReport]

    def expected(self, window: Window) -> int:
        """Rows to come; of files an estimate."""
        ...

    def batches(self, window: Window) -> Iterator[Sequence[object]]:
        """Raw rows in the order of listings.FIELDS, or RowErrors in their place."""
        ...


class TableSource:
    """One reader's slice of the catalog's table."""

    def __init__(self, catalog: Catalog, reader: int = 0, readers: int = 1) -> None:
        self.catalog, self.slice = catalog, (reader, readers)
        self.reports: list[FeedReport] = []

    def expected(self, window: Window) -> int:
        return self.catalog.count(window) // self.slice[1]

    def batches(self, window: Window) -> Iterator[Sequence[object]]:
        return self.catalog.batches(window, *self.slice)


class FeedSource:
    """One reader's share of the feed files."""

    def __init__(self, run: Run, reader: int = 0, readers: int = 1) -> None:
        self.run = run
        self.files: list[FeedFile] = find_feeds(run.spec.settings.pipeline.feeds, run.spec)[reader::readers]
        self.reports: list[FeedReport] = []

    def expected(self, window: Window) -> int:
        return sum(file.expected_rows() for file in self.files)

    def batches(self, window: Window) -> Iterator[Sequence[object]]:
        batch_rows = self.run.spec.settings.pipeline.catalog.batch_rows
        for file in self.files:
            report = FeedReport(file.url, file.merchant_id)
            self.reports.append(report)
            yield from read_feed(file, self.run.spec, batch_rows, report)


def open_source(run: Run, catalog_url: str, reader: int = 0, readers: int = 1) -> Source:
    """One reader's part of the run's source. Raises CatalogError when the catalog's table does not fit."""
    pipeline = run.spec.settings.pipeline
    if pipeline.feeds:
        return FeedSource(run, reader, readers)
    return TableSource(Catalog(catalog_url, pipeline.catalog, run.spec.merchants), reader, readers)


def has_unique_keys(source: Source) -> bool:
    """Whether the source itself rules out two rows with one key."""
    return isinstance(source, TableSource) and source.catalog.unique_keys


def reader_count(run: Run, catalog_url: str) -> int:
    """Readers that make sense: one where rows are counted (row limit) or the database has one file."""
    pipeline = run.spec.settings.pipeline
    if run.spec.row_limit is not None:
        return 1
    if pipeline.feeds:
        return max(1, min(pipeline.readers, len(find_feeds(pipeline.feeds, run.spec))))
    return pipeline.readers if catalog_url.startswith("postgres") else 1
