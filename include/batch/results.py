"""Result and error lines as the Batch API writes them, and the files they grow in until everything is there."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from include.batch.requests import LineError
from include.generation.engine import EngineError, Output, TokenLogprob

PART = ".part"
_FINISHED = {"stop", "length", "content_filter"}  # what a chat completion without tools may end with


def completion(output: Output, model: str, name: str, fingerprint: str, alternatives: int = 0) -> dict[str, Any]:
    """A `chat.completion` body, with that many alternatives per token where it has log probabilities. `model` is the name that the request asked for, so that its reader finds what it knows."""
    return {
        "id": f"chatcmpl-{name}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": output.text, "refusal": None},
                "logprobs": {"content": [_token(t, alternatives) for t in output.logprobs], "refusal": None}
                if output.logprobs
                else None,
                "finish_reason": output.finish_reason if output.finish_reason in _FINISHED else "stop",
            }
        ],
        "usage": {
            "prompt_tokens": output.prompt_tokens,
            "completion_tokens": output.output_tokens,
            "total_tokens": output.prompt_tokens + output.output_tokens,
            "prompt_tokens_details": {"cached_tokens": output.cached_tokens},
        },
        "system_fingerprint": f"fp_{fingerprint}",
    }


def _token(found: TokenLogprob, alternatives: int) -> dict[str, Any]:
    top = sorted(found.top.items(), key=lambda pair: -pair[1])
    return _place(found.token, found.logprob) | {"top_logprobs": [_place(*pair) for pair in top[:alternatives]]}


def _place(token: str, logprob: float) -> dict[str, Any]:
    return {"token": token, "logprob": max(logprob, -9999.0), "bytes": list(token.encode("utf-8", "replace"))}


def result_line(name: str, custom_id: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """The line of a request that was answered."""
    return {
        "id": f"batch_req_{name}",
        "custom_id": custom_id,
        "response": {"status_code": 200, "request_id": f"req_{name}", "body": body},
        "error": None,
    }


def error_line(name: str, line: int, custom_id: str | None, error: LineError) -> dict[str, Any]:
    """The line of a request that has no answer; a refused body carries the API's own 400 answer as well."""
    told = {"code": error.code, "message": f"line {line}: {error}", "param": error.param, "line": line}
    response = None
    if error.answered:
        body = {"error": told | {"type": "invalid_request_error"}}
        response = {"status_code": 400, "request_id": f"req_{name}", "body": body}
    return {"id": f"batch_req_{name}", "custom_id": custom_id, "response": response, "error": told}


class GrowingFile:
    """Lines that are appended to `<path>.part` and get their final name when all are there.

    Every line's id names the fingerprint and the input line, so what an earlier process wrote tells by itself what it
    still stands for: no second file can disagree with it.
    """

    def __init__(self, path: Path, fingerprint: str) -> None:
        """Opens the file for this process alone. Raises EngineError (`output_busy`) while another one holds it."""
        self.path, self.part = path, path.with_name(path.name + PART)
        self.prefix = f"batch_req_{fingerprint}-"
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file: BinaryIO = open(self.part, "a+b")  # noqa: SIM115
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.file.close()
            raise EngineError(
                f"{self.part} is being written by another process: wait for it", kind="output_busy"
            ) from None

    def recover(self, keep: Callable[[int, Mapping[str, Any]], object]) -> None:
        """Hands each line of this fingerprint to `keep` with its input line; cuts off a torn end and all of another one."""
        if not os.path.getsize(self.part) and self.path.exists():  # killed between the renames of a finished batch
            with open(self.path, "rb") as published:
                shutil.copyfileobj(published, self.file)
        self.file.seek(0)
        valid = 0
        for found, number, size in self._whole():
            keep(number, found)
            valid += size
        self.file.truncate(valid)

    def _whole(self) -> Iterator[tuple[dict[str, Any], int, int]]:
        for raw in self.file:
            try:
                found = json.loads(raw)
                name = str(found["id"])
                if not raw.endswith(b"\n") or not name.startswith(self.prefix):
                    return
                yield found, int(name.removeprefix(self.prefix)), len(raw)
            except (ValueError, KeyError, TypeError):
                return

    def write(self, line: Mapping[str, Any]) -> None:
        """Appends one line and hands it to the kernel, so that a kill loses nothing that was counted."""
        self.file.write(json.dumps(line, ensure_ascii=False).encode("utf-8", "replace") + b"\n")
        self.file.flush()

    def publish(self) -> None:
        """Gives the file its final name, synced; it is whole from then on."""
        os.fsync(self.file.fileno())
        os.replace(self.part, self.path)

    def close(self, *, drop: bool = False) -> None:
        """Lets go of the file; with `drop`, removes an unneeded part."""
        if drop:
            self.part.unlink(missing_ok=True)
        self.file.close()
