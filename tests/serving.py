"""A small OpenAI-compatible HTTP server of a test's own."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from include.generation.endpoint import ENDPOINT_VARIABLE

Reply = Callable[[dict[str, Any]], tuple[int, dict[str, Any]]]


def completion(text: str = "Ceramic mug", **changes: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"} | changes
    usage = {
        "prompt_tokens": 20,
        "completion_tokens": 3,
        "total_tokens": 23,
        "prompt_tokens_details": {"cached_tokens": 16},
    }
    return {"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": usage}


def failure(status: int, message: str) -> tuple[int, dict[str, Any]]:
    return status, {"error": {"message": message, "type": "error", "code": status}}


@contextmanager
def serving(reply: Reply, monkeypatch: pytest.MonkeyPatch, key: str = "") -> Iterator[list[dict[str, Any]]]:
    """Serves `/v1`; yields the list of requests' bodies and keys."""
    seen: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send(200, {"object": "list", "data": []})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            seen.append(body | {"authorization": self.headers["Authorization"]})
            self._send(*reply(body))

        def _send(self, status: int, value: dict[str, Any]) -> None:
            content = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv(ENDPOINT_VARIABLE, f"http://{key and f':{key}@'}127.0.0.1:{server.server_port}/v1")
    try:
        yield seen
    finally:
        server.shutdown()
        server.server_close()
