"""One engine under test, in a process of its own: `python -m include.tuning trial`. It answers a line for every line.

A line in: `{"cell": {...} | null, "requests": n}`. A line out: `RESULT {...}`, first of all for the start. The process ends
with its input, or by the engine's death, which the run records as that measurement's result.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import cycle, islice
from typing import Any

from include.generation.engine import Engine, Request, open_engine
from include.generation.leases import device_lease
from include.generation.preflight import check_profile
from include.generation.window import run_window
from include.settings import EngineProfile
from include.tuning.workload import describe

WARM_UP = 64


def emit(**values: Any) -> None:
    """One result line on standard output."""
    sys.stdout.write("RESULT " + json.dumps(values) + "\n")
    sys.stdout.flush()


def taken(requests: Sequence[Request], count: int) -> Iterator[Request]:
    """`count` requests, repeated under new ids where there are fewer."""
    for number, request in enumerate(islice(cycle(requests), count)):
        yield replace(request, id=f"{request.id}#{number}")


def measure(engine: Engine, requests: Sequence[Request], cell: dict[str, Any] | None, count: int) -> dict[str, Any]:
    """Answers `count` requests under the cell's settings, from an empty prefix cache; the window runs full and dry within.

    Returns requests, seconds, requests_per_s, tokens (prompt, cached, output), seconds per answer as a client sees it
    (p50, p95), errors, and the engine's own figures. Raises EngineDeadError.
    """
    engine.limit((cell or {}).get("max_num_seqs"), (cell or {}).get("max_num_batched_tokens"))
    if cell:
        engine.profile = engine.profile.model_copy(update={k: cell[k] for k in ("batch_size", "submit")})
    submitted: dict[str, float] = {}

    def stamped() -> Iterator[Request]:
        for request in taken(requests, count):
            submitted[request.id] = time.monotonic()
            yield request

    began = time.monotonic()
    outputs, waits = [], []
    for output in run_window(engine, stamped()):
        outputs.append(output)
        waits.append(time.monotonic() - submitted.pop(output.id))
    seconds = time.monotonic() - began
    metrics = engine.metrics()
    waits.sort()
    answered = [output for output in outputs if not output.error]
    return {
        "requests": len(outputs),
        "errors": len(outputs) - len(answered),
        "seconds": round(seconds, 3),
        "requests_per_s": round(len(answered) / seconds, 3),
        "prompt_tokens": sum(output.prompt_tokens for output in answered),
        "cached_tokens": sum(output.cached_tokens for output in answered),
        "output_tokens": sum(output.output_tokens for output in answered),
        "latency_p50_s": round(waits[len(waits) // 2], 3),
        "latency_p95_s": round(waits[int(0.95 * (len(waits) - 1))], 3),
        "peak_gpu_memory_mb": metrics.peak_gpu_memory_mb,
        "kv_cache_use_peak": metrics.kv_cache_use_peak,
        "preemptions": metrics.preemptions,
        "acceptance_length": metrics.acceptance_length,
    }


def warm_up(engine: Engine, requests: Sequence[Request]) -> None:
    """A window of requests at most, so that the first measurement compiles and allocates nothing."""
    for _ in run_window(engine, taken(requests, min(WARM_UP, engine.profile.batch_size))):
        pass


def serve(profile: EngineProfile, requests: Sequence[Request]) -> None:
    """Starts the profile's engine and measures until standard input ends. Raises EngineError with the engine's reason."""
    check_profile(profile)
    with device_lease(wait_seconds=profile.lease_wait_s):
        check_profile(profile, device=True)
        with open_engine(profile, adjustable=True) as engine:
            warm_up(engine, requests)
            tokens = [ids for ids in engine.encode(requests) if ids is not None]
            metrics = engine.metrics()
            emit(
                start_s=metrics.start_seconds, engine=metrics.description, workload=describe(tokens) if tokens else None
            )
            for line in sys.stdin:
                asked = json.loads(line)
                emit(**measure(engine, requests, asked["cell"], asked["requests"]))
