"""How reports write numbers."""

from __future__ import annotations


def number(value: float | None, absent: str = "-") -> str:
    """Four significant digits, with commas between thousands; `absent` for None."""
    return absent if value is None else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def percent(value: float | None) -> str:
    """A share of 1 as per cent with one decimal; a dash for None."""
    return "-" if value is None else f"{100 * value:.1f}%"
