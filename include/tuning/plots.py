"""Plots of a tuning report as PNG bytes: roofline, throughput against quality, latency against throughput, the parts of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from include.generation.roofline import Ceilings
from include.judging.plots import COLOURS, DPI, SIZE, as_png, new_figure, plain, stacked_plot

WAITING = "no kernel runs"
_APART = 13.0  # points between two labels


def _labels(axis: Any, dots: Sequence[tuple[str, float, float]]) -> None:
    """Names dots to their right, or to their left in the right half; names that would overlap move up."""
    axis.figure.draw_without_rendering()
    points = 72 / axis.figure.dpi
    taken = {True: float("-inf"), False: float("-inf")}
    for name, x, y in sorted(dots, key=lambda dot: dot[2]):
        place = axis.transData.transform((x, y)) * points
        left = bool(axis.transAxes.inverted().transform(place / points)[0] > 0.6)
        height = max(float(place[1]), taken[left] + _APART)
        taken[left] = height
        axis.annotate(
            plain(name),
            (x, y),
            xytext=(-9 if left else 9, height - float(place[1])),
            textcoords="offset points",
            ha="right" if left else "left",
            va="center",
            fontsize="small",
            bbox={"boxstyle": "round,pad=0.1", "facecolor": "white", "alpha": 0.8, "linewidth": 0},
        )


def roofline_plot(dots: Sequence[tuple[str, float, float]], ceilings: Ceilings) -> bytes:
    """Roofs of both precisions, and each (name, operations per byte, achieved operations/s) below them."""
    figure, axis = new_figure(size=SIZE)
    wide = "32-bit" if ceilings.source.endswith("cpu") else "16-bit"
    flats = [(f"{wide} ceiling", ceilings.flops, "-"), ("8-bit ceiling", ceilings.flops_8bit, "--")]
    ridges = [flops / ceilings.bytes_per_s for _, flops, _ in flats if flops]
    intensities = [x for _, x, _ in dots]
    left, right = min(*ridges, *intensities, 1e9) / 4, max(*ridges, *intensities, 0.0) * 4
    for name, flops, style in flats:
        if flops:
            ridge = flops / ceilings.bytes_per_s
            axis.plot(
                [left, ridge, right],
                [left * ceilings.bytes_per_s, flops, flops],
                style,
                color="black",
                linewidth=1.2,
                label=f"{name}, {flops / 1e12:,.4g} TFLOP/s",
            )
    axis.plot([], [], " ", label=f"slope: memory, {ceilings.bytes_per_s / 1e12:,.3g} TB/s")
    for number, (_, x, y) in enumerate(dots):
        axis.plot([x], [y], "o", color=COLOURS[number % len(COLOURS)], markersize=8)
    axis.set(xscale="log", yscale="log", xlim=(left, right), xlabel="operations per byte moved", ylabel="operations/s")
    axis.grid(True, which="major", alpha=0.3)
    axis.legend(loc="lower right", fontsize="small")
    _labels(axis, dots)
    return as_png(figure, DPI)


def pareto_plot(rows: Sequence[Mapping[str, Any]], incumbent: float | None) -> bytes:
    """Throughput against judge pass rate with its interval; a line joins the candidates that none beats in both."""
    figure, axis = new_figure(size=SIZE)
    for number, row in enumerate(rows):
        x, y, (low, high) = row["ratio"], row["pass_rate"], row["ci95"]
        axis.errorbar(
            [x], [y], [[max(0.0, y - low)], [max(0.0, high - y)]], fmt="o", capsize=3, markersize=8,
            color=COLOURS[(number + 1) % len(COLOURS)],
        )  # fmt: skip
    best = sorted((row["ratio"], row["pass_rate"]) for row in rows if row["best"])
    axis.plot([x for x, _ in best], [y for _, y in best], ":", color="black", label="not beaten in both")
    if incumbent is not None:
        axis.axhline(incumbent, color="green", linewidth=1, label=f"incumbent {incumbent:.1%}")
    ratios = [row["ratio"] for row in rows]
    axis.set(
        xlim=(0.9 * min(ratios), 1.1 * max(ratios)),
        xlabel="throughput, ratio to the winner",
        ylabel="judge pass rate, 95%",
    )
    axis.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.4g}%")
    axis.grid(True, alpha=0.3)
    axis.legend(loc="lower left", fontsize="small")
    _labels(axis, [(row["name"], row["ratio"], row["pass_rate"]) for row in rows])
    return as_png(figure, DPI)


def comparison_plot(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Median and 95th percentile of seconds to an answer against throughput; a line for each arm, its windows beside the dots."""
    figure, axis = new_figure(size=SIZE)
    for colour, arm in zip(COLOURS[1:], dict.fromkeys(row["arm"] for row in rows), strict=False):
        own = [row for row in rows if row["arm"] == arm]
        rates = [row["requests_per_s"] for row in own]
        axis.plot(rates, [row["latency_p50_s"] for row in own], "o-", color=colour, label=arm)
        axis.plot(rates, [row["latency_p95_s"] for row in own], "_:", color=colour, markersize=9)
    axis.plot([], [], "_:", color="black", label="95th percentile")
    axis.set(xscale="log", yscale="log", xlabel="requests/s", ylabel="seconds to an answer, median")
    axis.margins(0.12)
    axis.grid(True, which="both", alpha=0.3)
    axis.legend(fontsize="small")
    _labels(axis, [(str(row["window"]), row["requests_per_s"], row["latency_p50_s"]) for row in rows])
    return as_png(figure, DPI)


def step_parts(steps: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Milliseconds of each kind of step by what they went to, the wait last."""
    kinds = list(dict.fromkeys(kind for step in steps.values() for kind in step["ms_by_kind"]))
    found = {}
    for name, step in steps.items():
        parts = {kind: step["ms_by_kind"].get(kind, 0.0) for kind in kinds} or {"step": step["busy_ms"]}
        found[name] = parts | {WAITING: max(0.0, step["ms"] - sum(parts.values()))}
    return found


def steps_plot(steps: Mapping[str, Mapping[str, float]]) -> bytes:
    """Milliseconds of each kind of step, stacked by what they went to."""
    return stacked_plot(steps, "milliseconds of a step", grey=WAITING)
