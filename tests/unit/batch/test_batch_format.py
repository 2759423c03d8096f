"""The request format: what runs, what is refused and how, and lines of every unpleasant shape."""

from __future__ import annotations

from typing import Any

import pytest
from openai.types import BatchError, BatchRequestCounts
from openai.types.chat import ChatCompletion

from include.batch import requests as requests_module
from include.batch.requests import MAX_LINE_BYTES, LineError, request_of
from include.generation.engine import TokenLogprob
from tests.batching import jsonl, line, rows_of
from tests.generating import say

SCHEMA = {"type": "object", "properties": {"ok": {"type": "boolean"}}}


def ask(**body: Any) -> Any:
    return request_of(7, line(**body)["body"], {}, lambda schema: None)


def test_a_result_line_is_what_the_official_client_reads(batch: Any) -> None:
    top = (TokenLogprob("Fine", -0.1, {"Fine": -0.1, "Good": float("-inf"), "Bad": float("-inf")}),)
    made = batch()
    manifest = made.run(jsonl(line("a", logprobs=True, top_logprobs=2)), say("Fine.", logprobs=top))
    (row,) = rows_of(made.out)
    assert set(row) == {"id", "custom_id", "response", "error"}
    assert (row["custom_id"], row["error"], row["response"]["status_code"]) == ("a", None, 200)
    assert row["response"]["request_id"].startswith("req_")
    found = ChatCompletion.model_validate(row["response"]["body"], strict=True)
    assert (found.choices[0].message.content, found.choices[0].finish_reason, found.model) == ("Fine.", "stop", "gpt-x")
    assert found.usage is not None
    assert (found.usage.prompt_tokens, found.usage.completion_tokens, found.usage.total_tokens) == (10, 3, 13)
    assert found.choices[0].logprobs is not None
    assert [t.token for t in found.choices[0].logprobs.content[0].top_logprobs] == ["Fine", "Good"]
    assert made.errors.read_bytes() == b""
    counts = BatchRequestCounts.model_validate(manifest["request_counts"], strict=True)
    assert (counts.total, counts.completed, counts.failed) == (1, 1, 0)
    assert manifest["usage"] == {"input_tokens": 10, "output_tokens": 3, "total_tokens": 13}


BAD: list[tuple[Any, str]] = [
    (b"{", "invalid_json_line"),
    (b'"text"', "invalid_json_line"),
    (b"\xff\xfe{}", "invalid_json_line"),
    (b"[" * 100_000, "invalid_json_line"),
    (b'{"custom_id": "\\ud83d", "method": "POST"}', "invalid_json_line"),
    (b'{"custom_id": "z", "body": {"messages": "\\uD83d"}}', "invalid_json_line"),
    (line() | {"custom_id": None}, "missing_required_parameter"),
    (line() | {"custom_id": 7}, "missing_required_parameter"),
    (line("x" * 513), "invalid_custom_id"),
    (line("b") | {"method": "GET"}, "invalid_method"),
    (line("c") | {"url": "/v1/embeddings"}, "invalid_url"),
    (line("d") | {"body": []}, "missing_required_parameter"),
    (line("e", model=None), "missing_required_parameter"),
    (line("f", model="another"), "mismatched_model"),
    (line("first"), "duplicate_custom_id"),
    (b'{"custom_id": "' + b"x" * MAX_LINE_BYTES + b'"}', "line_too_long"),
]


def test_every_faulty_line_is_told_with_its_number_and_the_rest_run(batch: Any) -> None:
    made = batch()
    manifest = made.run(jsonl(line("first"), *(bad for bad, _ in BAD), line("last")))
    assert sorted(row["custom_id"] for row in rows_of(made.out)) == ["first", "last"]
    assert made.codes() == [(number, code) for number, (_, code) in enumerate(BAD, start=2)]
    for row in rows_of(made.errors):
        assert set(row) == {"id", "custom_id", "response", "error"}
        error = BatchError.model_validate(row["error"], strict=True)
        assert error.message is not None
        assert error.message.startswith(f"line {error.line}: ")
        assert ": " in error.message.removeprefix(f"line {error.line}: ")  # what is wrong, then what to do
    assert manifest["request_counts"] == {"total": len(BAD) + 2, "completed": 2, "failed": len(BAD)}
    assert sum(manifest["error_codes"].values()) == len(BAD)


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"messages": []}, "invalid_value", "messages"),
        ({"messages": None}, "invalid_value", "messages"),
        ({"messages": ["x"]}, "invalid_value", "messages[0]"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "unsupported_parameter", "messages[0].role"),
        ({"messages": [{"role": "user", "content": None}]}, "invalid_value", "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "unsupported_parameter", "messages[0].content"),
        ({"messages": [{"role": "user", "content": "x", "name": "y"}]}, "unsupported_parameter", "messages[0].name"),
        ({"stream": True}, "unsupported_parameter", "stream"),
        ({"tools": [{}]}, "unsupported_parameter", "tools"),
        ({"n": 2}, "unsupported_parameter", "n"),
        ({"n": True}, "unsupported_parameter", "n"),
        ({"logit_bias": {"1": 5}}, "unsupported_parameter", "logit_bias"),
        ({"surprise": 1}, "unsupported_parameter", "surprise"),
        ({"temperature": 3}, "invalid_value", "temperature"),
        ({"temperature": "hot"}, "invalid_value", "temperature"),
        ({"top_p": 0}, "invalid_value", "top_p"),
        ({"seed": 1.5}, "invalid_value", "seed"),
        ({"max_tokens": 0}, "invalid_value", "max_tokens"),
        ({"max_tokens": True}, "invalid_value", "max_tokens"),
        ({"max_tokens": 8, "max_completion_tokens": 9}, "invalid_value", "max_tokens"),
        ({"stop": ["a"] * 5}, "invalid_value", "stop"),
        ({"stop": [""]}, "invalid_value", "stop"),
        ({"top_logprobs": 3}, "invalid_value", "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "invalid_value", "top_logprobs"),
        ({"response_format": {"type": "json_schema"}}, "invalid_value", "response_format"),
        ({"response_format": "json"}, "invalid_value", "response_format"),
    ],
)  # fmt: skip
def test_a_body_that_the_engine_cannot_honour_is_refused_by_name(body: dict[str, Any], code: str, param: str) -> None:
    with pytest.raises(LineError) as caught:
        ask(**body)
    assert (caught.value.code, caught.value.param, caught.value.answered) == (code, param, True)


def test_a_refused_body_carries_the_400_answer_of_the_api(batch: Any) -> None:
    made = batch()
    made.run(jsonl(line("a", stream=True)))
    (row,) = rows_of(made.errors)
    assert (row["custom_id"], row["response"]["status_code"]) == ("a", 400)
    assert row["response"]["body"]["error"]["type"] == "invalid_request_error"
    assert row["response"]["body"]["error"]["code"] == row["error"]["code"] == "unsupported_parameter"
    assert not made.engines.opened


def test_parameters_are_mapped_one_by_one() -> None:
    request = ask(
        max_tokens=None, max_completion_tokens=5, temperature=0, top_p=0.5, seed=3, stop="END", presence_penalty=1,
        frequency_penalty=-1, logprobs=True, top_logprobs=2, n=1, stream=False, tools=[], user="u", metadata={"a": "b"},
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}},
    )  # fmt: skip
    assert request.id == "7"
    assert request.sampling_params == {
        "max_tokens": 5, "temperature": 0, "top_p": 0.5, "seed": 3, "stop": ["END"], "presence_penalty": 1,
        "frequency_penalty": -1, "logprobs": 2, "json_schema": SCHEMA,
    }  # fmt: skip
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    roles = [{"role": "developer", "content": "x"}, {"role": "user", "content": parts, "refusal": None}]
    assert ask(messages=roles).messages == [{"role": "system", "content": "x"}, {"role": "user", "content": "a\nb"}]
    assert ask(response_format={"type": "json_object"}).sampling_params["json_schema"]["type"] == "object"
    assert "json_schema" not in ask(response_format={"type": "text"}).sampling_params


def test_a_limit_that_is_not_given_is_the_profiles_and_then_ours() -> None:
    body = line(max_tokens=None)["body"]
    assert request_of(1, body, {"max_tokens": 48}, lambda s: None).sampling_params == {"max_tokens": 48}
    assert request_of(1, body, {}, lambda s: None).sampling_params == {"max_tokens": requests_module.MAX_TOKENS}


def test_a_schema_without_a_grammar_never_reaches_the_engine(batch: Any) -> None:
    made = batch()
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "no such type"}}}
    good = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    made.run(
        jsonl(
            line("bad", response_format=form),
            line("good", response_format=good),
            line("any", response_format={"type": "json_object"}),
        )
    )
    assert made.codes() == [(1, "invalid_json_schema")]
    assert len(rows_of(made.out)) == 2


@pytest.mark.parametrize("content", [b"", b"\n\r\n \n", b"\xef\xbb\xbf"])
def test_a_file_without_a_request_starts_no_engine_and_gives_empty_files(batch: Any, content: bytes) -> None:
    made = batch()
    assert made.run(content)["request_counts"] == {"total": 0, "completed": 0, "failed": 0}
    assert (made.out.read_bytes(), made.errors.read_bytes(), made.engines.opened) == (b"", b"", [])


def test_windows_line_ends_a_byte_order_mark_and_a_last_line_without_an_end_are_fine(batch: Any) -> None:
    made = batch()
    content = b"\xef\xbb\xbf" + jsonl(line("a"), line("b"), line("c")).replace(b"\n", b"\r\n").removesuffix(b"\r\n")
    assert made.run(content)["request_counts"]["completed"] == 3
    assert made.codes() == []


def test_a_line_of_a_megabyte_reaches_the_engine_and_too_long_a_prompt_is_a_400(batch: Any) -> None:
    made = batch()
    long = line("long", messages=[{"role": "user", "content": "word " * 200_000}])
    refuse = {"error": "input_too_long", "detail": "200000 prompt tokens, 2040 fit", "row_at_fault": True}
    made.run(jsonl(long, line("b")), lambda r: say("", **refuse)(r) if r.id == "1" else say("Fine.")(r))
    assert made.codes() == [(1, "context_length_exceeded")]
    (row,) = rows_of(made.errors)
    assert row["response"]["status_code"] == 400
    assert "shorten the messages" in row["error"]["message"]
    assert [row["custom_id"] for row in rows_of(made.out)] == ["b"]


def test_an_alias_says_which_model_names_are_served(batch: Any) -> None:
    made = batch()
    made.run(jsonl(line("a", model="gpt-y"), line("b")), aliases=["gpt-x"])
    assert made.codes() == [(1, "model_not_found")]
