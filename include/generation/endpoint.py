"""An OpenAI-compatible endpoint behind the engine interface: `vllm serve`, or a hosted API.

The address comes from LISTING_ENDPOINT_URL (`https://:KEY@host/v1`), which the GPU task operator fills from the Airflow
connection that the profile names. A persistent endpoint is the way for many small runs, since no engine is started.
"""

from __future__ import annotations

import logging
import os
import queue
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import unquote, urlsplit

from include.generation.engine import (
    EngineDeadError,
    EngineMetrics,
    EngineStartError,
    Output,
    Request,
    TokenLogprob,
)
from include.settings import EngineProfile

log = logging.getLogger(__name__)

ENDPOINT_VARIABLE = "LISTING_ENDPOINT_URL"
MAX_THREADS = 256
RETRIES = 5  # with the client's own exponential back-off; for rate limits and passing faults
_TOO_LONG = ("context length", "max_model_len", "maximum context", "context_length_exceeded", "too long")
_STANDARD = frozenset(
    {"temperature", "top_p", "seed", "stop", "presence_penalty", "frequency_penalty", "logit_bias", "n"}
)


def _address() -> tuple[str, str]:
    """(base URL, API key) from the environment. Raises EngineStartError when it is not set."""
    value = os.environ.get(ENDPOINT_VARIABLE, "")
    found = urlsplit(value)
    if not found.hostname:
        raise EngineStartError(
            f"{ENDPOINT_VARIABLE} holds no URL: give the task `connections`, or set https://:KEY@host/v1 by hand",
            kind="bad_engine_args",
            retryable=False,
        )
    place = found.hostname + (f":{found.port}" if found.port else "")
    return f"{found.scheme}://{place}{found.path}", unquote(found.password or "") or "none"


class EndpointEngine:
    """One chat model of one endpoint. See include.generation.engine.Engine.

    `engine_args` may hold `hosted: true` for an API that takes OpenAI's own parameters only; vLLM's further sampling
    parameters are then left out, with one warning.
    """

    def __init__(self, profile: EngineProfile) -> None:
        """Checks that the endpoint answers. Raises EngineStartError."""
        import openai

        self.profile = profile
        self._openai = openai
        self._hosted = bool(profile.engine_args.get("hosted", False))
        base_url, key = _address()
        self._place = urlsplit(base_url).netloc
        self._client = openai.OpenAI(
            base_url=base_url, api_key=key, timeout=profile.stall_timeout_s, max_retries=RETRIES
        )
        self._threads = ThreadPoolExecutor(min(profile.batch_size, MAX_THREADS), thread_name_prefix="endpoint")
        self._done: queue.SimpleQueue[Output | EngineDeadError] = queue.SimpleQueue()
        self._warned: set[str] = set()
        began = time.monotonic()
        try:
            self._client.with_options(timeout=30.0, max_retries=1).models.list()
        except openai.OpenAIError as error:
            self.shutdown()
            raise self._failure(error, EngineStartError) from error
        self._started = EngineMetrics(
            start_seconds=time.monotonic() - began,
            description={"engine": "openai", "model": profile.model, "version": openai.__version__},
        )

    def _failure(self, error: Exception, failure: Any) -> Any:
        """An error of the endpoint itself; the message names the host, never the key."""
        refused = (
            self._openai.AuthenticationError,
            self._openai.PermissionDeniedError,
            self._openai.NotFoundError,
        )
        kind = "endpoint_refused" if isinstance(error, refused) else "endpoint_unreachable"
        return failure(
            f"endpoint {self._place}: {type(error).__name__}: {error} [check the connection "
            f"{self.profile.connection or ENDPOINT_VARIABLE} and the model name {self.profile.model}]",
            kind=kind,
            retryable=kind != "endpoint_refused",
        )

    def encode(self, requests: Sequence[Request]) -> list[None]:
        return [None] * len(requests)

    def submit(self, request: Request, tokens: list[int] | None = None) -> Output | None:
        self._threads.submit(self._answer, request)
        return None

    def finished(self) -> list[Output]:
        found = [self._done.get()]
        while not self._done.empty():
            found.append(self._done.get())
        for item in found:
            if isinstance(item, EngineDeadError):
                raise item
        return [item for item in found if isinstance(item, Output)]

    def _answer(self, request: Request) -> None:
        try:
            self._done.put(self._ask(request))
        except self._openai.BadRequestError as error:
            text = str(error)
            code = "input_too_long" if any(words in text.lower() for words in _TOO_LONG) else "request_rejected"
            self._done.put(Output(id=request.id, error=code, detail=text[:300], row_at_fault=True))
        except (self._openai.APIStatusError, self._openai.APIConnectionError) as error:
            status = getattr(error, "status_code", None)
            if status is None or status in (401, 403, 404):
                self._done.put(self._failure(error, EngineDeadError))
            else:  # still failing after the client's own retries; this request alone is lost
                self._done.put(Output(id=request.id, error="engine_failed", detail=str(error)[:300]))
        except Exception as error:
            self._done.put(
                Output(id=request.id, error="engine_failed", detail=f"{type(error).__name__}: {error}"[:300])
            )

    def _ask(self, request: Request) -> Output:
        messages: Any = [dict(message) for message in request.messages]
        answer = self._client.chat.completions.create(
            model=self.profile.model, messages=messages, **self._parameters(request)
        )
        choice, usage = answer.choices[0], answer.usage
        details = getattr(usage, "prompt_tokens_details", None)
        places = (choice.logprobs.content or []) if choice.logprobs else []
        return Output(
            id=request.id,
            text=choice.message.content or "",
            finish_reason=choice.finish_reason or "",
            prompt_tokens=usage.prompt_tokens if usage else 0,
            output_tokens=usage.completion_tokens if usage else 0,
            cached_tokens=(details.cached_tokens or 0) if details else 0,
            logprobs=tuple(
                TokenLogprob(p.token, p.logprob, {t.token: t.logprob for t in p.top_logprobs}) for p in places
            ),
        )

    def _parameters(self, request: Request) -> dict[str, Any]:
        """vLLM's sampling parameters as the endpoint's request fields."""
        values = {**self.profile.sampling_params, **request.sampling_params}
        fields: dict[str, Any] = {}
        if (limit := values.pop("max_tokens", None)) is not None:
            fields["max_completion_tokens" if self._hosted else "max_tokens"] = limit
        if (schema := values.pop("json_schema", None)) is not None:
            form = {"name": "answer", "schema": schema, "strict": True}
            fields["response_format"] = {"type": "json_schema", "json_schema": form}
        if (alternatives := values.pop("logprobs", None)) is not None:
            fields |= {"logprobs": True, "top_logprobs": alternatives}
        fields |= {name: values.pop(name) for name in list(values) if name in _STANDARD}
        if not self._hosted:
            fields["extra_body"] = {**values, "chat_template_kwargs": {"enable_thinking": request.thinking}}
        else:
            self._warn_dropped(values)
        return fields

    def _warn_dropped(self, values: Mapping[str, Any]) -> None:
        for name in set(values) - self._warned:
            self._warned.add(name)
            log.warning("sampling parameter %s is vLLM's own; the hosted API does not get it", name)

    def limit(self, max_num_seqs: int | None, max_num_batched_tokens: int | None) -> None:
        """The endpoint's own settings hold."""

    def trace(self, on: bool) -> None:
        """Nothing to trace from here."""

    def metrics(self) -> EngineMetrics:
        return self._started

    def pids(self) -> set[int]:
        return set()

    def shutdown(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._client.close()
