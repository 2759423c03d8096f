"""Figures of past nights: a bin is worth its engine's start, and a lost file never stops a night."""

from __future__ import annotations

from pathlib import Path

import pytest

from include.extraction.shards import plan_bins
from include.measurements import record, rows_worth_a_start
from include.settings import Settings, load_settings


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    values = load_settings().model_dump()
    values["pipeline"]["state_url"] = str(tmp_path)
    return Settings.model_validate(values)


def test_a_bin_is_worth_fifty_starts_of_its_engine(settings: Settings) -> None:
    assert rows_worth_a_start(settings, "gpu") == 0
    record(settings, "gpu", start_s=100.0, requests_per_s=500.0)
    assert rows_worth_a_start(settings, "gpu") == 50 * 100 * 500
    bins, _ = plan_bins([2_000_000] * 150, max_bins=64, min_rows_per_bin=rows_worth_a_start(settings, "gpu"))
    assert len(bins) == 64  # 300 million rows: bounded by max_bins
    bins, rows = plan_bins([20_000] * 500, max_bins=64, min_rows_per_bin=rows_worth_a_start(settings, "gpu"))
    assert len(bins) == 4
    assert min(rows) >= 2_500_000


def test_one_slow_night_moves_the_figures_half_way(settings: Settings) -> None:
    record(settings, "gpu", start_s=100.0, requests_per_s=500.0)
    record(settings, "gpu", start_s=300.0, requests_per_s=500.0)
    assert rows_worth_a_start(settings, "gpu") == 50 * 200 * 500


def test_an_unreadable_file_counts_as_nothing_measured(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "engines" / "gpu").mkdir(parents=True)
    (tmp_path / "engines" / "gpu" / "measured.json").write_text("{")
    assert rows_worth_a_start(settings, "gpu") == 0
    record(settings, "gpu", start_s=2.0, requests_per_s=3.0)
    assert rows_worth_a_start(settings, "gpu") == 300


@pytest.mark.parametrize("rows", [1_025, 50_000, 30_000_000])
def test_bins_stay_below_what_airflow_maps_whatever_the_volume(rows: int) -> None:
    shards = [rows // 1_025] * 1_025
    assert len(plan_bins(shards, max_bins=1_024, min_rows_per_bin=1)[0]) <= 1_024
