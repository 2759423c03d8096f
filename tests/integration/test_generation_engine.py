"""The generation stage on the real CPU engine: answers of every kind, and a bad night survived without a row lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from include.generation.engine import Engine, Output, Request
from include.generation.window import run_window
from include.generation.worker import generate_bins
from include.records import Generation, WorkItem
from include.runs import Run
from include.settings import PROJECT_ROOT, load_settings
from tests.generating import generated, item, make_run

pytestmark = [pytest.mark.engine, pytest.mark.long]

SCHEMA = {
    "type": "object",
    "properties": {"verdict": {"enum": ["pass", "fail"]}, "claims": {"type": "array", "maxItems": 2, "items": {"type": "string", "maxLength": 20}}},
    "required": ["verdict", "claims"],
    "additionalProperties": False,
}  # fmt: skip


def ask(text: str, **fields: Any) -> Request:
    sampling = {"temperature": 0.0, "max_tokens": 24} | fields.pop("sampling", {})
    return Request(messages=[{"role": "user", "content": text}], sampling_params=sampling, **fields)


def answers(engine: Engine, *requests: Request) -> dict[str, Output]:
    return {output.id: output for output in run_window(engine, requests)}


def test_rows_that_cannot_run_are_answered_beside_those_that_can(cpu_engine: Engine) -> None:
    found = answers(
        cpu_engine,
        ask("Name one colour.", id="good"),
        ask("word " * 3000, id="long"),
        ask("Name one colour.", id="bad", sampling={"temperature": -1.0}),
        ask("Name one colour.", id="unknown", sampling={"no_such_parameter": 1}),
    )
    assert len(found) == 4
    assert found["good"].text
    assert found["good"].finish_reason in ("stop", "length")
    assert found["good"].prompt_tokens > 5
    assert (found["long"].error, found["long"].row_at_fault) == ("input_too_long", True)
    assert found["long"].token_limit == 2048 - 24
    assert (found["bad"].error, found["unknown"].error) == ("request_rejected", "request_rejected")


def test_structured_output_and_token_probabilities(cpu_engine: Engine) -> None:
    sampling = {"json_schema": SCHEMA, "logprobs": 5, "max_tokens": 60}
    found = answers(cpu_engine, ask("Judge this copy.", id="judge", sampling=sampling))["judge"]
    assert found.finish_reason == "stop"
    value = json.loads(found.text)
    assert value["verdict"] in ("pass", "fail")
    assert "".join(place.token for place in found.logprobs).startswith("{")
    assert all(place.logprob <= 0 and len(place.top) >= 1 for place in found.logprobs)


def test_structured_output_has_no_free_whitespace(cpu_engine: Engine) -> None:
    sampling = {"json_schema": SCHEMA, "max_tokens": 60}
    found = answers(cpu_engine, ask("Judge this copy.", id="judge", sampling=sampling))["judge"]
    assert "\n" not in found.text
    assert found.text == json.dumps(json.loads(found.text), ensure_ascii=False)


def test_an_adapter_answers_otherwise_than_the_base_on_the_same_engine(cpu_engine: Engine, adapter: Path) -> None:
    question = "Write a title for a blue ceramic mug that holds 350 ml."
    found = answers(
        cpu_engine,
        ask(question, id="base"),
        ask(question, id="adapter", adapter=str(adapter)),
        ask(question, id="again"),
    )
    assert found["base"].text == found["again"].text
    assert found["adapter"].text != found["base"].text


def test_a_shared_instruction_is_served_from_the_prefix_cache(cpu_engine: Engine) -> None:
    instruction = "You write short product titles from facts, one line each, without any advertising words. " * 6
    before = cpu_engine.metrics()
    queries, hits = before.prefix_cache_queries or 0, before.prefix_cache_hits or 0
    found = answers(
        cpu_engine, *(ask(f"{instruction} Product {n}", id=f"p{n}", sampling={"max_tokens": 2}) for n in range(40))
    )
    after = cpu_engine.metrics()
    assert sum(output.cached_tokens for output in found.values()) > 0
    assert ((after.prefix_cache_hits or 0) - hits) / ((after.prefix_cache_queries or 0) - queries) > 0.3
    assert after.preemptions == 0
    assert 0 < (after.kv_cache_use_peak or 0) <= 1
    assert after.start_seconds > 1
    assert after.description["engine"] == "vllm"


def test_retries_may_join_while_answers_come(cpu_engine: Engine) -> None:
    from collections import deque

    again: deque[Request] = deque()
    seen = []
    for output in run_window(cpu_engine, [ask("Name a fruit.", id="r", sampling={"max_tokens": 3})], again=again):
        seen.append(output)
        if len(seen) == 1:
            again.append(ask("Name a fruit.", id="r", sampling={"max_tokens": 6}))
    assert [output.output_tokens for output in seen] == [3, 6]


# The worker as a process of its own: killed, its parent killed, a rival for the device, and the rest made good.


class Night:
    """One bin of 100 texts, one of them far too long, and the processes that try to generate it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        items = [item(n) for n in range(99)] + [item(99, description="Blue mug. " * 20_000)]
        settings = load_settings()
        base = settings.engines["cpu-smollm2"].model_dump(exclude={"name", "lineage", "model", "lora"}) | {
            "lease_wait_s": 1.0,
            "batch_size": 8,
        }
        base["engine_args"] = base["engine_args"] | {"max_num_seqs": 8}  # few at a time, so that a kill finds some left
        base["environment"] = base["environment"] | {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}  # as on a GPU
        task = {"sampling_params": {"temperature": 0.0, "max_tokens": 12}, "attempts": 1}
        self.run = make_run(folder / "data", items, model=".models/smollm2-135m-instruct", engine=base, **task)
        self.environment = os.environ | {"LISTING_LEASE_DIR": str(folder / "leases")}

    def arguments(self) -> list[str]:
        return ["-m", "include.generation", "run", "--run-dir", self.run.store.url, "--task", "title", "--bin", "0"]

    def start(self, **environment: str) -> subprocess.Popen[str]:
        self.log = self.folder / f"worker-{time.time_ns()}.log"
        with self.log.open("w") as log:
            return subprocess.Popen(
                [sys.executable, *self.arguments()],
                cwd=PROJECT_ROOT,
                env=self.environment | environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )

    def rows(self) -> list[Generation]:
        return generated(self.run)

    def wait_until(self, condition: Callable[[], bool], seconds: float = 400.0) -> None:
        until = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < until, self.output()
            time.sleep(0.1)

    def output(self) -> str:
        return self.log.read_text()


def family(pid: int) -> list[psutil.Process]:
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def gone(processes: list[psutil.Process], seconds: float = 10.0) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=seconds)
    return all(process.status() == psutil.STATUS_ZOMBIE for process in alive if process.is_running())


@pytest.fixture(scope="module")
def night(default_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Night:
    return Night(tmp_path_factory.mktemp("night"))


def test_sigterm_during_the_engines_start_leaves_nothing(night: Night) -> None:
    worker = night.start()
    night.wait_until(lambda: len(family(worker.pid)) >= 4, 120)  # guard, resource tracker, engine core
    processes = family(worker.pid)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(timeout=60) == 75, night.output()
    assert gone(processes)
    assert "ended by SIGTERM" in night.output()
    assert not night.rows()


def test_a_worker_killed_at_half_and_a_parent_killed_later_cost_only_the_rest(night: Night) -> None:
    worker = night.start()
    night.wait_until(lambda: len(night.rows()) >= 40)
    processes = family(worker.pid)
    assert any("EngineCore" in " ".join(p.cmdline()) for p in processes), [p.cmdline() for p in processes]
    worker.kill()
    worker.wait()
    assert gone(processes), "an engine outlived its worker"
    first = {row.text_id: row for row in night.rows()}
    assert 40 <= len(first) < 100

    script = (
        f"import os, subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, *{night.arguments()!r}], start_new_session=True,"
        f" env=os.environ | {{'LISTING_PARENT_PID': str(os.getpid())}})\n"
        f"print(child.pid, flush=True); time.sleep(3600)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script], cwd=PROJECT_ROOT, env=night.environment, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    night.wait_until(lambda: any("EngineCore" in " ".join(p.cmdline()) for p in family(child)))
    rival = night.start()  # a second task for the same device hears who has it, and starts no engine
    assert rival.wait(timeout=120) == 75
    assert f"leased by process {child}" in night.output()
    assert "engine stub started" not in night.output()

    night.wait_until(lambda: len(night.rows()) > len(first))
    processes = family(child)
    parent.kill()
    parent.wait()
    assert gone(processes, 10), "the worker or its engine outlived the parent"
    second = {row.text_id: row for row in night.rows()}
    assert len(first) < len(second)
    assert all(second[text_id] == row for text_id, row in first.items())

    worker = night.start()
    assert worker.wait(timeout=600) == 0, night.output()
    rows = night.rows()
    assert len(rows) == len({row.text_id for row in rows}) == 100
    assert sum(not row.error for row in rows) == 99
    assert [(row.error, row.quarantine) for row in rows if row.error] == [("input_too_long", True)]
    manifest = night.run.store.read_json(Run.manifest("title", "generate", 0))
    assert manifest["texts"]["resumed"] == len(second)
    assert manifest["texts"].get("answered", 0) + len(second) == 100 - ("input_too_long" in manifest["texts"])
    assert manifest["requests_per_s"] > 0
    assert manifest["prefix_cache_hit_rate"] > 0.3
    assert manifest["engine_starts"] == 1
    assert "\r" not in night.output()


def test_a_finished_bin_starts_no_engine(night: Night) -> None:
    began = time.monotonic()
    manifest = generate_bins(night.run, ["title"], 0)["title"]
    assert manifest["engine_starts"] == 0
    assert manifest["texts"] == {"resumed": 100}
    assert time.monotonic() - began < 5
    assert len(list(night.run.store.read_rows(night.run.work_parts("title", 0), WorkItem))) == 100
