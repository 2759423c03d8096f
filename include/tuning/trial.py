"""One engine under test, in a process of its own: `python -m include.tuning trial`. It answers a line for every line.

A line in: `{"cell": {...} | null, "requests": n}`. A line out: `RESULT {...}`, first of all for the start. The process ends
with its input, or by the engine's death, which the run records as that measurement's result. An *arm* is how prompts come
to be answered: `offline` as the nightly worker does it, or one of include.tuning.arms.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from itertools import cycle, islice
from typing import Any

from include.generation.engine import Engine, Request, open_engine
from include.generation.leases import device_lease
from include.generation.preflight import check_profile
from include.generation.window import run_window
from include.settings import EngineProfile
from include.tuning.workload import describe

WARM_UP = 1024  # with 64, an engine that holds 1,024 sequences was 2% to 15% slower in the first measurement
Measure = Callable[[dict[str, Any], int], dict[str, Any]]  # of a cell and a number of requests
Arm = Callable[[EngineProfile, Sequence[Request]], AbstractContextManager[tuple[dict[str, Any], Measure]]]


def emit(**values: Any) -> None:
    """One result on a line of its own of standard output, whatever stands there without a line's end."""
    sys.stdout.write("\nRESULT " + json.dumps(values) + "\n")
    sys.stdout.flush()


def taken(requests: Sequence[Request], count: int) -> Iterator[Request]:
    """`count` requests, repeated under new ids where there are fewer."""
    for number, request in enumerate(islice(cycle(requests), count)):
        yield replace(request, id=f"{request.id}#{number}")


def quantiles(name: str, seconds: Sequence[float]) -> dict[str, float]:
    """Median and 95th percentile of at least one duration, as `<name>_p50_s` and `<name>_p95_s`."""
    ordered = sorted(seconds)
    p50, p95 = ordered[len(ordered) // 2], ordered[int(0.95 * (len(ordered) - 1))]
    return {f"{name}_p50_s": round(p50, 3), f"{name}_p95_s": round(p95, 3)}


def measure(engine: Engine, requests: Sequence[Request], cell: dict[str, Any], count: int) -> dict[str, Any]:
    """Answers `count` requests under the cell's settings, from an empty prefix cache; the window runs full and dry within.

    Returns requests, seconds, requests_per_s, tokens (prompt, cached, output), seconds per answer as a client sees it
    (p50, p95), errors, and the engine's own figures. Raises EngineDeadError.
    """
    engine.limit(cell.get("max_num_seqs"), cell.get("max_num_batched_tokens"))
    if cell:
        engine.profile = engine.profile.model_copy(update={k: cell[k] for k in ("batch_size", "submit")})
    submitted: dict[str, float] = {}

    def sent(request: Request) -> None:
        submitted[request.id] = time.monotonic()

    began = time.monotonic()
    outputs, waits = [], []
    for output in run_window(engine, taken(requests, count), sent=sent):
        outputs.append(output)
        waits.append(time.monotonic() - submitted.pop(output.id))
    seconds = time.monotonic() - began
    metrics = engine.metrics()
    answered = [output for output in outputs if not output.error]
    return {
        "requests": len(outputs),
        "errors": len(outputs) - len(answered),
        "seconds": round(seconds, 3),
        "requests_per_s": round(len(answered) / seconds, 3),
        "prompt_tokens": sum(output.prompt_tokens for output in answered),
        "cached_tokens": sum(output.cached_tokens for output in answered),
        "output_tokens": sum(output.output_tokens for output in answered),
        **quantiles("latency", waits),
        "peak_gpu_memory_mb": metrics.peak_gpu_memory_mb,
        "kv_cache_use_peak": metrics.kv_cache_use_peak,
        "preemptions": metrics.preemptions,
        "acceptance_length": metrics.acceptance_length,
    }


def warm_up(engine: Engine, requests: Sequence[Request]) -> None:
    """A window of requests at most, so that the first measurement compiles and allocates nothing."""
    for _ in run_window(engine, taken(requests, min(WARM_UP, engine.profile.batch_size))):
        pass


@contextmanager
def offline(profile: EngineProfile, requests: Sequence[Request]) -> Iterator[tuple[dict[str, Any], Measure]]:
    """The profile's engine behind the worker's window. Raises EngineError with the engine's reason."""
    with open_engine(profile, adjustable=True) as engine:
        warm_up(engine, requests)
        tokens = [ids for ids in engine.encode(requests) if ids is not None]
        metrics = engine.metrics()
        workload = describe(tokens) if tokens else None
        started = {"start_s": metrics.start_seconds, "engine": metrics.description, "workload": workload}
        yield started, partial(measure, engine, requests)


def serve(profile: EngineProfile, requests: Sequence[Request], arm: Arm = offline) -> None:
    """Starts the arm on a leased device and measures until standard input ends. Raises EngineError with the reason."""
    check_profile(profile)
    with device_lease(profile.devices, wait_seconds=profile.lease_wait_s):
        check_profile(profile, device=True)
        with arm(profile, requests) as (started, measured):
            emit(**started)
            for line in sys.stdin:
                asked = json.loads(line)
                emit(**measured(asked["cell"] or {}, asked["requests"]))
