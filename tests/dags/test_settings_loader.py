"""`airflow_settings.yaml` in a real metadata database: loaded whole, again without change, and readable by a task."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]

# One interpreter for all of it: Airflow costs seconds to import and its database seconds to make.
_SCRIPT = """
import json
from airflow.utils.db import initdb
initdb()
from airflow.models import Connection, Pool, Variable
from airflow.utils.session import create_session
from listing_operators.settings_loader import load_airflow_settings
from sqlalchemy import select

def stored():
    with create_session() as session:
        return {
            "connections": {c.conn_id: [c.conn_type, c.host, c.extra] for c in session.scalars(select(Connection))},
            "pools": {p.pool: [p.slots, p.include_deferred] for p in session.scalars(select(Pool))},
            "variables": {v.key: v.val for v in session.scalars(select(Variable))},
        }

counts = load_airflow_settings()
first = stored()
with create_session() as session:
    Pool.create_or_update_pool("gpu", 7, "changed by hand", False, session=session)
    Pool.create_or_update_pool("mine", 3, "", False, session=session)
load_airflow_settings()
print("RESULT " + json.dumps({"counts": counts, "first": first, "second": stored()}))
"""


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict:
    home = tmp_path_factory.mktemp("airflow")
    environment = {key: value for key, value in os.environ.items() if not key.startswith("AIRFLOW")} | {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(home / "none"),
        "PYTHONPATH": f"{PROJECT}:{PROJECT / 'plugins'}",
    }
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT], env=environment, capture_output=True, text=True, timeout=180, check=False
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, done.stderr[-3000:]
    return json.loads(lines[0].removeprefix("RESULT "))


def test_every_entry_of_the_file_is_loaded(result: dict) -> None:
    assert result["counts"] == {"connections": 2, "pools": 1, "variables": 1}
    assert result["first"]["connections"]["ads_warehouse"] == ["sqlite", "build/ads_warehouse.db", None]
    assert result["first"]["pools"]["gpu"] == [1, True]
    assert result["first"]["variables"] == {"alert_connection": ""}


def test_loading_again_restores_the_file_and_leaves_other_entries_alone(result: dict) -> None:
    others = result["second"]["pools"].pop("mine")
    assert others == [3, False]
    assert result["second"] == result["first"]
