"""Figures of a tuning report: what its tables hold, from the rows of a tuning run's files."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from include.judging.costs import price_per_million
from include.numerals import number, percent
from include.settings import EngineProfile
from include.tuning.plan import TuningSettings
from include.tuning.run import ratio

Row = dict[str, Any]
_FAINT, _STRONG = (237, 243, 250), (8, 81, 156)  # colours of the slowest and the fastest cell


def points(value: float | None) -> str:
    """A difference of shares, in percentage points."""
    return "-" if value is None else f"{100 * value:+.1f}"


def cell_text(cell: Mapping[str, Any] | None) -> str:
    """A cell as it stands in tables: sequences x tokens, window, submit way."""
    if not cell:
        return "as started"
    return f"{cell['max_num_seqs']} × {cell['max_num_batched_tokens']}, window {cell['batch_size']}, {cell['submit']}"


def times(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def between(bounds: Sequence[float] | None) -> str:
    return f"{times(bounds[0])} to {times(bounds[1])}" if bounds else "-"


def settings_table(columns: Sequence[Row]) -> list[tuple[str, list[str]]]:
    """Lines of the engine settings: as the profile gives them, in brackets where the engine chose."""
    found: list[dict[str, str]] = []
    for row in columns:
        profile, engine = row.get("profile") or {}, row.get("engine") or {}
        given = {name: profile.get(name) for name in ("model", "lora", "batch_size", "submit", "engines")}
        given |= profile.get("engine_args", {}) | profile.get("environment", {})
        told = ("dtype", "quantization", "max_num_seqs", "max_num_batched_tokens", "max_model_len")
        chosen = {name: f"({engine[name]})".replace("torch.", "") for name in told if engine.get(name) is not None}
        found.append(chosen | {name: str(value) for name, value in given.items() if value is not None})
    names = dict.fromkeys(name for values in found for name in reversed(values))
    return [(name, [values.get(name, "-") for values in found]) for name in reversed(names)]


def summary_table(columns: Sequence[Row]) -> list[tuple[str, list[str]]]:
    """Lines of the summary: a label, and a figure for each of baseline and finalists."""

    def each(name: str) -> Callable[[Row], float]:
        return lambda row: float(row["per_request"][name])

    def share(row: Row) -> float:
        return each("cached_tokens")(row) / (each("prompt_tokens")(row) or 1.0)

    def drift(row: Row) -> float | None:
        half = len(row["rates"]) // 2
        return median(row["rates"][half:]) / median(row["rates"][:half]) if half else None

    lines: list[tuple[str, Callable[[Row], str]]] = [
        ("requests/s, median", lambda row: number(row["requests_per_s"])),
        ("requests/s, every repeat", lambda row: ", ".join(map(number, row["rates"]))),
        ("later half of the repeats over the earlier", lambda row: times(drift(row))),
        ("ratio to baseline", lambda row: times(row["ratio"])),
        ("its 95% interval", lambda row: between(row["ratio_ci95"])),
        ("output tokens/s", lambda row: number(each("output_tokens")(row) * row["requests_per_s"])),
        ("p95 seconds to an answer", lambda row: number(row["latency_p95_s"])),
        ("prompt tokens, mean", lambda row: number(each("prompt_tokens")(row))),
        ("output tokens, mean", lambda row: number(each("output_tokens")(row))),
        ("prefix-cache hits", lambda row: percent(share(row))),
        ("peak GPU memory, GiB", lambda row: number(mb / 1024 if (mb := row["peak_gpu_memory_mb"]) else None)),
        ("preemptions since engine start", lambda row: str(row["preemptions"])),
        ("tokens a step, speculative decoding", lambda row: number(row.get("acceptance_length"))),
        ("share of the roofline", lambda row: percent(row.get("roofline_share"))),
        ("what binds at the roof", lambda row: row.get("binds") or "-"),
        ("requests/s at the roof", lambda row: number(row.get("roof_requests_per_s"))),
        ("engine start, seconds", lambda row: number(row["engine_start_s"])),
        ("kernels, as the engine tells", lambda row: "; ".join(row.get("paths", ())) or "-"),
    ]
    return [(label, [tell(row) if row["requests_per_s"] else "-" for row in columns]) for label, tell in lines]


def heatmaps(rows: Sequence[Row], looks: int) -> list[Row]:
    """Per candidate the best rate of each (max_num_seqs, max_num_batched_tokens) over windows and submit ways.

    Of first looks, `looks` prompts each: longer measurements lose less to ramp and drain and would not compare.
    """
    rows = [row for row in rows if row.get("cell") and row["requests"] == looks]
    rates = [row["requests_per_s"] for row in rows if not row.get("error")]
    low, high = min(rates, default=0.0), max(rates, default=0.0)
    found = []
    for name in dict.fromkeys(row["candidate"] for row in rows):
        mine = [row for row in rows if row["candidate"] == name]
        tokens = sorted({row["cell"]["max_num_batched_tokens"] for row in mine})
        lines = []
        for seqs in sorted({row["cell"]["max_num_seqs"] for row in mine}):
            line: list[Row] = []
            for most in tokens:
                at = [row for row in mine if [*row["cell"].values()][:2] == [seqs, most]]
                good = [row for row in at if not row.get("error")]
                best = max(good, key=lambda row: row["requests_per_s"], default=None)
                if best is None:
                    line.append({"text": "failed" if at else "", "colour": ""})
                    continue
                heat = (best["requests_per_s"] - low) / (high - low) if high > low else 1.0
                colour = [round(a + heat * (b - a)) for a, b in zip(_FAINT, _STRONG, strict=True)]
                text = number(best["requests_per_s"]) + ("*" if len(good) < len(at) else "")
                under = f"{best['cell']['batch_size']}, {best['cell']['submit']}"
                line.append({"text": text, "under": under, "colour": f"rgb{tuple(colour)}", "light": heat > 0.5})
            lines.append((seqs, line))
        found.append({"name": name, "tokens": tokens, "lines": lines})
    return found


def failures(rows: Sequence[Row]) -> list[Row]:
    """Each candidate's reasons, with the cells that they stopped."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        if row.get("error"):
            found.setdefault((row["candidate"], row["stage"], row["error"]), []).append(cell_text(row["cell"]))
    return [
        {"candidate": name, "stage": stage, "reason": reason, "cells": "; ".join(cells[:3]), "more": len(cells) - 3}
        for (name, stage, reason), cells in found.items()
    ]


def ranking(result: Row, rows: Sequence[Row], tuning: TuningSettings) -> list[Row]:
    """Candidates by their rate over the winner's, each pair of rates from the longest measurement that both have."""
    finals = {row["candidate"]: row for row in result["finalists"] if row["requests_per_s"]}
    levels: list[tuple[str, dict[str, tuple[float, str]]]] = [
        (f"median of {tuning.repeats} × {tuning.requests} prompts",
         {name: (row["requests_per_s"], "as the summary says") for name, row in finals.items()})
    ]  # fmt: skip
    for told, count in (("search", tuning.requests), ("first look", tuning.probe_requests)):
        best: dict[str, tuple[float, str]] = {}
        for line in rows:
            if line["stage"] == "search" and line["requests"] == count and not line.get("error"):
                found = (line["requests_per_s"], cell_text(line["cell"]))
                best[line["candidate"]] = max(best.get(line["candidate"], (0.0, "")), found)
        levels.append((f"{told}, {count} prompts", best))
    winner = next((max(best, key=lambda name: best[name]) for _, best in levels if best), None)
    table = []
    for name in dict.fromkeys([candidate.name for candidate in tuning.candidates] + list(finals)):
        row: Row = {"name": name, "ratio": None, "ci95": None, "rate": None, "winner": name == winner}
        row["why"] = result["failures"].get(name, "")
        for told, best in levels:
            if name in best and winner in best:
                row |= {"rate": best[name][0], "cell": best[name][1], "measured": told}
                row["ratio"] = best[name][0] / best[winner][0]
                if best is levels[0][1]:
                    row["ci95"] = ratio(finals[name]["rates"], finals[winner]["rates"])[1]
                break
        table.append(row)
    return sorted(table, key=lambda row: -(row["ratio"] or 0.0))


def quality_table(quality: Row, ranked: Sequence[Row]) -> list[Row]:
    """Candidates with their ratio to the winner, where they have one; `best` ones are beaten by none in both."""
    ratios = {row["name"]: row["ratio"] for row in ranked}
    found = [{"name": name, "ratio": ratios.get(name), **row} for name, row in quality["candidates"].items()]
    pairs = [(row["ratio"] or 0.0, row["pass_rate"]) for row in found]
    for row, pair in zip(found, pairs, strict=True):
        beaten = any(a >= pair[0] and b >= pair[1] and (a, b) != pair for a, b in pairs)
        row["best"] = bool(row["ratio"]) and not beaten
    return sorted(found, key=lambda row: -(row["ratio"] or 0.0))


def cost_table(columns: Sequence[Row], tuning: TuningSettings, hosted: float) -> list[Row]:
    """Price of a million listings and GPUs for a day's listings, without spare. A rate is of `gpus` GPUs together."""
    found = []
    for row in columns:
        if rate := row["requests_per_s"]:
            gpus = EngineProfile.model_validate(row["profile"]).devices
            price = price_per_million(tuning.gpu_hour_price, gpus, rate)
            need = math.ceil(tuning.listings_per_day / 86_400 / rate) * gpus
            times = hosted / price if hosted and price else None
            found.append({"name": row["candidate"], "price": price, "gpus": need, "times": times})
    return found
