"""The pages in Airflow: who may see them, what they show, and that a merchant's text stays text."""

from __future__ import annotations

import re
from datetime import date, timedelta
from pathlib import Path

import pytest
from airflow.sdk.exceptions import AirflowNotFoundException
from fastapi.testclient import TestClient

from include.reporting.report import write_report
from include.runs import Run
from include.warehouse.database import engine_for
from include.warehouse.migrate import migrate
from listing_ui import app as pages
from tests.finished_runs import HOSTILE, finished_run, refusal

DAY = date(2026, 3, 1)
RUN = f"/runs/{DAY}/scheduled__2026-03-01T00_00_00_00_00"
QUARANTINE = f"{RUN}/quarantine/title"
DOCS = f"{RUN}/data_docs/title/index.html"
FIND = "/find/scheduled__2026-03-01T00:00:00%2B00:00"
ADDRESSES = ["/", FIND, "/trends", "/style.css", RUN, f"{RUN}/report", QUARANTINE, f"{QUARANTINE}/csv", DOCS]


@pytest.fixture
def client(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/warehouse.db"
    migrate(url)
    app = pages.create_app()
    app.dependency_overrides |= {pages.data_url: lambda: str(tmp_path / "data"), pages.warehouse_url: lambda: url}
    rows = [refusal(n, "emoji" if n % 4 else "length") for n in range(120)]
    rows[0] = refusal(0, "length", output=f"=cmd {HOSTILE}", detail="“claim”", merchant_id="m<b>0")
    run = finished_run(tmp_path / "data", DAY, refusals=rows, rows_per_part=50)
    run.store.write_bytes("data_docs/title/index.html", b"<html><p>Expectations</p>")
    run.store.write_bytes("report.html", b"<html><p>Report</p>")  # drawing it takes a second
    yield TestClient(app)
    engine_for(url).dispose()


@pytest.fixture
def allowed(client: TestClient) -> TestClient:
    client.app.dependency_overrides |= {pages.may_see_runs: lambda: None, pages.may_see_texts: lambda: None}
    return client


@pytest.mark.parametrize("address", ADDRESSES)
def test_every_address_asks_for_a_login(client: TestClient, address: str) -> None:
    assert client.get(address).status_code == 401


def test_no_address_is_left_out(client: TestClient) -> None:
    routes = {route.path for route in client.app.routes}
    assert routes == {
        re.sub(r"/runs/[^/]+/[^/]+", "/runs/{day}/{name}", a)
        .replace("/title", "/{task}")
        .replace("data_docs/{task}/index.html", "data_docs/{docs_page:path}")
        .replace(FIND, "/find/{run_id}")
        for a in ADDRESSES
    }


@pytest.mark.parametrize("address", ADDRESSES)
def test_pages_come_with_a_policy_that_allows_no_script(allowed: TestClient, address: str) -> None:
    answer = allowed.get(address)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-content-type-options"] == "nosniff"
    if answer.headers["content-type"].startswith("text/html"):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src" not in policy
        assert "<script" not in answer.text
        assert address.endswith("/report") or address == DOCS or "style=" not in answer.text, (
            "the page's own policy forbids it"
        )


def test_the_report_has_no_origin_of_its_own(allowed: TestClient) -> None:
    assert allowed.get(f"{RUN}/report").headers["content-security-policy"].startswith("sandbox;")
    assert 'sandbox=""' in allowed.get(RUN).text


def test_the_reports_links_lead_to_pages(allowed: TestClient, tmp_path: Path) -> None:
    write_report(Run.open(f"{tmp_path}/data/dt={DAY}/run={RUN.rsplit('/', 1)[1]}"))
    text = allowed.get(f"{RUN}/report").text
    assert "<script" not in text
    links = re.findall('href="([^"]+)"', text)
    assert [f"{RUN}/{link}" for link in links] == [DOCS, QUARANTINE]
    assert f'href="{DOCS}"' in allowed.get(RUN).text
    assert allowed.get(DOCS).headers["content-security-policy"].startswith("sandbox;")


def test_history_links_to_the_run_and_its_quarantine(allowed: TestClient) -> None:
    text = allowed.get("/").text
    assert f'href="{RUN}"' in text
    assert f'href="{QUARANTINE}"' in text
    for figure in ("published", "140", "19", "75.0%", "87.5% (53.0% to 98.0%)", "2.50"):
        assert figure in text, figure


def test_without_a_warehouse_connection_the_folders_are_shown(
    allowed: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "sqlalchemy_url", missing)
    del allowed.app.dependency_overrides[pages.warehouse_url]
    text = allowed.get("/").text
    assert "What became of the copy later is not shown" in text
    assert f'href="{RUN}"' in text


def missing(conn_id: str) -> str:
    raise AirflowNotFoundException(conn_id)


def test_history_is_paged(allowed: TestClient, tmp_path: Path) -> None:
    for back in range(1, 25):
        finished_run(tmp_path / "data", DAY - timedelta(days=back), refusals=[])
    first = allowed.get("/").text
    assert first.count("<tr>") == 21
    following = re.search(r'href="(/\?after=[^"]+)" rel="next"', first)
    assert following
    second = allowed.get(following[1].replace("&amp;", "&")).text
    assert second.count("<tr>") == 6
    assert 'rel="next"' not in second


def test_trends_draw_pass_rate_baseline_and_throughput(allowed: TestClient, tmp_path: Path) -> None:
    finished_run(tmp_path / "data", DAY - timedelta(days=1))
    text = allowed.get("/trends").text
    assert text.count("<svg") == 3
    assert text.count('class="baseline"') == 1
    assert text.count('class="bar"') == 2
    assert "2026-03-01: 87.5% (53.0% to 98.0%)" in text


def test_a_merchants_text_stays_text(allowed: TestClient) -> None:
    text = allowed.get(QUARANTINE, params={"reason": "length"}).text
    assert "&lt;script&gt;" in text
    assert "m&lt;b&gt;0" in text
    echoed = allowed.get(QUARANTINE, params={"text": '"><script>', "reason": '"><script>'}).text
    assert "<script" not in echoed


def test_quarantine_filters_and_pages(allowed: TestClient) -> None:
    first = allowed.get(QUARANTINE, params={"reason": "emoji", "text": "L-"}).text
    assert first.count("<tr>") == 51
    assert "emoji (90)" in first
    following = re.search(r'href="([^"]+)" rel="next"', first)
    assert following
    second = allowed.get(following[1].replace("&amp;", "&")).text
    assert second.count("<tr>") == 41
    assert "No listing of these was found" in allowed.get(QUARANTINE, params={"text": "nobody"}).text


def test_csv_is_a_download_without_formulas(allowed: TestClient) -> None:
    answer = allowed.get(f"{QUARANTINE}/csv", params={"reason": "length"})
    assert answer.headers["content-disposition"] == 'attachment; filename="quarantine-2026-03-01-title.csv"'
    assert answer.text.count("\r\n") == 31
    assert f",'=cmd {HOSTILE}" in answer.text


@pytest.mark.parametrize(
    ("address", "status"),
    [
        ("/find/manual__unknown", 404),
        ("/?after=x", 400),
        (f"{QUARANTINE}?after=part:x", 400),
        ("/runs/2026-03-01/other", 404),
        ("/runs/2026-03-01/..%2f..%2fetc", 404),
        ("/runs/no-day/x", 422),
        (f"{RUN}/data_docs/title/..%2f..%2frun.html", 422),
        (f"{RUN}/data_docs/title/index.json", 422),
        (f"{RUN}/data_docs/description/index.html", 404),
        (f"{RUN}/quarantine/a.b", 422),
    ],
)
def test_addresses_that_lead_nowhere(allowed: TestClient, address: str, status: int) -> None:
    assert allowed.get(address).status_code == status


def test_a_run_is_found_by_its_id(allowed: TestClient) -> None:
    assert allowed.get(FIND).url.path == RUN


def test_pages_are_told_where_they_are_mounted(allowed: TestClient) -> None:
    from fastapi import FastAPI

    outer = FastAPI(root_path="/airflow")
    outer.mount("/listing-reports", allowed.app)
    text = TestClient(outer).get("/airflow/listing-reports/").text
    assert f'href="/airflow/listing-reports{RUN}"' in text
