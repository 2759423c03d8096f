"""Positions of a small line chart, which a template draws as SVG: no script, no picture to store, sharp at every size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from include.reporting.history import TaskNight

WIDTH, HEIGHT = 720, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 12, 12, 28


@dataclass(frozen=True, slots=True)
class Point:
    """One night: its place, the ends of its interval's bar if it has one, and what it says."""

    x: float
    y: float
    bar: tuple[float, float] | None
    told: str


@dataclass(frozen=True, slots=True)
class Chart:
    """All lengths are SVG units of a WIDTH by HEIGHT box; `line` and `baseline` are lists of points for a polyline."""

    title: str
    points: list[Point]
    line: str
    baseline: str
    levels: list[tuple[float, str]]  # height and label of each grid line
    first: str
    last: str


def chart(
    title: str,
    nights: Sequence[TaskNight],
    value: Callable[[TaskNight], float | None],
    shown: Callable[[float | None], str],
    *,
    interval: Callable[[TaskNight], tuple[float, float] | None] = lambda night: None,
    baseline: Callable[[TaskNight], float | None] = lambda night: None,
    top: float | None = None,
) -> Chart | None:
    """The chart of `nights`, oldest first, from 0 to `top` or to the largest value. None where no night has a value."""
    known = [(night, found) for night in nights if (found := value(night)) is not None]
    if not known:
        return None
    highest = top or max(max(found for _, found in known) * 1.1, 1e-9)
    step = (WIDTH - _LEFT - _RIGHT) / max(len(known) - 1, 1)

    def y(number: float) -> float:
        return round(_TOP + (HEIGHT - _TOP - _BOTTOM) * (1 - min(max(number, 0.0), highest) / highest), 1)

    points, limits = [], []
    for index, (night, found) in enumerate(known):
        x, ends = round(_LEFT + index * step, 1), interval(night)
        told = f"{night.partition_date}: {shown(found)}" + (f" ({shown(ends[0])} to {shown(ends[1])})" if ends else "")
        points.append(Point(x, y(found), (y(ends[0]), y(ends[1])) if ends else None, told))
        if (limit := baseline(night)) is not None:
            limits.append(f"{x},{y(limit)}")
    return Chart(
        title=title,
        points=points,
        line=" ".join(f"{p.x},{p.y}" for p in points),
        baseline=" ".join(limits),
        levels=[(y(highest * part / 4), shown(highest * part / 4)) for part in range(5)],
        first=str(known[0][0].partition_date),
        last=str(known[-1][0].partition_date),
    )
