"""A shadow run's report: one self-contained HTML page from `shadow.json`. It owns no data of its own."""

from __future__ import annotations

import json
from pathlib import Path

import jinja2

from include.numerals import number, percent

SHOWN = 100  # disagreements on the page; shadow.json has all


def price(value: float | None) -> str:
    return number(value, "not configured")


def points(bounds: list[float] | None) -> str:
    """An interval of a difference of shares, in percentage points."""
    return "-" if not bounds else f"{100 * bounds[0]:+.1f} to {100 * bounds[1]:+.1f}"


def between(bounds: list[float] | None) -> str:
    return "-" if not bounds else f"{bounds[0]:+.2f} to {bounds[1]:+.2f}"


def write_report(folder: Path) -> Path:
    """Writes `shadow.html` into a finished shadow run's folder. Raises FileNotFoundError for one without a result."""
    path = folder / "shadow.json"
    if not path.is_file():
        raise FileNotFoundError(
            f"{folder} holds no finished shadow run: `python -m include.batch shadow` goes on with it"
        )
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True)
    environment.filters.update(number=number, price=price, percent=percent, points=points, between=between)
    found = json.loads(path.read_text(encoding="utf-8"))
    page = environment.get_template("shadow.html.j2").render(found=found, shown=SHOWN)
    out = folder / "shadow.html"
    out.write_text(page, encoding="utf-8", errors="replace")
    return out
