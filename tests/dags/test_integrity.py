"""Every DAG file parses alone, fast, and without the libraries that only tasks need."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

PROJECT = Path(__file__).resolve().parents[2]
EXPECTED_DAG_IDS = {
    "calibrate_judge",
    "distill_task_model",
    "enhance_listings",
    "quantize_task_model",
    "roll_back_profile",
    "shadow_run",
    "tune_task_model",
    "watch_nightly_run",
}
HEAVY = ("vllm", "torch", "transformers", "great_expectations", "pandas", "trl", "peft", "llmcompressor")

# Parses in a fresh interpreter, as a DAG processor's child does; Airflow itself is imported before the clock starts.
_PARSE = """
import json, sys, time
import airflow.sdk, airflow.models
from airflow.dag_processing.dagbag import DagBag
started = time.perf_counter()
bag = DagBag(dag_folder=sys.argv[1])
seconds = time.perf_counter() - started
tasks = {dag_id: sorted(t.task_id for t in dag.tasks) for dag_id, dag in bag.dags.items()}
upstream = {t.task_id: sorted(t.upstream_task_ids - {"open_run"}) for t in bag.dags["enhance_listings"].tasks}
gpu = {f"{dag_id}/{t.task_id}": [t.pool, t.queue, dict(t.executor_config or {})] for dag_id, dag in bag.dags.items()
       for t in dag.tasks if t.task_type == "GPUTaskOperator" or t.queue != "default" or t.executor_config}
facts = {dag_id: {"tags": sorted(dag.tags), "doc": bool(dag.doc_md), "catchup": dag.catchup} for dag_id, dag in bag.dags.items()}
print("RESULT " + json.dumps({"seconds": seconds, "errors": bag.import_errors, "tasks": tasks, "facts": facts, "gpu": gpu, "upstream": upstream,
                              "modules": sorted(m for m in sys.argv[2].split(",") if m in sys.modules)}))
"""


def parse(home: Path, **variables: str) -> dict:
    environment = os.environ | {
        "AIRFLOW_HOME": str(home),
        "PYTHONPATH": f"{PROJECT}:{PROJECT / 'plugins'}",
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(PROJECT / "plugins"),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
    }
    environment |= variables
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


@pytest.fixture(scope="module")
def parsed(tmp_path_factory: pytest.TempPathFactory) -> dict:
    return parse(tmp_path_factory.mktemp("airflow_home"))


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


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> dict:
    """The DAGs of a configuration with all that adds or moves tasks: escalation, a hosted API, a queue, a pod template."""
    folder = tmp_path_factory.mktemp("changed")
    config = shutil.copytree(PROJECT / "include" / "config", folder / "config")
    hosted = {"kind": "openai", "model": "gpt", "lineage": "gpt", "batch_size": 8, "connection": "api"}
    (config / "engines" / "hosted.yaml").write_text(yaml.safe_dump(hosted))
    for name, change in (
        ("tasks/title.yaml", {"escalation": {"engine": "gpu-qwen3-4b", "max_texts": 100}}),
        ("tasks/description.yaml", {"routing": {"hosted": "hosted", "share": {"*": 0.1}, "pool": "api"}}),
        ("pipeline.yaml", {"gpu_queue": "gpu", "gpu_pod_template": "docker/pod-templates/gpu.yaml"}),
    ):
        path = config / name
        path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text("utf-8")) | change), "utf-8")
    found = parse(folder, LISTING_CONFIG_DIR=str(config))
    assert found["errors"] == {}
    return found


def test_a_task_with_escalation_gets_its_stage_between_the_bins_and_the_sample(changed: dict) -> None:
    assert {t for t in changed["tasks"]["enhance_listings"] if "escalate" in t} == {"title.escalate"}
    assert changed["upstream"]["title.sample"] == ["title.escalate"]
    assert changed["upstream"]["title.escalate"] == ["title.process_bin.validate"]


def test_a_switch_adds_the_hosted_apis_bins_which_hold_no_gpu(changed: dict) -> None:
    stages = ["plan_hosted_bins", "process_hosted_bin.generate", "process_hosted_bin.validate"]
    added = {t for t in changed["tasks"]["enhance_listings"] if "hosted" in t}
    assert added == {f"description.{stage}" for stage in stages}
    assert changed["gpu"][HOSTED] == ["api", "default", {}]
    assert changed["upstream"]["description.plan_hosted_bins"] == ["extract"]
    validated = ["description.process_bin.validate", "description.process_hosted_bin.validate"]
    assert changed["upstream"]["description.sample"] == validated


HOSTED = "enhance_listings/description.process_hosted_bin.generate"
GPU_TASKS = {
    "calibrate_judge/calibrate",
    "distill_task_model/evaluate",
    "distill_task_model/train",
    "quantize_task_model/make",
    "shadow_run/compare",
    "tune_task_model/quality",
    "tune_task_model/run",
} | {
    f"enhance_listings/{name}.{stage}"
    for name in ("description", "title")
    for stage in ("process_bin.generate", "judge")
}


def test_tasks_with_an_engine_are_in_the_gpu_pool_and_go_where_airflow_sends_every_task(parsed: dict) -> None:
    assert parsed["gpu"] == {name: ["gpu", "default", {}] for name in GPU_TASKS}


def test_settings_send_the_tasks_with_an_engine_and_no_other_to_a_queue_and_a_pod_template(changed: dict) -> None:
    template = {"pod_template_file": str(PROJECT / "docker" / "pod-templates" / "gpu.yaml")}
    tasks = GPU_TASKS | {"enhance_listings/title.escalate"}
    assert changed["gpu"] == {name: ["gpu", "gpu", template] for name in tasks} | {HOSTED: changed["gpu"][HOSTED]}


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
