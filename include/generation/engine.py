"""The one interface that every engine has, and `open_engine`, which picks the engine that a profile asks for.

An engine takes requests and gives each of them exactly one output back, in the order in which they finish::

    with open_engine(profile) as engine:
        for output in run_window(engine, requests):  # include.generation.window
            ...

Most callers want `include.generation.session.Session` instead: it starts the engine only when there is a request, waits
for a free GPU, and carries on after an engine has died. Structured output and token probabilities are sampling
parameters: `{"json_schema": {...}}` and `{"logprobs": 5}`; everything else is named as in vLLM's `SamplingParams`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from include.settings import EngineProfile

Messages = Sequence[Mapping[str, str]]


class EngineError(RuntimeError):
    """Something is wrong with an engine, not with a row.

    `kind` is a stable code (see include.generation.failures); `retryable` says whether the same call may succeed later.
    """

    def __init__(self, message: str, *, kind: str = "engine_failed", retryable: bool = True) -> None:
        super().__init__(message)
        self.kind, self.retryable = kind, retryable


class EngineStartError(EngineError):
    """The engine did not start."""


class EngineDeadError(EngineError):
    """The engine died with requests in flight; those have no output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One chat prompt. `id` is the caller's and unique among the requests in flight."""

    id: str
    messages: Messages
    sampling_params: Mapping[str, Any] = field(default_factory=dict)  # over the profile's; may hold `json_schema`
    thinking: bool = False  # handed to the chat template as `enable_thinking`
    adapter: str | None = None  # LoRA folder instead of the profile's; must be among the engine's `adapters`


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One output token: its text, its natural-log probability, and the likeliest tokens at its place with theirs."""

    token: str
    logprob: float
    top: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """The answer to one request, or the reason (`error`) why there is none.

    `row_at_fault` tells a row that can never be answered (`input_too_long`, `request_rejected`, `engine_breaking_row`)
    from a failure of ours (`engine_failed`), which another try may mend.
    """

    id: str
    text: str = ""
    finish_reason: str = ""
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0  # prompt tokens that came from the prefix cache
    logprobs: tuple[TokenLogprob, ...] = ()
    error: str = ""
    detail: str = ""
    row_at_fault: bool = False
    token_limit: int = 0  # with `input_too_long`: the most prompt tokens that would have fitted


@dataclass(slots=True, kw_only=True)
class EngineMetrics:
    """What an engine counted since it was opened; None where it cannot say."""

    start_seconds: float = 0.0
    prefix_cache_queries: int | None = None
    prefix_cache_hits: int | None = None
    preemptions: int | None = None
    drafts: int | None = None  # of speculative decoding: guesses that a step checked
    accepted_draft_tokens: int | None = None
    kv_cache_use_peak: float | None = None  # share of the KV cache, 0 to 1
    peak_gpu_memory_mb: float | None = None
    description: dict[str, Any] = field(default_factory=dict)  # version, device, effective quantization

    @property
    def acceptance_length(self) -> float | None:
        """Tokens that a step of speculative decoding yields on average, vLLM's "mean acceptance length": the accepted draft
        tokens of a draft, and the model's own. None without speculative decoding.
        """
        return 1 + (self.accepted_draft_tokens or 0) / self.drafts if self.drafts else None


class Engine(Protocol):
    """What a window needs of an engine. `submit` and `finished` are called from one thread, the one that opened it."""

    profile: EngineProfile

    def encode(self, requests: Sequence[Request]) -> Sequence[list[int] | None]:
        """Token ids of each rendered prompt, on all cores; None where the engine has no tokenizer at hand."""

    def submit(self, request: Request, tokens: list[int] | None = None) -> Output | None:
        """Takes a request, or answers at once where it can never run (too long, refused).

        `tokens` are those of `encode`, where the caller has them. Raises EngineDeadError.
        """

    def finished(self) -> list[Output]:
        """Waits for the next answers; may be empty, then call again. Raises EngineDeadError."""

    def limit(self, max_num_seqs: int | None, max_num_batched_tokens: int | None) -> None:
        """Empties the prefix cache and, on an engine opened as `adjustable`, sets the limits; None is that of its start."""

    def trace(self, on: bool) -> None:
        """Starts or ends the engine's own profiler, which `profiler_config` of its arguments sets up."""

    def metrics(self) -> EngineMetrics:
        """Never raises; unknown values are None."""

    def pids(self) -> set[int]:
        """The engine's own processes; none for an endpoint."""

    def shutdown(self) -> None:
        """Ends the engine's processes within a deadline, by force after it. Never raises; safe to call twice."""


@contextmanager
def open_engine(profile: EngineProfile, *, adapters: Sequence[str] = (), adjustable: bool = False) -> Iterator[Engine]:
    """Starts the engine of a profile and ends it on the way out, whatever happens.

    `adapters` are further LoRA folders that requests may name, so that one engine serves several task models;
    `adjustable` engines take other scheduler limits while they run (see Engine.limit).
    Raises EngineStartError with the engine's own reason. One engine per process at a time.
    """
    engine: Engine
    if profile.kind == "openai":
        from include.generation.endpoint import EndpointEngine

        engine = EndpointEngine(profile)
    else:
        from include.generation.several import SeveralEngines
        from include.generation.vllm_engine import VllmEngine

        start = partial(VllmEngine, adapters=adapters, adjustable=adjustable)
        engine = SeveralEngines(profile, start) if profile.engines > 1 else start(profile)
    try:
        yield engine
    finally:
        engine.shutdown()
