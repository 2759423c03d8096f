"""The expectation suite: what passes, what fails, what is broken; bounded plain results; no network."""

import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from include.expectations import Rule, TableRules, check_tables, expected_text, observed_text
from include.judging.gate import decide
from include.records import QuarantinedRow
from include.reporting.summary import summarise
from include.reporting.text import alert_text
from include.validation import suite
from include.validation.stage import validate
from tests.validating import answer, settings_with, work_item


def content_rules(column: str) -> list[Rule]:
    """A text column that must say something: not null, and not blank."""
    regex = {"column": column, "regex": r"(?s)^\s*\S(?:.*\S)?\s*$"}
    return [
        Rule("not null", "ExpectColumnValuesToNotBeNull", {"column": column}),
        Rule("not blank", "ExpectColumnValuesToMatchRegex", regex),
    ]


def failed(result: dict) -> set[str]:
    return {e["name"] for e in result["expectations"] if not e["success"]}


def validated(make_run, *bins: list, **settings: object):
    run = make_run(bins, settings=settings_with(**settings))
    for index in range(len(bins)):
        validate(run, "title", index)
    return run


def test_a_good_run_passes_and_leaves_json_and_data_docs(make_run) -> None:
    items = [work_item(n) for n in range(20)]
    run = validated(make_run, [(i, answer(i)) for i in items[:10]], [(i, answer(i)) for i in items[10:]])
    result = suite.check(run, "title")
    assert result["status"] == "passed", result
    names = {e["name"] for e in result["expectations"]}
    assert {"completeness", "validator pass rate", "every planned listing is accounted for", "has rows"} <= names
    assert run.store.read_json(run.manifest("title", "suite")) == json.loads(json.dumps(result))
    assert "<html" in run.store.fs.cat_file(result["data_docs"]).decode().lower()


def test_figures_of_a_failed_gate_stand_in_its_result(make_run) -> None:
    items = [work_item(n) for n in range(40)]
    bin_rows = [
        (i, answer(i, "Sure! Acme dripper" if n < 30 else "Acme ceramic dripper stand")) for n, i in enumerate(items)
    ]
    run = validated(make_run, bin_rows, gate={"min_validator_pass_rate": 0.9, "max_reason_share": {"meta_text": 0.5}})
    result = suite.check(run, "title")
    assert result["status"] == "failed"
    assert {"validator pass rate", "share of meta_text"} <= failed(result)
    rate = next(e for e in result["expectations"] if e["name"] == "validator pass rate")
    assert rate["observed"] == 0.25
    assert rate["expected"]["min_value"] == 0.9
    assert result["aggregate"] == {"accepted": 10, "meta_text": 30}
    assert run.store.list("quarantine/title/validate-0000"), "the full list of failing ids is where the result says"


def test_the_alert_alone_says_which_expectation_failed_by_how_much_and_where_the_listings_are(make_run) -> None:
    items = [work_item(n) for n in range(40)]
    rows = [(i, answer(i, "Sure! Acme dripper" if n < 30 else "Acme ceramic stand")) for n, i in enumerate(items)]
    run = validated(make_run, rows, gate={"min_validator_pass_rate": 0.9})
    run.store.write_json(run.manifest("title", "extract"), {"rows": 40, "bins": 1, "counts": {"extracted": 40}})
    run.store.write_bytes("run.json", run.spec.model_dump_json().encode())
    gates = {"title": decide(run, "title")}
    text = alert_text(summarise(run), gates)
    (line,) = [line for line in text.splitlines() if "validator pass rate" in line]
    observed, expected = line.split(", expected ")
    assert observed.endswith("observed 0.25")
    assert expected == "0.9 to 1.0"
    assert "40 listings keep their current copy" in text
    assert "top reasons: meta_text 30" in text
    folder = text.split("all failing ids: ")[1].split("\n")[0]
    assert folder == f"{run.store.url}/quarantine/title"
    listed = list(run.store.read_rows(f"{folder.removeprefix(run.store.url)[1:]}/validate-0000", QuarantinedRow))
    assert {row.listing_id for row in listed} == {i.listing_id for i in items[:30]}


def test_a_dead_bin_costs_completeness_only(make_run) -> None:
    items = [work_item(n) for n in range(20)]
    run = make_run(
        [[(i, answer(i)) for i in items[:19]], [(items[19], answer(items[19]))]],
        settings=settings_with(gate={"min_completeness": 0.9}),
    )
    validate(run, "title", 0)
    result = suite.check(run, "title")
    assert (result["status"], result["missing_bins"]) == ("passed", [1])
    strict = make_run(
        [[(i, answer(i)) for i in items[:19]], [(items[19], None)]],
        settings=settings_with(gate={"min_completeness": 0.98}),
    )
    assert failed(suite.check(strict, "title")) == {"completeness"}


@pytest.mark.parametrize(
    ("expected", "text"),
    [
        ({"column": "a", "min_value": 0, "max_value": 0.02}, "0 to 0.02"),
        ({"column": "a", "min_value": 0, "max_value": 0}, "0"),
        ({"column": "a", "min_value": 1, "max_value": None}, "at least 1"),
        ({"column": "a", "max_value": 3}, "at most 3"),
        ({"column_A": "planned", "column_B": "accounted"}, "as named"),
        ({"column": "reason", "regex": "^[a-z]*$"}, "regex ^[a-z]*$"),
    ],
)
def test_what_an_expectation_asks_for_is_said_in_words(expected, text) -> None:
    assert expected_text({"expected": expected}) == text


def test_one_bad_merchant_is_seen_in_a_good_average(make_run) -> None:
    items = [work_item(n, merchant_id="bad" if n < 20 else "good") for n in range(200)]
    rows = [(i, answer(i, "f" * 40 if i.merchant_id == "bad" else "Acme ceramic dripper with stand")) for i in items]
    run = validated(make_run, rows, gate={"min_validator_pass_rate": 0.8, "min_slice_rows": 20})
    result = suite.check(run, "title")
    assert failed(result) == {"pass rate of every bin, merchant and locale"}
    entry = next(e for e in result["expectations"] if not e["success"])
    assert entry["observed"]["examples"] == ["merchant bad: 0.0"]
    assert observed_text(entry) == "1 wrong, such as merchant bad: 0.0"


def test_one_bad_engine_is_seen_in_a_good_average(make_run) -> None:
    """Its bins and merchants are each too small to be judged alone."""
    bins = [
        [work_item(n, merchant_id=f"m{n}") for n in range(20 * b, 20 * b + (15 if b < 2 else 200))] for b in (0, 1, 20)
    ]
    rows = [
        [(i, answer(i, "f" * 40 if len(items) == 15 else "Acme ceramic dripper with stand")) for i in items]
        for items in bins
    ]
    rows[2] += [(i, answer(i, "Acme ceramic dripper with stand")) for i in map(work_item, range(1_000, 1_400))]
    settings = settings_with(gate={"min_validator_pass_rate": 0.8, "min_slice_rows": 20, "max_reason_share": {}})
    run = make_run(rows, settings=settings)
    plan = run.store.read_json(run.plan("title"))
    own = settings.task("title").engine
    for engines, wrong in (
        (None, set()),
        ([own, own, "hosted"], {"pass rate of every bin, merchant, locale and engine"}),
    ):
        run.store.write_json(run.plan("title"), plan | ({"engines": engines} if engines else {}))
        manifests = [validate(run, "title", index) for index in range(3)]
        result = suite.check(run, "title")
        assert failed(result) == wrong
    assert [m["engine"] for m in manifests] == [own, own, "hosted"]
    entry = next(e for e in result["expectations"] if not e["success"])
    assert entry["observed"]["examples"] == [f"engine {own}: 0.0"]


def test_rows_that_vanish_break_the_accounting(make_run) -> None:
    items = [work_item(n) for n in range(4)]
    run = validated(make_run, [(i, answer(i)) for i in items])
    manifest = run.store.read_json(run.manifest("title", "validate", 0))
    manifest["aggregate"][0]["rows"] -= 1
    run.store.write_json(run.manifest("title", "validate", 0), manifest)
    assert {"every planned listing is accounted for", "accounting closes in every bin"} <= failed(
        suite.check(run, "title")
    )


def test_a_column_that_went_missing_is_a_broken_gate_not_bad_data(make_run) -> None:
    items = [work_item(n) for n in range(4)]
    run = validated(make_run, [(i, answer(i)) for i in items])
    manifest = run.store.read_json(run.manifest("title", "validate", 0))
    for cell in manifest["aggregate"]:
        cell["cause"] = cell.pop("reason")
    run.store.write_json(run.manifest("title", "validate", 0), manifest)
    outcome = suite.check(run, "title")
    assert (outcome["status"], "'reason'" in outcome["error"]) == ("broken", True)
    table = {
        "t": TableRules(
            {"other": [1]}, [Rule("r", "ExpectColumnValuesToBeBetween", {"column": "gone", "min_value": 0})]
        )
    }
    result = check_tables("x", "1", table)
    assert result["status"] == "broken"
    assert "gone" in result["error"]
    entry = next(entry for entry in result["expectations"] if entry["name"] == "r")
    assert observed_text(entry).startswith("an error, ")
    assert "gone" in observed_text(entry)


def test_the_breakers_marker_fails_the_suite_and_names_the_engine(make_run) -> None:
    items = [work_item(n) for n in range(200)]
    run = validated(make_run, [(i, answer(i, "f" * 60)) for i in items])
    result = suite.check(run, "title")
    entry = next(e for e in result["expectations"] if e["name"] == "no bin tripped the circuit breaker")
    assert not entry["success"]
    assert run.spec.settings.task("title").engine in entry["observed"]


def test_nothing_planned_is_empty_and_checks_nothing(make_run) -> None:
    result = suite.check(make_run([]), "title")
    assert (result["status"], result["expectations"]) == ("empty", [])


NULLS = [None, None, None]


@pytest.mark.parametrize(
    "titles",
    [
        NULLS,
        ["", "  "],
        ["\u00a0"],
        [],
        pd.Series(NULLS, dtype="object"),
        pd.Series(NULLS, dtype="str"),
        pd.Series(["", " "], dtype="str"),
    ],
    ids=["nulls", "blank", "nbsp", "no rows", "object nulls", "str nulls", "str blank"],
)
def test_no_content_rule_holds_on_nothing(titles: object) -> None:
    """great_expectations#5027, #7432, #1535: map rules skip nulls, hold on empty frames, and '' is not null."""
    rules = [
        *content_rules("title"),
        Rule("short", "ExpectColumnValueLengthsToBeBetween", {"column": "title", "max_value": 80}),
    ]
    assert check_tables("content", "1", {"t": TableRules({"title": titles}, rules)})["status"] == "failed"


@pytest.mark.parametrize("dtype", ["object", "str"])
def test_both_string_types_of_pandas_work(dtype: str) -> None:
    """great_expectations#11677: the pinned pair of versions must know pandas 3's own string type."""
    titles = pd.Series(["Blue mug", "Red mug"], dtype=dtype)
    rules = [
        *content_rules("title"),
        Rule("unique", "ExpectColumnValuesToBeUnique", {"column": "title"}),
        Rule("known", "ExpectColumnValuesToBeInSet", {"column": "title", "value_set": ["Blue mug", "Red mug"]}),
        Rule("lengths", "ExpectColumnValueLengthsToBeBetween", {"column": "title", "min_value": 3}),
    ]
    result = check_tables("content", "1", {"t": TableRules({"title": titles}, rules)})
    assert result["status"] == "passed", result


def test_all_null_figures_never_pass_a_limit() -> None:
    for kind in ("ExpectColumnValuesToBeBetween", "ExpectColumnMeanToBeBetween", "ExpectColumnSumToBeBetween"):
        table = TableRules({"rate": [None, None]}, [Rule("rate", kind, {"column": "rate", "min_value": 0})])
        assert check_tables("x", "1", {"t": table})["status"] != "passed", kind


def test_a_suite_without_rules_is_broken() -> None:
    assert check_tables("x", "1", {})["status"] == "broken"
    assert check_tables("x", "1", {"t": TableRules({"a": [1]}, [])})["status"] == "broken"


def test_an_unknown_rule_is_broken() -> None:
    result = check_tables("x", "1", {"t": TableRules({"a": [1]}, [Rule("r", "ExpectNothing", {})])})
    assert (result["status"], "ExpectNothing" in result["error"]) == ("broken", True)


def test_results_stay_small_and_plain_for_many_failures() -> None:
    """great_expectations#4774, #10367: 200,000 failing rows give counts and a few examples, and strict JSON."""
    table = TableRules(
        {"rate": np.zeros(200_000)}, [Rule("rate", "ExpectColumnValuesToBeBetween", {"column": "rate", "min_value": 1})]
    )
    result = check_tables("x", "1", {"t": table})
    text = json.dumps(result, allow_nan=False)
    assert result["status"] == "failed"
    assert len(text) < 4000
    assert next(e for e in result["expectations"] if not e["success"])["observed"]["rows"] == 200_000


def test_no_connection_is_opened_and_no_bar_is_drawn() -> None:
    """great_expectations#9966: analytics call home unless they are off before the import."""
    code = """
import sys
opened = []
sys.addaudithook(lambda event, args: opened.append((event, args[1:])) if event in ("socket.connect", "socket.getaddrinfo") else None)
import os
os.environ["GX_ANALYTICS_ENABLED"] = "true"
from include.expectations import Rule, TableRules, check_tables
rules = [Rule("a", "ExpectColumnValuesToBeBetween", {"column": "a", "min_value": 0})]
assert check_tables("x", "1", {"t": TableRules({"a": [1]}, rules)})["status"] == "passed"
assert not opened, opened
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "\r" not in done.stderr + done.stdout
    assert "Calculating Metrics" not in done.stderr + done.stdout
