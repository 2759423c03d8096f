"""The run's page: figures that add up, nothing invented where nothing is known, and every text of a merchant as text."""

from __future__ import annotations

import re
from datetime import date, timedelta
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from include.judging.costs import ComparisonSettings
from include.partitions import PartWriter
from include.records import Verdict
from include.reporting import figures, report
from include.reporting.report import write_report
from include.runs import Run
from tests.finished_runs import HOSTILE, finished_run, refusal, verdict

DAY = date(2026, 3, 2)
PRICES = {"gpu_hour_price": 3.6, "gpu_hour_price_source": "offer <b>7</b>", "hosted_price_per_million": {"title": 120.0},
          "hosted_price_source": "price list"}  # fmt: skip


@pytest.fixture(autouse=True)
def prices(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    set_prices(monkeypatch, **PRICES)


def set_prices(monkeypatch: pytest.MonkeyPatch, **values: Any) -> None:
    monkeypatch.setattr(report, "load_comparison", lambda: ComparisonSettings(**values))


def page_of(run: Run, **options: str) -> str:
    text = Path(write_report(run, **options)).read_text(encoding="utf-8")
    assert "<script" not in text
    return text


def words(page: str) -> str:
    """The page as it reads, without its pictures and the JSON at its end."""
    page = page.split("<summary>Summary as JSON")[0].split("</style>")[1]
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", page)))


def change(run: Run, stage: str, bin_index: int | None = None, **values: Any) -> None:
    path = run.manifest("title", stage, bin_index)
    run.store.write_json(path, (run.store.read_json(path) or {}) | values)


def hostile_run(tmp_path: Path, **options: Any) -> Run:
    """A run with markup in title, merchant, reason, claim and answer, of 40 refusals by 25 merchants."""
    rows = [refusal(n, "emoji" if n % 2 else f"r{HOSTILE}", merchant_id=f"m{n % 25} $x$ {HOSTILE}", output=f"bad {HOSTILE}")
            for n in range(40)]  # fmt: skip
    run = finished_run(tmp_path, DAY, refusals=rows, **options)
    examples = [{"text_id": "r25", "detail": f"unsupported: “{HOSTILE}”"}]
    change(
        run,
        "gate",
        failed_text_ids=["a0", *(f"r{n}" for n in range(20, 40))],
        examples=examples,
        reasons=[f"of {HOSTILE}"],
    )
    return run


def test_the_funnel_and_the_rejections_add_up_to_what_was_extracted(tmp_path: Path) -> None:
    page = words(page_of(hostile_run(tmp_path)))
    assert "extracted 60 100.0% to be written 60 100.0% answered 60 100.0%" in page
    assert "let pass by the validators 40 66.7% refused 20 accepted 20 33.3%" in page
    assert "loaded 19 31.7% stale 1" in page
    assert "emoji 20 judge, validate" in page
    assert "5 others 5 " in page, "twenty merchants by name, the others together"
    assert len(re.findall(r"m\d+ \$x\$ \S+ 2 ", page)) == 15


def test_every_text_of_a_merchant_stays_text_and_each_kind_of_example_is_there(tmp_path: Path) -> None:
    page = page_of(hostile_run(tmp_path))
    text = words(page)
    assert text.count(HOSTILE) > 20
    assert f"unsupported: “{HOSTILE}” " in text
    assert f"OLD r25 {HOSTILE} bad {HOSTILE} unsupported" in text
    accepted, rejected = text.split("Accepted")[1].split("Rejected")
    assert [f"L-a{n} " in accepted for n in range(7)] == [False, True, True, True, True, True, False], (
        "a0 was judged bad"
    )
    assert rejected.count(" emoji ") == rejected.split("Judged bad")[0].count(f" r{HOSTILE} ") == 3
    assert page.count("data:image/png;base64,") == 2


def test_a_judged_history_is_drawn_and_only_of_earlier_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(report, "nights_plot", lambda nights, *limits: drawn.append((nights, limits)) or b"")
    for back, status in ((2, "failed"), (1, "passed"), (-1, "passed")):
        finished_run(tmp_path, DAY - timedelta(days=back), status=status)
    page = words(page_of(finished_run(tmp_path, DAY)))
    ((nights, limits),) = drawn
    assert [(str(n["date"]), n["status"]) for n in nights] == [
        ("2026-02-28", "failed"), ("2026-03-01", "passed"), ("this run", "passed"),
    ]  # fmt: skip
    assert limits == (0.8, 0.05, "title")
    assert "2 earlier run(s)" in page
    assert "2026-03-01 published 24 19 4 87.5% (53.0% to 98.0%) 2.5" in page


def test_a_warehouse_that_is_away_is_told_and_costs_nothing_else(tmp_path: Path) -> None:
    page = words(page_of(finished_run(tmp_path, DAY), warehouse_url=f"sqlite:///{tmp_path}/none/warehouse.db"))
    assert "What became of the copy later is not shown" in page
    assert "No earlier run is known" in page


def test_throughput_stands_beside_the_tuned_rate_of_the_promoted_profile(tmp_path: Path) -> None:
    run = finished_run(tmp_path, DAY)
    assert "No tuned rate: no bin ran on a promoted profile" in words(page_of(run))
    change(run, "generate", 0, tuned_requests_per_s=3.0, promotion="v<7>", roofline_share=0.25)
    page = words(page_of(run))
    assert "Tuned rate of the promoted profile: 3 requests a second; reached 2.5, 83.3% of it (promotion v<7>)" in page
    assert "Share of the roofline: 25.0%" in page


def test_shares_of_several_bins_are_weighted_by_time() -> None:
    fast = {"requests": 100, "busy_s": 10.0, "tuned_requests_per_s": 10.0, "roofline_share": 0.5, "promotion": "a"}
    slow = {"requests": 100, "busy_s": 40.0, "tuned_requests_per_s": 5.0, "roofline_share": 0.1, "promotion": "b"}
    unknown = {"requests": 900, "busy_s": 9.0, "roofline_share": None}
    found = figures.throughput([fast, slow, unknown, {"requests": 0, "busy_s": 0.0}])
    assert found["share"] == (10 + 20) / 50
    assert found["tuned_rate"] == pytest.approx(200 / 30)
    assert (found["rate"], found["roofline_share"]) == (4.0, (5 + 4) / 50)


def test_the_cost_of_an_accepted_listing_is_of_every_stage_with_an_engine(tmp_path: Path) -> None:
    run = finished_run(tmp_path, DAY)
    change(run, "generate", 0, device_s=36.0, engine={"device": "cpu"})
    change(run, "judge", device_s=4.0, session={"engine": {"device": "NVIDIA H200"}})
    page = words(page_of(run))
    assert re.search(r"generate \S+ cpu 36 0.036 judge \S+ NVIDIA H200 4 0.004 together 40 0.04 ", page)
    assert "ours, of 20 accepted listings 0.0020000 2,000 3.6 an hour of a device; offer <b>7</b>" in page
    assert "hosted batch, of all it answers 0.0001200 120 price list" in page


def test_an_endpoint_costs_what_its_manifest_says_and_an_unknown_price_is_left_out_by_name(tmp_path: Path) -> None:
    run = finished_run(tmp_path, DAY)
    values = run.spec.settings.model_dump()
    values["engines"]["big"] = values["engines"][values["tasks"]["title"]["engine"]] | {"name": "big", "kind": "openai"}
    values["tasks"]["title"]["escalation"] = {"engine": "big", "max_texts": 5}
    run.spec = run.spec.model_copy(update={"settings": type(run.spec.settings).model_validate(values)})
    change(run, "generate", 0, device_s=1000.0)
    change(run, "judge", sampled=9)
    change(run, "escalate", device_s=0.0, cost=0.5, texts={})
    found = figures.costs(
        run, "title", [run.store.read_json(run.manifest("title", "generate", 0))], 10, ComparisonSettings(**PRICES)
    )
    assert [(row["stage"], row["seconds"], row["price"]) for row in found["stages"]] == [
        ("generate", 1000.0, 1.0), ("judge", None, None), ("escalate", None, 0.5),
    ]  # fmt: skip
    assert (found["total"], found["without"], found["per_accepted"]) == (1.5, ["judge"], 0.15)


def test_a_hosted_route_costs_the_hosted_price_of_its_requests(tmp_path: Path) -> None:
    run = finished_run(tmp_path, DAY)
    values = run.spec.settings.model_dump()
    own = values["tasks"]["title"]["engine"]
    hosted = {"name": "hosted", "kind": "openai", "connection": "hosted_api", "lineage": "hosted"}
    values["engines"]["hosted"] = values["engines"][own] | hosted
    values["tasks"]["title"]["routing"] = {"hosted": "hosted", "share": {"*": 0.5}}
    run.spec = run.spec.model_copy(update={"settings": type(run.spec.settings).model_validate(values)})
    run.store.write_json(run.plan("title"), {"bins": [[0], [1]], "rows": [9, 9], "engines": [own, "hosted"]})
    bins = [{"device_s": 1000.0, "requests": 9}, {"device_s": 0.0, "requests": 500}]
    found = figures.costs(run, "title", bins, 10, ComparisonSettings(**PRICES))
    assert [(row["stage"], row["seconds"], row["price"]) for row in found["stages"][:2]] == [
        ("generate", 1000.0, 1.0), ("generate, hosted", None, pytest.approx(0.06)),
    ]  # fmt: skip


def test_without_prices_nothing_is_invented(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_prices(monkeypatch)
    page = words(page_of(finished_run(tmp_path, DAY)))
    assert "ours, of 20 accepted listings not configured - gpu_hour_price is not configured" in page
    assert "hosted batch, of all it answers not configured - hosted_price_per_million is not configured" in page
    run = finished_run(tmp_path, DAY)
    monkeypatch.undo()
    monkeypatch.setenv("LISTING_CONFIG_DIR", str(tmp_path))
    assert "Prices: cannot read" in words(page_of(run))


def test_a_run_that_stopped_early_shows_how_far_it_came(tmp_path: Path) -> None:
    run = finished_run(tmp_path, DAY)
    for stage in ("gate", "judge", "load", "reconcile"):
        run.store.remove(run.manifest("title", stage))
    page = words(page_of(run))
    assert "let pass by the validators 22 91.7% refused 2 accepted not reached - loaded not reached -" in page
    assert "gate not reached" in page
    run.store.remove(run.manifest("title", "validate", 0))
    assert "to be written 24 100.0% answered not reached" in words(page_of(run))
    run.store.remove(run.plan("title"))
    run.store.remove(run.manifest("title", "extract"))
    page = words(page_of(run))
    assert "stopped after open" in page
    assert "No listing was extracted" in page


def test_a_run_without_a_judge_and_an_empty_run(tmp_path: Path) -> None:
    run = finished_run(tmp_path / "a", DAY, status="broken")
    change(run, "gate", judge=None)
    assert "Judge pass rate - over 0 of 0 sampled texts" in words(page_of(run))
    run = finished_run(tmp_path / "b", DAY)
    run.store.write_json(run.plan("title"), {"bins": [], "rows": [], "counts": {"extracted": 4, "unchanged": 4}})
    run.store.remove("quarantine")
    change(run, "gate", status="empty", counts={"extracted": 4, "unchanged": 4}, suite={})
    page = words(page_of(run))
    assert "title: empty" in page
    assert "to be written 0 0.0% unchanged 4" in page
    assert "No listing was quarantined" in page
    assert "ours, of 0 accepted listings none was accepted" in page


def test_links_lead_to_what_is_there(tmp_path: Path) -> None:
    run = finished_run(tmp_path, DAY)
    assert 'href="quarantine/title"' in page_of(run)
    assert "No Data Docs" in page_of(run)
    run.store.write_bytes("data_docs/title/index.html", b"<html>")
    page = page_of(run)
    for link in re.findall('href="([^"]+)"', page):
        assert run.store.exists(link), link
    assert "Data Docs of the gate" in page


def test_examples_stop_reading_when_they_are_complete(tmp_path: Path) -> None:
    run = finished_run(tmp_path, DAY)
    with PartWriter(run.store, run.verdicts("title", 0), Verdict, first=1) as parts:
        parts.write(verdict("late"))
    run.store.write_bytes(f"{run.verdicts('title', 0)}/part-00002.parquet", b"torn, and never opened")
    refused = figures.refusals(run, "title")
    found = figures.examples(run, "title", {}, refused)
    assert [len(rows) for rows in found.values()] == [5, 2, 0]
