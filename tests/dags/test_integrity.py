"""Every DAG file parses alone, fast, and without the libraries that only tasks need."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
EXPECTED_DAG_IDS = {
    "calibrate_judge",
    "distill_task_model",
    "enhance_listings",
    "roll_back_profile",
    "shadow_run",
    "tune_task_model",
}
HEAVY = ("vllm", "torch", "transformers", "great_expectations", "pandas", "trl", "peft")

# Parses in a fresh interpreter, as a DAG processor's child does; Airflow itself is imported before the clock starts.
_PARSE = """
import json, sys, time
import airflow.sdk, airflow.models
from airflow.dag_processing.dagbag import DagBag
started = time.perf_counter()
bag = DagBag(dag_folder=sys.argv[1])
seconds = time.perf_counter() - started
tasks = {dag_id: sorted(t.task_id for t in dag.tasks) for dag_id, dag in bag.dags.items()}
facts = {dag_id: {"tags": sorted(dag.tags), "doc": bool(dag.doc_md), "catchup": dag.catchup} for dag_id, dag in bag.dags.items()}
print("RESULT " + json.dumps({"seconds": seconds, "errors": bag.import_errors, "tasks": tasks, "facts": facts,
                              "modules": sorted(m for m in sys.argv[2].split(",") if m in sys.modules)}))
"""


@pytest.fixture(scope="module")
def parsed(tmp_path_factory: pytest.TempPathFactory) -> dict:
    home = tmp_path_factory.mktemp("airflow_home")
    environment = os.environ | {
        "AIRFLOW_HOME": str(home),
        "PYTHONPATH": f"{PROJECT}:{PROJECT / 'plugins'}",
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(PROJECT / "plugins"),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
    }
    done = subprocess.run(
        [sys.executable, "-c", _PARSE, str(PROJECT / "dags"), ",".join(HEAVY)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, done.stderr[-3000:]
    return json.loads(lines[-1].removeprefix("RESULT "))


def test_exactly_the_expected_dags_parse_without_errors(parsed: dict) -> None:
    assert parsed["errors"] == {}
    assert set(parsed["tasks"]) == EXPECTED_DAG_IDS


def test_parsing_imports_no_heavy_library_and_takes_under_two_seconds(parsed: dict) -> None:
    assert parsed["modules"] == []
    assert parsed["seconds"] < 2.0


def test_every_dag_has_docs_tags_and_no_catchup(parsed: dict) -> None:
    for dag_id, facts in parsed["facts"].items():
        assert facts["doc"], dag_id
        assert facts["tags"], dag_id
        assert facts["catchup"] is False, dag_id


def test_the_nightly_dag_has_one_chain_of_stages_per_enhancement_task(parsed: dict) -> None:
    stages = [
        "gate",
        "judge",
        "load",
        "plan_bins",
        "process_bin.generate",
        "process_bin.validate",
        "reconcile",
        "sample",
    ]
    chains = [f"{name}.{stage}" for name in ("description", "title") for stage in stages]
    assert parsed["tasks"]["enhance_listings"] == sorted(["open_run", "extract", "report", "finish", *chains])


def test_tuning_ends_with_a_person_and_a_way_back(parsed: dict) -> None:
    assert parsed["tasks"]["tune_task_model"] == sorted(["prepare", "run", "quality", "report", "approve", "promote"])
    assert parsed["tasks"]["roll_back_profile"] == ["roll_back"]


def test_a_shadow_run_ends_with_its_report(parsed: dict) -> None:
    assert parsed["tasks"]["shadow_run"] == sorted(["prepare", "compare", "report"])


def test_no_code_touches_airflows_metadata_database() -> None:
    for path in [*PROJECT.glob("dags/**/*.py"), *PROJECT.glob("plugins/**/*.py"), *PROJECT.glob("include/**/*.py")]:
        if path.name == "settings_loader.py":  # a deployment command, never imported by a task
            continue
        text = path.read_text(encoding="utf-8")
        assert "airflow.settings" not in text, path
        assert "create_session" not in text, path
        assert "provide_session" not in text, path
        assert "airflow.models" not in text, path
