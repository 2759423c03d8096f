"""One line of a Batch API request file: read without holding the file, checked, and turned into an engine's request.

What the engine cannot do is refused by name, never left out in silence: a parameter that is dropped changes answers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

from include.generation.engine import Request

URL = "/v1/chat/completions"
MAX_LINE_BYTES = 4 << 20  # far above any context window; a longer line is skipped without being held
MAX_ID_CHARS = 512
MAX_TOKENS = 1024  # of a request that gives no limit, under a profile that gives none
MAX_STOPS = 4  # the API's own
MAX_TOP_LOGPROBS = 20
# Without effect on an answer; the values are what the hosted API takes as "off".
_HARMLESS = {"user", "metadata", "service_tier", "safety_identifier", "prompt_cache_key", "parallel_tool_calls"}
_OFF: dict[str, Any] = {
    "n": 1, "stream": False, "store": False, "tools": [], "functions": [], "tool_choice": "none", "logit_bias": {},
    "modalities": ["text"], "reasoning_effort": "none",
}  # fmt: skip
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
CheckSchema = Callable[[Mapping[str, Any]], None]


class LineError(ValueError):
    """A line that cannot run: the API's error code, the field at fault, and a message that says what to do.

    `answered` tells a well-formed line whose body is refused, as the API does with status 400, from a line that is none.
    """

    def __init__(self, code: str, message: str, *, param: str | None = None, answered: bool = False) -> None:
        super().__init__(message)
        self.code, self.param, self.answered = code, param, answered


@dataclass(frozen=True, slots=True)
class Line:
    """A line as the format has it; its body is not looked into yet."""

    custom_id: str
    body: dict[str, Any]


def lines(file: BinaryIO) -> Iterator[tuple[int, bytes | None]]:
    """Line numbers from 1 and lines without their ends; None for one over MAX_LINE_BYTES. Blank lines hold no request."""
    number = 0
    while raw := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        whole, long = raw, False
        while not raw.endswith(b"\n") and (raw := file.readline(MAX_LINE_BYTES)):
            long = True  # the rest is read to find the line's end
        if number == 1:
            whole = whole.removeprefix(b"\xef\xbb\xbf")  # a byte order mark, as editors on Windows write
        if long:
            yield number, None
        elif whole.strip():
            yield number, whole.rstrip(b"\r\n")


def parsed(raw: bytes | None) -> Line:
    """A line's id and body. Raises LineError."""
    if raw is None:
        raise LineError("line_too_long", f"the line is longer than {MAX_LINE_BYTES:,} bytes: shorten its messages")
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise LineError(
            "invalid_json_line", f"not one JSON value on one line ({error}): write it with a JSON library"
        ) from error
    if b"\\ud" in raw.lower():
        _only_characters(found)
    if not isinstance(found, dict):
        raise LineError(
            "invalid_json_line", f"a JSON object is needed, not {type(found).__name__}: see the API's request format"
        )
    custom_id = found.get("custom_id")
    if not isinstance(custom_id, str) or not custom_id:
        raise LineError(
            "missing_required_parameter", "custom_id is missing or no text: give each line its own", param="custom_id"
        )
    if len(custom_id) > MAX_ID_CHARS:
        raise LineError(
            "invalid_custom_id",
            f"custom_id has {len(custom_id)} characters: use {MAX_ID_CHARS} at most",
            param="custom_id",
        )
    if found.get("method") != "POST":
        raise LineError("invalid_method", f"method is {found.get('method')!r}: it must be POST", param="method")
    if found.get("url") != URL:
        raise LineError(
            "invalid_url",
            f"url is {found.get('url')!r}: only {URL} runs here; keep other endpoints in files of their own",
            param="url",
        )
    if not isinstance(found.get("body"), dict):
        raise LineError(
            "missing_required_parameter", "body is missing or no object: put model and messages there", param="body"
        )
    return Line(custom_id, found["body"])


def custom_id_of(raw: bytes | None) -> str | None:
    """The id of a line that is refused, for the error file; None where there is none to be read."""
    try:
        found = json.loads(raw or b"null")["custom_id"]
        return found[:MAX_ID_CHARS].encode("utf-8", "replace").decode() if isinstance(found, str) else None
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def _only_characters(found: Any) -> None:
    try:
        json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise LineError("invalid_json_line", r"a \ud… escape is half of a character: write the whole one") from None


def request_of(number: int, body: Mapping[str, Any], defaults: Mapping[str, Any], check_schema: CheckSchema) -> Request:
    """The engine's request of one body. `defaults` are the profile's sampling parameters.

    Raises LineError for what the engine cannot honour, naming the field.
    """
    values = {name: value for name, value in body.items() if value is not None and name not in _HARMLESS}
    values.pop("model", None)
    conversation = _messages(values.pop("messages", None))
    for name, off in _OFF.items():
        if (value := values.pop(name, off)) != off or isinstance(value, bool) != isinstance(off, bool):
            raise _refused(
                name,
                f"{name} is not supported but as {json.dumps(off)}: leave it out, or send this line to the hosted API",
            )
    sampling = _limits(values, defaults)
    for name, least, most in (
        ("temperature", 0, 2),
        ("top_p", 0, 1),
        ("presence_penalty", -2, 2),
        ("frequency_penalty", -2, 2),
    ):
        if name in values:
            sampling[name] = _number(values, name, least, most)
    if sampling.get("top_p") == 0:
        raise _invalid("top_p", "top_p must be above 0; use temperature 0 for the likeliest token")
    if "seed" in values:
        sampling["seed"] = int(_number(values, "seed", -(2**63), 2**63 - 1, whole=True))
    if "stop" in values:
        stops = values.pop("stop")
        stops = [stops] if isinstance(stops, str) else stops
        if not isinstance(stops, list) or len(stops) > MAX_STOPS or not all(isinstance(s, str) and s for s in stops):
            raise _invalid("stop", f"stop must be a text or up to {MAX_STOPS} texts, none empty")
        sampling["stop"] = stops
    if values.pop("logprobs", False) is True:
        sampling["logprobs"] = (
            int(_number(values, "top_logprobs", 0, MAX_TOP_LOGPROBS, whole=True)) if "top_logprobs" in values else 0
        )
    elif "top_logprobs" in values:
        raise _invalid("top_logprobs", "top_logprobs needs logprobs: true")
    if (schema := _schema(values.pop("response_format", {"type": "text"}))) is not None:
        check_schema(schema)
        sampling["json_schema"] = schema
    if values:
        name = next(iter(values))
        raise _refused(name, f"{name} is not supported: leave it out, or send this line to the hosted API")
    return Request(id=str(number), messages=conversation, sampling_params=sampling)


def _invalid(param: str, message: str) -> LineError:
    return LineError("invalid_value", message, param=param, answered=True)


def _refused(param: str, message: str) -> LineError:
    return LineError("unsupported_parameter", message, param=param, answered=True)


def _number(values: dict[str, Any], name: str, least: float, most: float, *, whole: bool = False) -> float:
    value = values.pop(name)
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)) or not least <= value <= most:
        raise _invalid(
            name,
            f"{name} is {json.dumps(value)[:80]}: it must be a {'whole ' if whole else ''}number from {least} to {most}",
        )
    return value


def _limits(values: dict[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    given = {
        int(_number(values, name, 1, 2**31, whole=True))
        for name in ("max_completion_tokens", "max_tokens")
        if name in values
    }
    if len(given) > 1:
        raise _invalid("max_tokens", "max_tokens and max_completion_tokens differ: keep one of them")
    return {"max_tokens": given.pop() if given else defaults.get("max_tokens") or MAX_TOKENS}


def _messages(found: Any) -> list[dict[str, str]]:
    if not isinstance(found, list) or not found:
        raise _invalid("messages", "messages is missing or empty: give at least one message")
    return [_message(f"messages[{place}]", message) for place, message in enumerate(found)]


def _message(where: str, message: Any) -> dict[str, str]:
    if not isinstance(message, dict):
        raise _invalid(where, f"{where} must be an object with role and content")
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or role not in _ROLES:
        raise _refused(f"{where}.role", f"{where}.role is {role!r}: use one of {', '.join(_ROLES)}")
    if more := [name for name, value in message.items() if value is not None and name not in ("role", "content")]:
        raise _refused(f"{where}.{more[0]}", f"{where}.{more[0]} is not supported: leave it out")
    if isinstance(content, list):
        parts = [
            part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None for part in content
        ]
        if not parts or not all(isinstance(part, str) for part in parts):
            raise _refused(
                f"{where}.content",
                f"{where}.content may hold text parts only: this engine reads no images, audio or files",
            )
        content = "\n".join(str(part) for part in parts)
    if not isinstance(content, str):
        raise _invalid(f"{where}.content", f"{where}.content must be text")
    return {"role": _ROLES[role], "content": content}


def _schema(form: Any) -> dict[str, Any] | None:
    """The JSON schema that an answer must follow; None for free text."""
    kind = form.get("type") if isinstance(form, dict) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object", "additionalProperties": True}
    schema = (
        form["json_schema"].get("schema")
        if kind == "json_schema" and isinstance(form.get("json_schema"), dict)
        else None
    )
    if not isinstance(schema, dict):
        raise _invalid(
            "response_format", "response_format must be text, json_object, or json_schema with json_schema.schema"
        )
    return schema
