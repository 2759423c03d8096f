"""The gate's expectation suite over a run's aggregate (bin × merchant × locale × reason), never over its rows.

Three small tables come from the bins' manifests: `totals` (one row), `bins` (one per bin) and `slices` (bins, merchants,
locales and, while a switch is under way, engines with enough answers to be judged alone). Their figures are exact counts of all rows; the failing listings
themselves stand complete in the quarantine.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

from include.expectations import Rule, TableRules, check_tables
from include.runs import Run
from include.settings import GateSettings
from include.validation.stage import STAGE

SUITE_VERSION = "1"
STAGE_NAME = "suite"
Row = dict[str, Any]


def aggregate(run: Run, task: str) -> tuple[list[Row], list[int], list[int]]:
    """Aggregate rows of all bins with their engine profile, the planned rows by bin, and the bins never validated.

    Rows of a bin without a validation manifest count as `errored`: they got no answer.
    """
    planned = [int(rows) for rows in run.read_plan(task)["rows"]]
    rows: list[Row] = []
    missing = []
    for bin_index, expected in enumerate(planned):
        manifest = run.store.read_json(run.manifest(task, STAGE, bin_index))
        if manifest is None:
            missing.append(bin_index)
            rows.append({"bin": bin_index, "merchant_id": "", "locale": "", "reason": "errored", "rows": expected})
        else:
            rows.extend(manifest["aggregate"])
    engines = run.engines(task)
    return [{"engine": engines[row["bin"]]} | row for row in rows], planned, missing


def _pass_rate(counts: Counter[str]) -> tuple[int, float | None]:
    """Answered rows, and the share of them that the validators accepted; None when none was answered."""
    answered = sum(rows for reason, rows in counts.items() if reason != "errored")
    return answered, counts[""] / answered if answered else None


def _reasons(rows: Iterable[Row]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for row in rows:
        counts[row["reason"]] += row["rows"]
    return counts


def _by(rows: Iterable[Row], column: str) -> dict[Any, Counter[str]]:
    found: dict[Any, Counter[str]] = defaultdict(Counter)
    for row in rows:
        found[row[column]][row["reason"]] += row["rows"]
    return dict(sorted(found.items()))


def _between(name: str, column: str, low: float | None = None, high: float | None = None) -> Rule:
    return Rule(name, "ExpectColumnValuesToBeBetween", {"column": column, "min_value": low, "max_value": high})


def _equal(name: str) -> Rule:
    return Rule(name, "ExpectColumnPairValuesToBeEqual", {"column_A": "planned", "column_B": "accounted"})


def _totals(rows: list[Row], planned: list[int], stopped: bool, gate: GateSettings) -> TableRules:
    counts = _reasons(rows)
    answered, pass_rate = _pass_rate(counts)
    total = sum(planned)
    values: dict[str, list[object]] = {
        "planned": [total],
        "accounted": [sum(counts.values())],
        "answered": [answered],
        "completeness": [answered / total if total else None],
        "pass_rate": [pass_rate],
        "stop_markers": [int(stopped)],
    }
    rules = [
        _between("listings were planned", "planned", 1),
        _equal("every planned listing is accounted for"),
        _between("completeness", "completeness", gate.min_completeness, 1),
        _between("validator pass rate", "pass_rate", gate.min_validator_pass_rate, 1),
        _between("no bin tripped the circuit breaker", "stop_markers", 0, 0),
    ]  # fmt: skip
    for reason, ceiling in sorted(gate.max_reason_share.items()):
        values[f"share_{reason}"] = [counts[reason] / answered if answered else None]
        rules.append(_between(f"share of {reason}", f"share_{reason}", 0, ceiling))
    return TableRules(values, rules)


def _bins(rows: list[Row], planned: list[int]) -> TableRules:
    accounted = {bin_index: sum(counts.values()) for bin_index, counts in _by(rows, "bin").items()}
    columns: dict[str, list[Any]] = {
        "bin": [f"bin {b}" for b in range(len(planned))],
        "planned": list(planned),
        "accounted": [accounted.get(b, 0) for b in range(len(planned))],
    }
    return TableRules(columns, [_equal("accounting closes in every bin")], label="bin")


def _slices(rows: list[Row], gate: GateSettings) -> TableRules | None:
    names: list[str] = []
    rates: list[float | None] = []
    columns = [("bin", "bin"), ("merchant_id", "merchant"), ("locale", "locale")]
    if routed := len(_by(rows, "engine")) > 1:
        columns.append(("engine", "engine"))
    for column, title in columns:
        for value, counts in _by(rows, column).items():
            answered, rate = _pass_rate(counts)
            if answered >= gate.min_slice_rows:
                names.append(f"{title} {value}")
                rates.append(rate)
    if not names:
        return None
    least = gate.min_slice_pass_rate
    least = gate.min_validator_pass_rate / 2 if least is None else least
    what = "bin, merchant, locale and engine" if routed else "bin, merchant and locale"
    rule = _between(f"pass rate of every {what}", "pass_rate", least, 1)
    return TableRules({"slice": names, "pass_rate": rates}, [rule], label="slice")


def _cells(rows: list[Row]) -> TableRules:
    columns = {name: [row.get(name) for row in rows] for name in ("bin", "merchant_id", "locale", "reason", "rows")}
    rules = [
        Rule("one row per bin, merchant, locale and reason", "ExpectCompoundColumnsToBeUnique",
             {"column_list": ["bin", "merchant_id", "locale", "reason"]}),
        Rule("reasons are reason codes", "ExpectColumnValuesToMatchRegex", {"column": "reason", "regex": r"^[a-z0-9_]*$"}),
        _between("no empty cells", "rows", 1),
        *(Rule(f"{c} is not null", "ExpectColumnValuesToNotBeNull", {"column": c}) for c in ("bin", "merchant_id", "locale")),
    ]  # fmt: skip
    return TableRules(columns, rules, label="merchant_id")


def _tables(rows: list[Row], planned: list[int], stopped: bool, gate: GateSettings) -> dict[str, TableRules]:
    slices = _slices(rows, gate)
    tables = {"totals": _totals(rows, planned, stopped, gate), "bins": _bins(rows, planned), "cells": _cells(rows)}
    return tables if slices is None else tables | {"slices": slices}


def check(run: Run, task: str) -> dict[str, Any]:
    """Runs the suite as a checkpoint and returns its result, also written as manifest(task, "suite").

    {"status": "passed" | "failed" | "broken" | "empty", "expectations": [{name, success, observed, expected, table}, …],
    "aggregate": the reasons' totals, "missing_bins", "stopped": the breaker's marker or null, "data_docs", "quarantine":
    where the failing listings are}. "empty" means that nothing was planned; it checks nothing and publishes nothing.
    """
    gate = run.spec.settings.task(task).gate
    run.store.remove(run.manifest(task, STAGE_NAME))
    rows, planned, missing = aggregate(run, task)
    docs = f"data_docs/{task}"
    stopped = run.read_stop(task)
    identity = {"suite": f"{task}-gate", "version": SUITE_VERSION, "expectations": []}
    result: dict[str, Any]
    try:
        if sum(planned) == 0:
            result = {"status": "empty", **identity}
        else:
            tables = _tables(rows, planned, stopped is not None, gate)
            result = check_tables(f"{task}-gate", SUITE_VERSION, tables, docs=(run.store, docs))
        reasons = _reasons(rows)
        result["aggregate"] = dict(sorted((reason or "accepted", count) for reason, count in reasons.items()))
    except (KeyError, TypeError) as error:  # a manifest that is not ours: the gate cannot answer, the data may be fine
        problem = f"the bins' aggregate cannot be read: {type(error).__name__} {error}; clear the validate tasks"
        result = {"status": "broken", **identity, "aggregate": {}, "error": problem}
    result |= {
        "missing_bins": missing,
        "stopped": None if stopped is None else stopped.model_dump(),
        "data_docs": run.store.path(docs, "index.html"),
        "quarantine": run.store.path(f"quarantine/{task}"),
    }
    for expectation in result["expectations"]:
        if stopped is not None and not expectation["success"] and "circuit breaker" in expectation["name"]:
            expectation["observed"] = (
                f"bin {stopped.bin}: {stopped.reject_rate:.1%} rejected, mostly {stopped.reason}, "
                f"with engine profile {stopped.engine}"
            )
    run.store.write_json(run.manifest(task, STAGE_NAME), result)
    return result
