"""Plots as PNG bytes (matplotlib, without a display): what all reports share, a calibration, the pass rate over nights."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

from include.judging.agreement import Comparison

SIZE, DPI = (6.2, 4.2), 160  # small, so that its words can be read on a phone
COLOURS = ("#888888", "#1f77b4", "#ff7f0e", "#2ca02c", "#9467bd", "#8c564b", "#17becf", "#e377c2", "#bcbd22")
_GREY, _BLUE, _ORANGE = COLOURS[:3]
_LABEL = 28  # characters


def new_figure(rows: int = 1, columns: int = 1, size: tuple[float, float] = (8.0, 4.0)) -> tuple[Any, Any]:
    """A figure that needs no display, and its axes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns)


def as_png(figure: Any, dpi: int = 110) -> bytes:
    """The figure as a PNG file's bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi)
    return buffer.getvalue()


def data_uri(png: bytes) -> str:
    """The picture as an address that a page carries within itself."""
    return "data:image/png;base64," + base64.b64encode(png).decode()


def plain(text: str) -> str:
    """A name as it is, on one line and cut: matplotlib reads what stands between dollar signs as a formula."""
    shown = "".join(letter if letter.isprintable() else "·" for letter in text)
    return (shown if len(shown) <= _LABEL else shown[: _LABEL - 1] + "…").replace("$", r"\$")


def stacked_plot(rows: Mapping[str, Mapping[str, float]], xlabel: str, grey: str = "") -> bytes:
    """A bar for each row from the top, stacked by its parts; the part named `grey` is what the others leave."""
    figure, axis = new_figure(size=(SIZE[0], 1.6 + (0.6 if len(rows) < 4 else 0.35) * len(rows)))
    places, left = list(range(len(rows))), [0.0] * len(rows)
    colours = cycle(COLOURS[1:])
    parts = list(dict.fromkeys(part for each in rows.values() for part in each))
    for part in parts:
        widths = [each.get(part, 0.0) for each in rows.values()]
        colour = _GREY if part == grey else next(colours)
        axis.barh(places, widths, left=left, color=colour, label=plain(part), edgecolor="white")
        left = [start + width for start, width in zip(left, widths, strict=True)]
    axis.set_yticks(places, [plain(name) for name in rows])
    axis.margins(y=0.02)
    axis.invert_yaxis()
    axis.set(xlabel=xlabel)
    if len(parts) > 1:
        figure.legend(loc="outside lower center", ncols=3, fontsize="small")
    return as_png(figure, DPI)


def calibration_plot(rows: Sequence[Comparison], threshold: float, report: Mapping[str, Any]) -> bytes:
    """Scores of texts that people pass and fail with the threshold, and sensitivity and specificity by origin."""
    figure, (left, right) = new_figure(1, 2, (11.0, 4.2))
    for human, colour, name in ((True, _BLUE, "people pass"), (False, _ORANGE, "people fail")):
        scores = [row.score for row in rows if row.human is human and row.score is not None]
        left.hist(scores, bins=20, range=(0, 1), histtype="step", density=bool(scores), color=colour, label=name)
    left.axvline(threshold, color=_GREY, linestyle="--", label=f"threshold {threshold:.2f}")
    left.set(xlabel="judge score (probability of a clean answer)", ylabel="density", title="Judge score by human label")
    left.legend()
    names = ["all", *report["origins"], *report["locales"]]
    found = [report, *report["origins"].values(), *report["locales"].values()]
    for offset, (key, colour) in enumerate((("sensitivity", _BLUE), ("specificity", _ORANGE))):
        places = [index + 0.35 * offset for index in range(len(names))]
        heights = [values[key] or 0.0 for values in found]
        right.bar(places, heights, width=0.33, color=colour, label=key)
        if interval := report.get(f"{key}_ci95"):
            low, high = interval
            right.errorbar(places[0], heights[0], [[heights[0] - low], [high - heights[0]]], color="black", capsize=4)
    right.set_xticks([index + 0.17 for index in range(len(names))], names, rotation=20, ha="right")
    right.set(ylim=(0, 1.05), title=f"Agreement with people (kappa {report['kappa'] or 0:.2f})")
    right.legend()
    return as_png(figure)


def nights_plot(nights: Sequence[Mapping[str, Any]], baseline: float, margin: float, task: str) -> bytes:
    """Pass rate over nights with its 95% interval, the baseline and the floor; failed and alarming nights are marked."""
    figure, axis = new_figure(size=SIZE)
    known = [night for night in nights if night["pass_rate"] is not None and night["ci95"]]
    places = list(range(len(known)))
    rates = [night["pass_rate"] for night in known]
    below = [max(0.0, rate - night["ci95"][0]) for rate, night in zip(rates, known, strict=True)]
    above = [max(0.0, night["ci95"][1] - rate) for rate, night in zip(rates, known, strict=True)]
    axis.errorbar(places, rates, [below, above], fmt="o-", color=_BLUE, ecolor=_GREY, capsize=3, label="pass rate, 95%")
    axis.axhline(baseline, color="green", linewidth=1, label=f"baseline {baseline:.0%}")
    axis.axhline(baseline - margin, color="red", linewidth=1, linestyle="--", label=f"floor {baseline - margin:.0%}")
    for marker, colour, name, chosen in (
        ("x", "red", "gate not passed", [n for n in known if n["status"] != "passed"]),
        ("v", _ORANGE, "drift alarm", [n for n in known if n.get("alarm")]),
    ):
        at = [known.index(night) for night in chosen]
        if at:
            axis.plot(at, [rates[index] for index in at], marker, color=colour, markersize=11, label=name)
    step = max(1, len(known) // 8)
    axis.set_xticks(places[::step], [str(night["date"]) for night in known][::step], rotation=30, ha="right")
    axis.set(ylim=(0, 1.02), ylabel="judge pass rate", title=f"{task}: pass rate over nights")
    axis.legend(loc="lower left", fontsize="small")
    return as_png(figure, DPI)
