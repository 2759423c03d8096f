"""The pages in a real browser, within Airflow's own: login, navigation, escaped text, a narrow screen.

A real API server and no engine: the run's folder is laid down as a night leaves it. `LISTING_SCREENSHOTS` names a folder to
keep pictures in, as `docs/images` has them.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path

import httpx
import pytest

from include.reporting.report import write_report
from include.warehouse.migrate import migrate
from tests.airflow_services import free_port
from tests.finished_runs import HOSTILE, finished_run, refusal
from tests.nightly import Nightly

playwright = pytest.importorskip("playwright.sync_api")
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.scheduler,
    pytest.mark.long,
    pytest.mark.skipif(BROWSER is None, reason="needs chromium or chrome on the PATH"),
]
DAY = date(2026, 3, 1)
PASSWORD = "only-for-this-test"
TIMEOUT = 300_000  # milliseconds in which a page must come; busy cores are slow


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of an API server with one user, `reader`, who may look and change nothing."""
    root, port = tmp_path_factory.mktemp("ui"), free_port()
    passwords = root / "passwords.json"
    passwords.write_text(json.dumps({"reader": PASSWORD}))
    nightly = Nightly(
        root,
        AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS="False",
        AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS="reader:viewer",
        AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE=str(passwords),
        AIRFLOW__API__BASE_URL=f"http://127.0.0.1:{port}",
        AIRFLOW__API_AUTH__JWT_SECRET="only-for-this-test-0123456789abcdef",
    )
    migrate(nightly.env["ADS_WAREHOUSE_URL"])
    for back in range(12):
        rows = [refusal(n, "emoji" if n % 4 else "length") for n in range(60)]
        rows[0] = refusal(0, "length", output=HOSTILE, merchant_id="hostile")
        run = finished_run(root / "data", DAY - timedelta(days=back), refusals=rows, tasks=("title", "description"))
        if not back:
            write_report(run)
    done = nightly.command("airflow", "db", "migrate")
    assert done.returncode == 0, done.stderr[-2000:]
    with (root / "api-server.log").open("w") as log:
        command = ["airflow", "api-server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
        server = subprocess.Popen(
            command, env=nightly.env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            wait_for(f"http://127.0.0.1:{port}/api/v2/version", server, root / "api-server.log")
            yield f"http://127.0.0.1:{port}"
        finally:
            os.killpg(server.pid, signal.SIGTERM)
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(server.pid, signal.SIGKILL)


def wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline and server.poll() is None:
        try:
            if httpx.get(url, timeout=10).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(1)
    raise AssertionError(f"the API server did not come up: {log.read_text()[-3000:]}")


def picture(page, name: str) -> None:
    if folder := os.environ.get("LISTING_SCREENSHOTS"):
        page.screenshot(path=str(Path(folder) / name))


def test_without_a_login_there_is_nothing_to_see(airflow: str) -> None:
    for path in ("/", "/trends", f"/runs/{DAY}/x/quarantine/title/csv"):
        assert httpx.get(f"{airflow}/listing-reports{path}", timeout=60).status_code == 401


def test_a_reader_finds_the_last_run_and_its_quarantine(airflow: str) -> None:
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.set_default_timeout(TIMEOUT)
        problems: list[str] = []
        page.on(
            "console", lambda message: problems.append(message.text) if "Content Security" in message.text else None
        )
        page.goto(airflow)
        page.locator("input[name=username]").fill("reader")
        page.locator("input[name=password]").fill(PASSWORD)
        page.locator("button[type=submit]").click()
        page.get_by_role("button", name="Browse").first.click()
        page.get_by_role("menuitem", name="Listing runs").click()
        frame = page.frame_locator("iframe[title='Listing runs']")
        frame.get_by_role("heading", name="Nightly runs").wait_for()
        first = frame.locator("tbody tr").first
        assert str(DAY) in first.inner_text()
        assert "87.5% (53.0% to 98.0%)" in first.inner_text()
        picture(page, "ui-runs.png")

        frame.get_by_role("link", name="Trends").click()
        frame.get_by_role("heading", name="Trends over nights").wait_for()
        assert frame.locator("svg").count() == 6

        frame.get_by_role("link", name="Runs", exact=True).click()
        frame.locator("tbody tr").first.locator("th a").click()
        report = frame.frame_locator("iframe[title='Report of the run']")
        report.get_by_role("heading", name=f"Listing enhancement, {DAY}").wait_for()

        frame.get_by_role("link", name="Quarantine of title", exact=True).click()
        frame.get_by_label("Merchant or listing id contains").fill("hostile")
        frame.get_by_label("Reason").select_option("length")
        frame.get_by_role("button", name="Filter").press("Enter")
        page.wait_for_url("**text=hostile**")  # Airflow's own address follows, so that it can be sent to someone
        assert frame.locator("tbody tr").count() == 1
        assert HOSTILE in frame.locator("tbody tr").inner_text()
        assert "owned" not in page.title()
        picture(page, "ui-quarantine.png")
        with page.expect_download() as download:
            frame.get_by_role("link", name="Download as CSV").click()
        assert "hostile" in Path(download.value.path()).read_text()

        narrow = browser.new_page(viewport={"width": 360, "height": 700}, storage_state=page.context.storage_state())
        narrow.set_default_timeout(TIMEOUT)
        for path in ("/", "/trends", f"/runs/{DAY}/scheduled__{DAY}T00_00_00_00_00/quarantine/title"):
            narrow.goto(f"{airflow}/listing-reports{path}")
            width = narrow.evaluate("document.documentElement.scrollWidth")
            assert width <= 360, f"{path} is {width} wide: only its tables may scroll sideways"
        narrow.keyboard.press("Tab")
        assert narrow.evaluate("document.activeElement.textContent") == "Skip to the content"
        assert problems == []
        browser.close()
