"""What each engine profile was measured at on past nights, kept under the state URL: how long a start takes, how fast it is.

The planner uses it to make a bin worth its engine's start.
"""

from __future__ import annotations

import logging

from include.partitions import Store, TornPartError
from include.settings import Settings, resolve_path

log = logging.getLogger(__name__)

STARTS_PER_BIN = 50  # a bin takes at least this many times as long as its engine's start
_SMOOTHING = 0.5  # weight of the newest night, so that one slow start does not double the bins


def _place(settings: Settings) -> Store:
    return Store(resolve_path(settings.pipeline.state_url)).child("engines")


def _figures(settings: Settings, profile: str) -> dict[str, float]:
    """What was measured; empty where nothing was, or where it cannot be read: the figures are a hint."""
    try:
        found = _place(settings).read_json(f"{profile}/measured.json") or {}
        return {name: float(found[name]) for name in ("start_s", "requests_per_s")}
    except (OSError, TornPartError, ValueError, KeyError, TypeError):
        return {}


def record(settings: Settings, profile: str, *, start_s: float, requests_per_s: float) -> None:
    """Blends a night's engine start (seconds) and rate into the profile's figures. Never raises."""
    new = {"start_s": start_s, "requests_per_s": requests_per_s}
    old = _figures(settings, profile) or new
    blended = {name: _SMOOTHING * new[name] + (1 - _SMOOTHING) * old[name] for name in new}
    try:
        _place(settings).write_json(f"{profile}/measured.json", blended)
    except OSError as error:
        log.warning("engine figures not kept: %s", error)


def rows_worth_a_start(settings: Settings, profile: str) -> int:
    """Rows that keep the profile's engine busy for 50 starts; 0 while nothing was measured."""
    found = _figures(settings, profile)
    return round(STARTS_PER_BIN * found["start_s"] * found["requests_per_s"]) if found else 0
