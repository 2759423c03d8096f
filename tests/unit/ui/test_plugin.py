"""Airflow finds the plugin, and only the API server pays for its web application; the button knows its run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from listing_ui import links

PROJECT = Path(__file__).resolve().parents[3]
_LOAD = """
import sys
from airflow import plugins_manager as found
plugins, errors = found._get_plugins()
assert not errors, errors
assert [p.name for p in plugins if str(p.source).startswith("$PLUGINS_FOLDER")] == ["listing_reports"], plugins
assert [link.name for link in found.get_global_operator_extra_links()] == ["Run report and quarantine"]
assert "listing_ui.app" not in sys.modules, "every process would import the web application"
(view,) = [v for v in found._get_ui_plugins()[0] if v["name"] == "Listing runs"]
assert view["href"] == "/airflow/listing-reports/", view
(app,) = [a for a in found.get_fastapi_plugins()[0] if a["name"] == "Listing runs"]
assert app["url_prefix"] == "/listing-reports"
"""


def test_airflow_loads_the_plugin_and_makes_the_application_only_when_asked(tmp_path: Path) -> None:
    environment = os.environ | {
        "AIRFLOW_HOME": str(tmp_path),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(PROJECT / "plugins"),
        "AIRFLOW__API__BASE_URL": "https://example.com/airflow/",
        "PYTHONPATH": f"{PROJECT}:{PROJECT / 'plugins'}",
    }
    done = subprocess.run(
        [sys.executable, "-c", _LOAD], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_the_button_leads_to_the_run_of_its_task() -> None:
    operator: Any = None
    key: Any = SimpleNamespace(dag_id="enhance_listings", run_id="scheduled__2026-03-01T00:00:00+00:00")
    address = links.RunReportLink().get_link(operator, ti_key=key)
    assert address.endswith("/plugin/listing-reports/listing-reports/find/scheduled__2026-03-01T00%3A00%3A00%2B00%3A00")
    other: Any = SimpleNamespace(dag_id="other", run_id="x")
    assert links.RunReportLink().get_link(operator, ti_key=other) == ""
