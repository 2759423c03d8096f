"""The vLLM engine's edges that need no engine: a shutdown that hangs, metrics that fail, its environment."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace
from typing import Any

import pytest

from include.generation import vllm_engine
from include.generation.engine import EngineDeadError, EngineMetrics, EngineStartError, Request
from include.generation.vllm_engine import VllmEngine, json_grammar, lora_rank
from tests.generating import profile


def engine_around(inner: Any, **fields: Any) -> VllmEngine:
    """A VllmEngine whose inner vLLM engine is given, as if it had started."""
    engine = VllmEngine.__new__(VllmEngine)
    values = {
        "profile": profile(stall_timeout_s=0.3),
        "_engine": inner,
        "_others": set(),
        "_adapters": {},
        "_merged": None,
        "_metrics": EngineMetrics(),
        "_baseline": {},
        "_last_sample": 0.0,
    }
    for name, value in (values | fields).items():
        setattr(engine, name, value)
    return engine


def test_a_shutdown_that_never_returns_meets_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_engine, "SHUTDOWN_SECONDS", 0.3)
    core = SimpleNamespace(shutdown=lambda timeout: time.sleep(600))
    engine = engine_around(SimpleNamespace(engine_core=core))
    began = time.monotonic()
    engine.shutdown()
    engine.shutdown()  # safe to call twice
    assert time.monotonic() - began < 10


def test_a_shutdown_that_raises_is_no_failure_of_the_run() -> None:
    def broken(timeout: float) -> None:
        raise RuntimeError("sockets are gone")

    engine_around(SimpleNamespace(engine_core=SimpleNamespace(shutdown=broken))).shutdown()


def test_metrics_that_fail_are_unknown_and_never_raise() -> None:
    def broken() -> list[Any]:
        raise AssertionError("Stat logging disabled")

    metrics = engine_around(SimpleNamespace(get_metrics=broken)).metrics()
    assert (metrics.prefix_cache_hits, metrics.preemptions, metrics.kv_cache_use_peak) == (None, None, None)


def test_counters_are_counted_from_the_engines_own_start() -> None:
    values = [
        SimpleNamespace(name="vllm:prefix_cache_queries", value=500),
        SimpleNamespace(name="vllm:prefix_cache_hits", value=300),
        SimpleNamespace(name="vllm:num_preemptions", value=2),
        SimpleNamespace(name="vllm:spec_decode_num_drafts", value=10),
        SimpleNamespace(name="vllm:spec_decode_num_accepted_tokens", value=15),
        SimpleNamespace(name="vllm:kv_cache_usage_perc", value=0.25),
        SimpleNamespace(name="vllm:time_to_first_token_seconds", sum=1.0),
    ]
    engine = engine_around(SimpleNamespace(get_metrics=lambda: values), _baseline={"prefix_cache_queries": 100})
    metrics = engine.metrics()
    assert (metrics.prefix_cache_queries, metrics.prefix_cache_hits, metrics.preemptions) == (400, 300, 2)
    assert metrics.kv_cache_use_peak == 0.25
    assert metrics.acceptance_length == 2.5
    assert EngineMetrics(drafts=0).acceptance_length is None


def test_a_silent_engine_counts_as_dead() -> None:
    engine = engine_around(SimpleNamespace(step=lambda: time.sleep(600)))
    with pytest.raises(EngineDeadError, match="engine step took longer") as caught:
        engine.finished()
    assert caught.value.kind == "engine_stalled"


def test_the_engine_process_is_spawned_and_calls_nobody() -> None:
    assert vllm_engine.ENVIRONMENT["VLLM_WORKER_MULTIPROC_METHOD"] == "spawn"
    assert vllm_engine.ENVIRONMENT["VLLM_NO_USAGE_STATS"] == "1"
    assert vllm_engine.ENVIRONMENT["TQDM_DISABLE"] == "1"


def test_a_folder_without_an_adapter_is_named(tmp_path) -> None:
    with pytest.raises(EngineStartError, match="is no LoRA adapter folder") as caught:
        lora_rank(str(tmp_path))
    assert not caught.value.retryable


def test_a_prompt_that_leaves_no_room_for_its_answer_is_refused_before_submission() -> None:
    class Tokenizer:
        def apply_chat_template(self, messages: list[dict[str, str]], **_: Any) -> str:
            return messages[0]["content"]

        def __call__(self, texts: list[str], **_: Any) -> dict[str, list[list[int]]]:
            return {"input_ids": [list(range(len(text.split()))) for text in texts]}

    pytest.importorskip("vllm")
    submitted: list[str] = []
    inner = SimpleNamespace(add_request=lambda request_id, *_, **__: submitted.append(request_id))
    engine = engine_around(inner, _tokenizer=Tokenizer(), _max_model_len=100)
    for words, fits in ((68, True), (69, False)):
        request = Request(
            id=str(words), messages=[{"role": "user", "content": "w " * words}], sampling_params={"max_tokens": 32}
        )
        answer = engine.submit(request)
        assert (answer is None) == fits
        if answer is not None:
            assert (answer.error, answer.prompt_tokens, answer.token_limit) == ("input_too_long", 69, 68)
    assert submitted == ["68"]


def test_structured_output_leaves_no_room_for_loops_of_whitespace() -> None:
    xgrammar = pytest.importorskip("xgrammar")
    schema = {"type": "object", "properties": {"faults": {"type": "array"}, "ok": {"enum": ["yes", "no"]}}}
    schema |= {"required": ["faults", "ok"]}
    grammar = xgrammar.Grammar.from_ebnf(json_grammar(json.dumps(schema)))
    accepts = xgrammar.testing._is_grammar_accept_string
    assert accepts(grammar, json.dumps({"faults": ["a"], "ok": "yes"}))
    assert not accepts(grammar, '{\n\n"faults": [], "ok": "yes"}')
    assert not accepts(grammar, '{"faults": [], "ok": "perhaps"}')


def test_text_is_read_at_the_end_unless_something_watches_it_grow() -> None:
    def finished(reason: str, ids: list[int], text: str = "", stop: str | None = None) -> Any:
        completion = SimpleNamespace(finish_reason=reason, token_ids=ids, text=text, logprobs=None, stop_reason=stop)
        return SimpleNamespace(
            request_id="r", outputs=[completion], prompt_token_ids=[1], num_cached_tokens=0, finished=True
        )

    class Words:
        def decode(self, ids: list[int], **how: bool) -> str:
            assert how == {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
            return " ".join(map(str, ids))

    engine = engine_around(None, _tokenizer=Words())
    assert engine._output(finished("stop", [7, 8, 2])).text == "7 8"  # 2 ended it
    assert engine._output(finished("length", [7, 8, 2])).text == "7 8 2"
    assert engine._output(finished("stop", [7, 8], stop="7 8")).text == ""
    assert engine._output(finished("stop", [7, 8], "as vLLM read it")).text == "as vLLM read it"
    assert not engine._sampling_params({"max_tokens": 4}).detokenize
    assert engine._sampling_params({"max_tokens": 4, "stop": ["\n"]}).detokenize
    assert engine._sampling_params({"max_tokens": 4, "logprobs": 3}).detokenize
