"""The common-ai provider's batch adapter, with the provider's own classes where it is installed."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from listing_operators import batch_adapter
from listing_operators.batch_adapter import EngineBatchAdapter, UnknownBatchError

try:
    HAS_PROVIDER = find_spec("airflow.providers.common.ai.batch") is not None
except ModuleNotFoundError:
    HAS_PROVIDER = False
needs_provider = pytest.mark.skipif(not HAS_PROVIDER, reason="apache-airflow-providers-common-ai is not installed")
ENGINE = "cpu-smollm2"
KEY, FINGERPRINT = "0123456789abcdef", "f" * 64


@pytest.fixture
def adapter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EngineBatchAdapter:
    monkeypatch.setattr(batch_adapter, "COMMAND", ("tests.batch_child",))
    monkeypatch.setenv("LISTING_LEASE_DIR", str(tmp_path / "leases"))
    monkeypatch.setenv("LISTING_PARENT_PID", "1")  # a task's own child has it; a batch must outlive the task
    return EngineBatchAdapter(base_url=str(tmp_path / "batches"))


def submit(adapter: EngineBatchAdapter, requests: list[dict[str, Any]]) -> str:
    from airflow.providers.common.ai.batch.output_schema import build_output_spec

    options = {"model": ENGINE, "idempotency_key": KEY, "input_fingerprint": FINGERPRINT}
    return str(adapter.submit(requests, output_spec=build_output_spec(str), **options).batch_id)


def ended(adapter: EngineBatchAdapter, batch_id: str) -> Any:
    until = time.monotonic() + 120
    while (state := adapter.get_batch(batch_id)).status == "in_progress" and time.monotonic() < until:
        time.sleep(0.1)
    return state


def test_the_module_can_be_imported_without_the_provider() -> None:
    assert EngineBatchAdapter.name == "listing-engine"


def test_an_unknown_batch_is_a_404(adapter: EngineBatchAdapter) -> None:
    with pytest.raises(UnknownBatchError) as caught:
        adapter.iter_results("none")
    assert caught.value.status_code == 404
    assert adapter.find_orphaned_batch(KEY, FINGERPRINT, "") is None


def test_an_endpoints_process_gets_the_address_of_the_profiles_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.sdk import Connection

    config = shutil.copytree(Path("include/config"), tmp_path / "config")
    profile = "kind: openai\nmodel: gpt\nlineage: gpt\nbatch_size: 8\nconnection: api\n"
    (config / "engines" / "hosted.yaml").write_text(profile)
    monkeypatch.setenv("LISTING_CONFIG_DIR", str(config))
    found = Connection(conn_id="api", conn_type="openai", host="https://api.example.com/v1", password="k/ey")
    monkeypatch.setattr(Connection, "get", lambda conn_id: {"api": found}[conn_id])
    started: list[dict[str, str]] = []
    process = SimpleNamespace(pid=os.getpid())
    monkeypatch.setattr(batch_adapter.subprocess, "Popen", lambda *_, env, **__: started.append(env) or process)
    for engine in ("hosted", ENGINE, "none"):
        batch_adapter._start(tmp_path, engine, batch_adapter.endpoint_environment(engine))
    addresses = [environment.get("LISTING_ENDPOINT_URL") for environment in started]
    assert addresses == ["https://:k%2Fey@api.example.com/v1", None, None]
    assert "ey" not in (tmp_path / "process.json").read_text()


@needs_provider
def test_the_operator_lands_results_and_a_second_try_attaches_to_the_same_batch(
    adapter: EngineBatchAdapter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.providers.common.ai.batch import dispatch
    from airflow.providers.common.ai.operators import llm_batch
    from airflow.sdk import Connection

    monkeypatch.setattr(dispatch, "_REGISTERED_ADAPTERS", {})
    dispatch.register_adapter(EngineBatchAdapter)
    monkeypatch.setattr(
        llm_batch.BaseHook,
        "get_connection",
        lambda _: Connection(conn_id="own", conn_type="generic", host=str(adapter.folder)),
    )
    pause = time.sleep
    monkeypatch.setattr(llm_batch.time, "sleep", lambda _: pause(0.2))
    ti = SimpleNamespace(dag_id="d", task_id="t", run_id="r", map_index=-1, xcom_push=lambda **_: None)
    context: Any = {"ti": ti, "task_instance": ti}

    def execute() -> dict[str, Any]:
        operator = llm_batch.LLMBatchOperator(
            task_id="t",
            requests=["Hello", {"prompt": "Bye", "params": {"stream": True}}],
            result_path=f"file://{tmp_path}/landed",
            llm_conn_id="own",
            model_id=f"listing-engine:{ENGINE}",
            deferrable=False,
        )
        return operator.execute(context)

    manifest = execute()
    assert {name: count for name, count in manifest["counts"].items() if count} == {"succeeded": 1, "errored": 1}
    landed = manifest["result_uri"].removeprefix("file://")
    rows = {row["index"]: row for row in map(json.loads, Path(landed).read_text().splitlines())}
    assert (rows[0]["output"], rows[0]["usage"]) == ("Fine.", {"input_tokens": 10, "output_tokens": 3})
    assert "stream is not supported" in rows[1]["error"]["message"]
    assert rows[1]["error"]["provider_code"] == "unsupported_parameter"
    again = execute()
    assert (again["batch_id"], again["counts"]) == (manifest["batch_id"], manifest["counts"])
    assert len(list(adapter.folder.iterdir())) == 1


@needs_provider
def test_a_batch_is_found_again_cancelled_and_taken_up_where_it_stopped(
    adapter: EngineBatchAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUB_SECONDS", "0.2")
    requests = [{"prompt": f"Hello {n}"} for n in range(40)]
    batch_id = submit(adapter, requests)
    folder = adapter.folder / batch_id
    first = json.loads((folder / "process.json").read_text())
    other = EngineBatchAdapter(base_url=str(adapter.folder))
    assert other.find_orphaned_batch(KEY, FINGERPRINT, "") == batch_id
    assert submit(other, requests) == batch_id
    assert json.loads((folder / "process.json").read_text()) == first
    until = time.monotonic() + 120
    while len(list(other.iter_results(batch_id))) < 2 and time.monotonic() < until:
        assert other.get_batch(batch_id).status == "in_progress", (folder / "log.txt").read_text()
        time.sleep(0.1)
    other.cancel_batch(batch_id)
    assert other.get_batch(batch_id).status == "cancelled"
    finished = len(list(other.iter_results(batch_id)))
    assert 2 <= finished < 40
    monkeypatch.setenv("STUB_SECONDS", "0")
    assert submit(adapter, requests) == batch_id
    state = ended(adapter, batch_id)
    assert (state.status, state.counts["succeeded"]) == ("completed", 40)
    assert sorted(row.index for row in adapter.iter_results(batch_id)) == list(range(40))
    assert json.loads((folder / "results.jsonl.manifest.json").read_text())["resumed"] == finished


@needs_provider
def test_a_batch_that_cannot_run_fails_with_its_reason(
    adapter: EngineBatchAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "ENGINE", "none")
    state = ended(adapter, submit(adapter, [{"prompt": "Hello"}]))
    assert state.status == "failed"
    assert "no engine profile 'none'" in state.error_message


@needs_provider
def test_the_entry_point_of_the_package_is_found_by_the_provider(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tomllib

    from airflow.providers.common.ai.batch import dispatch

    (points,) = tomllib.loads(Path("pyproject.toml").read_text())["project"]["entry-points"].items()
    assert points[0] == dispatch.ENTRY_POINT_GROUP
    info = tmp_path / "listing_enhancement-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: listing-enhancement\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text(f"[{points[0]}]\n" + "".join(f"{k} = {v}\n" for k, v in points[1].items()))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(dispatch, "_REGISTERED_ADAPTERS", {})
    assert dispatch.get_adapter_class("generic", f"listing-engine:{ENGINE}") is EngineBatchAdapter
