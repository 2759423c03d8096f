"""The comparison with static batches and a server: what is asked of each arm, what its figures are made of, what a failure does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

from include.generation.engine import EngineDeadError, Request
from include.settings import SettingsError, load_settings
from include.tuning import arms
from include.tuning import compare as module
from include.tuning.__main__ import _parser
from include.tuning.compare import common_profile, compare, greedy_requests
from include.tuning.plan import Cell, Window
from include.tuning.trials import Trial
from tests.generating import profile, requests

TITLE = load_settings().task("title")
FIGURES = {
    "errors": 0,
    "seconds": 2.0,
    "requests_per_s": 4.0,
    "output_tokens": 80,
    "latency_p50_s": 0.5,
    "latency_p95_s": 1.0,
}


def greedy(count: int, **sampling: Any) -> list[Request]:
    values = {"temperature": 0.0, "max_tokens": 4, "ignore_eos": False} | sampling
    return [Request(id=r.id, messages=r.messages, sampling_params=values) for r in requests(count)]


def test_requests_are_greedy_with_the_row_before_the_task_before_the_profile() -> None:
    rows = [
        Request(
            id="a", messages=[], sampling_params={"temperature": 0.9, "top_p": 0.5, "max_tokens": 9, "ignore_eos": True}
        )
    ]
    base = profile(sampling_params={"max_tokens": 5, "seed": 3})
    assert greedy_requests(rows, TITLE, base)[0].sampling_params == {
        "temperature": 0.0,
        "max_tokens": 9,
        "ignore_eos": True,
    }
    assert greedy_requests(requests(1), TITLE, base)[0].sampling_params["max_tokens"] == 32


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"sampling_params": {"presence_penalty": 1.0}},
            "prompt bad: presence_penalty cannot be the same in every arm",
        ),
        ({"sampling_params": {"ignore_eos": True}}, "prompt bad: ignore_eos differs"),
        ({"adapter": "./other"}, "prompt bad: adapter ./other is not"),
    ],
)
def test_what_an_arm_cannot_do_is_named_with_its_prompt(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        greedy_requests([*requests(1), Request(id="bad", messages=[], **changes)], TITLE, profile())


def test_the_profile_of_all_arms_has_its_adapter_folded_in_and_no_quantization_beside_generate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "merged_model", lambda base, adapter, dtype: f"/folded/{Path(adapter).name}/{dtype}")
    args = {"dtype": "float32", "quantization": "fp8"}
    base = profile(lora="./adapters/title", engine_args=args, engines=2)
    found = common_profile(base, ["generate", "offline"])
    assert (found.model, found.lora, found.engines) == ("/folded/title/float32", None, 1)
    assert found.engine_args == {"dtype": "float32"}
    assert common_profile(base, ["offline", "serve"]).engine_args == args
    with pytest.raises(SettingsError, match="endpoint"):
        common_profile(profile(kind="openai"), ["serve"])


def test_each_arm_is_measured_at_each_window_and_a_failure_is_a_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def answer(trial: Trial, cell: Cell | Window | None, count: int) -> dict[str, Any]:
        asked.append((trial.arm, cell.batch_size if cell else None, count))
        if cell == Window(8):
            return {"requests": count, "error": "out of <memory>"}
        return {"requests": count, **FIGURES} | (
            {"padded_share": 0.25, "ttft_p50_s": 0.1} if trial.arm == "generate" else {}
        )

    monkeypatch.setattr(Trial, "_asked", answer)
    names = ("generate", "offline", "serve")
    found = compare(tmp_path, profile(), greedy(20), arms=names, batches=[1, 8], concurrency=[8, 16], rounds=2)
    assert asked == [
        ("generate", 1, 2),
        ("generate", 8, 16),
        ("offline", None, 20),
        ("serve", 8, 16),
        ("serve", 16, 20),
    ]
    assert json.loads((tmp_path / "compare.json").read_text()) == found
    first, failed, offline, *_ = found["rows"]
    assert (first["padded_share"], first["ttft_p50_s"]) == (0.25, 0.1)
    assert (first["output_tokens_per_s"], first["output_tokens_per_request"]) == (40.0, 40.0)
    assert failed == {"arm": "generate", "window": 8, "error": "out of <memory>"}
    assert (offline["window"], offline["ttft_p50_s"]) == (4, None)
    page = (tmp_path / "compare.html").read_text()
    assert "out of &lt;memory&gt;" in page
    assert "25.0%" in page
    assert "data:image/png" in page


def test_a_window_that_never_fills_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="16 at a time never fills with 12 prompts"):
        compare(tmp_path, profile(), greedy(12), arms=["serve"], batches=[32], concurrency=[16], rounds=2)
    assert not list(tmp_path.iterdir())


END, PAD = 9, 0


class Tokenizer:
    """Prompt `text n` has n + 1 tokens."""

    pad_token_id = PAD

    def save_pretrained(self, folder: Path) -> None:
        folder.mkdir()

    def apply_chat_template(self, messages: list[dict[str, str]], **_: Any) -> str:
        return messages[0]["content"]

    def __call__(self, texts: list[str], **_: Any) -> Any:
        lengths = [int(text.split()[1]) + 1 for text in texts]
        mask = torch.tensor([[0] * (max(lengths) - n) + [1] * n for n in lengths])

        class Inputs(dict[str, Any]):
            def to(self, _: Any) -> Inputs:
                return self

        return Inputs(input_ids=mask, attention_mask=mask)

    def batch_decode(self, *_: Any, **__: Any) -> None: ...


class Model:
    """Ends the answer of the batch's first prompt after two tokens, and no other."""

    device = "cpu"
    generation_config = SimpleNamespace(eos_token_id=END)

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    def generate(self, *, input_ids: Any, max_new_tokens: int, stopping_criteria: Any, **other: Any) -> Any:
        self.asked.append(other | {"max_new_tokens": max_new_tokens})
        answers = torch.full((len(input_ids), max_new_tokens), 5)
        answers[0, 1], answers[0, 2:] = END, PAD
        found = torch.cat([input_ids, answers], dim=1)
        assert not stopping_criteria[0](found, None).any()
        return found


def test_padding_of_a_static_batch_is_what_stands_before_prompts_and_after_ends() -> None:
    model = Model()
    found = arms._batches(model, Tokenizer(), greedy(4), {"batch_size": 2}, 4)
    # Prompts of 1, 2, 3 and 4 tokens in batches of two; of each batch one answer has 2 tokens and the other 4.
    assert found["output_tokens"] == 12
    assert found["padded_share"] == pytest.approx(1 - (10 + 12) / (2 * (2 + 4) + 2 * (4 + 4)))
    assert 0 <= found["ttft_p50_s"] <= found["latency_p50_s"]
    assert [asked["min_new_tokens"] for asked in model.asked] == [0, 0]


def test_fixed_lengths_count_in_full_and_no_answer_may_end_before() -> None:
    model = Model()
    found = arms._batches(model, Tokenizer(), greedy(2, ignore_eos=True), {"batch_size": 2}, 2)
    assert found["output_tokens"] == 8
    assert (model.asked[0]["min_new_tokens"], model.asked[0]["max_new_tokens"]) == (4, 4)


VLLM = """
import json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
def of(name): return sys.argv[sys.argv.index(name) + 1]
if sys.argv[1] == "serve":
    if "--broken" in sys.argv: sys.exit("ValueError: no such model")
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self): self.send_response(200); self.end_headers()
        do_POST = do_GET
    HTTPServer((of("--host"), int(of("--port"))), Handler).serve_forever()
rows = [json.loads(line) for line in open(of("--dataset-path"))]
assert len(rows) == int(of("--num-prompts")) and rows[0] == {"prompt": "text 0", "output_tokens": 4}
if of("--max-concurrency") == "3": sys.exit("RuntimeError: connection lost")
times = {f"{p}_{m}_ms": 1000.0 * int(of("--max-concurrency")) for p in ("p50", "p95") for m in ("ttft", "e2el")}
found = {"failed": 0, "duration": 2.0, "request_throughput": len(rows) / 2, "total_output_tokens": 4 * len(rows), **times}
json.dump(found, open(of("--result-dir") + "/" + of("--result-filename"), "w"))
"""


@pytest.fixture
def fake_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command line like vLLM's, and a tokenizer."""
    (tmp_path / "vllm.py").write_text(VLLM)
    monkeypatch.setattr(arms, "_CLI", (sys.executable, str(tmp_path / "vllm.py")))
    tokenizer = SimpleNamespace(from_pretrained=lambda *_, **__: Tokenizer())
    monkeypatch.setattr("transformers.AutoTokenizer", tokenizer)


def children() -> int:
    return len(psutil.Process().children(recursive=True))


def test_a_server_is_asked_at_each_concurrency_and_stopped(fake_vllm: None) -> None:
    before = children()
    with arms.serve(profile(), greedy(2)) as (started, ask):
        found = ask({"batch_size": 2}, 5)
        assert children() == before + 1
    assert started["start_s"] > 0
    assert (found["requests_per_s"], found["output_tokens"], found["latency_p95_s"], found["ttft_p50_s"]) == (
        2.5,
        20,
        2.0,
        2.0,
    )
    assert children() == before


def test_a_server_that_does_not_start_and_a_client_that_fails_say_why(fake_vllm: None) -> None:
    before = children()
    with (
        pytest.raises(EngineDeadError, match="no such model"),
        arms.serve(profile(engine_args={"broken": True}), greedy(2)),
    ):
        pass
    with pytest.raises(EngineDeadError, match="connection lost"), arms.serve(profile(), greedy(2)) as (_, ask):
        ask({"batch_size": 3}, 3)
    assert children() == before


def test_a_broken_prompt_file_is_an_error_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"id": "1", "messages": [{"role": "user", "content": "mug"}]}\n{"messages": "mug"}\n')
    command = [
        sys.executable,
        "-m",
        "include.tuning",
        "compare",
        "--prompts",
        str(path),
        "--task",
        "title",
        "--out",
        "x",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 78
    assert f"{path}, line 2" in done.stdout


def test_the_command_line_has_what_the_comparison_asks_for() -> None:
    words = ["compare", "--prompts", "p.jsonl", "--task", "title", "--out", "o", "--rounds", "3"]
    assert _parser().parse_args(words).rounds == 3
    assert _parser().parse_args(words[:-2]).rounds == 64


@pytest.mark.parametrize("option", ["--rounds", "--batches", "--concurrency", "--rows"])
def test_a_comparison_of_nothing_is_refused_before_it_starts(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["compare", "--prompts", "p.jsonl", "--task", "title", "--out", "o", option, "0"]
    with pytest.raises(SystemExit):
        _parser().parse_args(words)
    assert f"argument {option}: give 1 or more" in capsys.readouterr().err


def test_a_tuning_run_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("{}")
    with pytest.raises(SettingsError, match="holds a tuning run"):
        compare(tmp_path, profile(), requests(4), arms=["offline"], batches=[1], concurrency=[1], rounds=1)
