"""An OpenAI-compatible endpoint behind the engine interface, against a small HTTP server of the test's own."""

from __future__ import annotations

from typing import Any

import pytest

from include.generation import endpoint
from include.generation.endpoint import ENDPOINT_VARIABLE
from include.generation.engine import EngineDeadError, EngineStartError, Request, open_engine
from include.generation.window import run_window
from tests.generating import profile, requests
from tests.serving import completion, failure, serving


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "RETRIES", 0)


def openai_profile(**changes: Any) -> Any:
    return profile(kind="openai", model="writer", **changes)


def test_answers_tokens_and_cache_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        serving(lambda body: (200, completion()), monkeypatch, "s%2Fcret") as seen,
        open_engine(openai_profile()) as engine,
    ):
        outputs = list(run_window(engine, requests(9)))
    assert sorted(o.id for o in outputs) == sorted(r.id for r in requests(9))
    assert {(o.text, o.finish_reason, o.prompt_tokens, o.output_tokens, o.cached_tokens) for o in outputs} == {
        ("Ceramic mug", "stop", 20, 3, 16)
    }
    assert {body["authorization"] for body in seen} == {"Bearer s/cret"}


def test_sampling_parameters_schema_and_logprobs_are_translated(monkeypatch: pytest.MonkeyPatch) -> None:
    place = {"token": "pass", "logprob": -0.1, "top_logprobs": [{"token": "fail", "logprob": -2.4}]}
    sampling = {
        "max_tokens": 64, "temperature": 0.0, "top_k": 5, "logprobs": 2, "json_schema": {"type": "object"},
    }  # fmt: skip
    request = Request(id="j", messages=[{"role": "user", "content": "?"}], sampling_params=sampling, thinking=True)
    reply = completion("{}", logprobs={"content": [place]})
    with serving(lambda body: (200, reply), monkeypatch) as seen, open_engine(openai_profile()) as engine:
        (output,) = run_window(engine, [request])
    assert output.logprobs[0].token == "pass"
    assert output.logprobs[0].top == {"fail": -2.4}
    (body,) = seen
    assert body["response_format"]["json_schema"]["schema"] == {"type": "object"}
    assert (body["max_tokens"], body["logprobs"], body["top_logprobs"], body["top_k"]) == (64, True, 2, 5)
    assert body["chat_template_kwargs"] == {"enable_thinking": True}

    hosted = openai_profile(engine_args={"hosted": True})
    with serving(lambda body: (200, reply), monkeypatch) as seen, open_engine(hosted) as engine:
        list(run_window(engine, [request]))
    assert {"top_k", "chat_template_kwargs", "max_tokens"}.isdisjoint(seen[0])
    assert seen[0]["max_completion_tokens"] == 64


def test_one_row_that_is_refused_costs_only_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def reply(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        text = body["messages"][0]["content"]
        if text == "text 3":
            return failure(400, "This model's maximum context length is 2048 tokens.")
        if text == "text 4":
            return failure(500, "worker restarted")
        return 200, completion()

    with serving(reply, monkeypatch), open_engine(openai_profile()) as engine:
        outputs = {o.id: o for o in run_window(engine, requests(10))}
    assert len(outputs) == 10
    assert (outputs["r3"].error, outputs["r3"].row_at_fault) == ("input_too_long", True)
    assert (outputs["r4"].error, outputs["r4"].row_at_fault) == ("engine_failed", False)
    assert sum(not o.error for o in outputs.values()) == 8


def test_a_refused_key_is_final_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        serving(lambda body: failure(401, "bad key"), monkeypatch, "topsecret"),
        open_engine(openai_profile()) as engine,
        pytest.raises(EngineDeadError, match="bad key") as caught,
    ):
        list(run_window(engine, requests(3)))
    assert (caught.value.kind, caught.value.retryable) == ("endpoint_refused", False)
    assert "topsecret" not in str(caught.value)


def test_an_endpoint_that_is_away_may_be_tried_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENDPOINT_VARIABLE, "http://:topsecret@127.0.0.1:9/v1")
    with pytest.raises(EngineStartError) as caught, open_engine(openai_profile()):
        pass
    assert (caught.value.kind, caught.value.retryable) == ("endpoint_unreachable", True)
    assert "topsecret" not in str(caught.value)


def test_a_missing_address_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENDPOINT_VARIABLE, raising=False)
    with pytest.raises(EngineStartError, match=ENDPOINT_VARIABLE), open_engine(openai_profile()):
        pass
