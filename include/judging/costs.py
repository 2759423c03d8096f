"""What a comparison of two writers costs, by the prices of `tuning.yaml`; a price that is not given is unknown, never 0."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import ConfigDict, Field

from include.settings import CONFIG_DIR_VARIABLE, PROJECT_ROOT, Count, Frozen, read_settings_file

LISTINGS_PER_DAY = 300_000_000  # a large catalogue, all of it written anew each day


class ComparisonSettings(Frozen):
    """The keys of `tuning.yaml` that hold for any two writers: how many listings, and the prices."""

    held_out: Count = 300  # listings that both sides answer
    gpu_hour_price: float = Field(default=0.0, ge=0)  # for the report's cost figures; 0: unknown
    gpu_hour_price_source: str = ""
    listings_per_day: Count = LISTINGS_PER_DAY  # the load that the report counts GPUs for
    hosted_price_per_million: dict[str, float] = Field(
        default={}
    )  # hosted batch price by enhancement task, with its source below
    hosted_price_source: str = ""


class _Part(ComparisonSettings):
    model_config = ConfigDict(frozen=True, extra="ignore")  # the file's other keys are include.tuning's


def load_comparison() -> ComparisonSettings:
    """These settings out of `tuning.yaml` in the configuration folder. Raises SettingsError."""
    folder = Path(os.environ.get(CONFIG_DIR_VARIABLE) or PROJECT_ROOT / "include" / "config")
    return read_settings_file(folder / "tuning.yaml", _Part)


def price_per_million(gpu_hour_price: float, gpus: int, requests_per_s: float) -> float:
    """Price of a million listings at a rate that `gpus` GPUs reach together."""
    return gpu_hour_price * gpus / 3600 / requests_per_s * 1e6
