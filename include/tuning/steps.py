"""Where the time of one engine step goes: kernels by kind, and how long the GPU waits for its host.

vLLM's torch profiler records some steps of an engine under full load; every step is named with its prompt and decode tokens,
so that pure decode steps, prefill steps and mixed ones are told apart.
"""

from __future__ import annotations

import gzip
import json
import re
import statistics
import tempfile
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from include.generation.engine import Request, open_engine
from include.generation.leases import device_lease
from include.generation.window import run_window
from include.settings import EngineProfile
from include.tuning.trial import taken, warm_up

STEP_NAME = re.compile(r"execute_context_(\d+)\((\d+)\)_generation_(\d+)\((\d+)\)")
# The first pattern that a kernel's name matches says its kind. Inductor names a kernel after what it fuses and after the matrix
# product that it feeds, so its names come first; its templates (triton_tem_) are products and attention themselves.
KINDS = (
    ("cache write", re.compile(r"reshape_and_cache|cache_kernel", re.I)),
    ("quantize", re.compile(r"^triton_(?!tem_).*(abs_clamp|quant|fp8)|quant_kernel|_quant_fp8", re.I)),
    ("norm, activation, rotary", re.compile(r"^triton_(?!tem_)|norm|silu|rotary|act_and_mul", re.I)),
    ("attention", re.compile(r"flash|attn|attention|mha|paged|WithKVCache", re.I)),
    ("matrix product", re.compile(r"gemm|nvjet|cutlass|cublas|matmul|marlin|_mm(_|$)|splitk", re.I)),
    ("sampling", re.compile(r"argmax|sample|softmax|topk|sort|gumbel|logit|reduce_kernel", re.I)),
    ("copy", re.compile(r"memcpy|memset|copy|elementwise", re.I)),
)
Event = dict[str, Any]


def kind_of(kernel: str) -> str:
    """Kind of a GPU kernel by its name."""
    return next((kind for kind, pattern in KINDS if pattern.search(kernel)), "other")


def account(trace: Sequence[Event]) -> dict[str, Any]:
    """Per kind of step (decode, prefill, mixed): median milliseconds from one step's first kernel to the next one's, the
    share in which the GPU worked, and milliseconds by kind of kernel. Times of a profiled engine are longer than others.

    `trace` holds Chrome trace events, microseconds. Steps without kernels (a CPU's) are measured by their host ranges.
    """
    kernels = sorted(
        (e for e in trace if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")), key=lambda e: float(e["ts"])
    )
    named = sorted(
        (
            (float(e["ts"]), float(e["dur"]), m)
            for e, m in _steps(trace, "gpu_user_annotation" if kernels else "user_annotation")
        ),
        key=lambda step: step[0],
    )
    starts = [ts for ts, _, _ in named]
    inside: dict[int, list[Event]] = defaultdict(list)
    for event in kernels:
        inside[bisect_right(starts, float(event["ts"])) - 1].append(event)
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for number, ((ts, duration, match), (after, _, _)) in enumerate(pairwise(named)):
        prompts, _, decodes, tokens = (int(value) for value in match.groups())
        kind = "mixed" if prompts and decodes else "prefill" if prompts else "decode"
        by_kind: dict[str, float] = defaultdict(float)
        for event in inside[number]:
            by_kind[kind_of(str(event["name"]))] += float(event["dur"]) / 1000
        found[kind].append({
            "ms": (after - ts) / 1000,
            "busy_ms": sum(by_kind.values()) if kernels else duration / 1000,
            "sequences": prompts + decodes,
            "tokens": int(match.group(2)) + tokens,
            "kernels": len(inside[number]),
            "by_kind": dict(by_kind),
        })  # fmt: skip
    return {kind: _median(steps) for kind, steps in found.items()}


def _steps(trace: Sequence[Event], category: str) -> Iterator[tuple[Event, re.Match[str]]]:
    for event in trace:
        if event.get("cat") == category and (match := STEP_NAME.search(str(event.get("name", "")))):
            yield event, match


def _median(steps: Sequence[dict[str, Any]]) -> dict[str, Any]:
    kinds = {name for step in steps for name in step["by_kind"]}
    figures = {
        name: statistics.median(step[name] for step in steps)
        for name in ("ms", "busy_ms", "sequences", "tokens", "kernels")
    }
    by_kind = {
        name: round(statistics.median(step["by_kind"].get(name, 0.0) for step in steps), 3) for name in sorted(kinds)
    }
    return {
        "steps": len(steps),
        **{name: round(value, 3) for name, value in figures.items()},
        "busy_share": round(min(1.0, figures["busy_ms"] / figures["ms"]), 3) if figures["ms"] else None,
        "ms_by_kind": dict(sorted(by_kind.items(), key=lambda pair: -pair[1])),
    }


def profile_steps(
    profile: EngineProfile, requests: Sequence[Request], *, count: int, iterations: int = 60
) -> dict[str, Any]:
    """Answers `count` requests and profiles `iterations` steps from the beginning, when prompts come in, into decoding.

    Raises EngineError; RuntimeError where the engine wrote no trace.
    """
    with tempfile.TemporaryDirectory(prefix="engine-trace-") as folder:
        config = {
            "profiler": "torch",
            "torch_profiler_dir": folder,
            "torch_profiler_with_stack": False,
            "max_iterations": iterations,
        }
        profiled = profile.model_copy(update={"engine_args": profile.engine_args | {"profiler_config": config}})
        with device_lease(profile.devices, wait_seconds=profile.lease_wait_s), open_engine(profiled) as engine:
            warm_up(engine, requests)
            engine.trace(True)
            for _ in run_window(engine, taken(requests, count)):
                pass
            engine.trace(False)
        traces = sorted(Path(folder).rglob("*.json*"), key=lambda path: path.stat().st_size)
        if not traces:
            raise RuntimeError("the engine wrote no trace")
        content = traces[-1].read_bytes()
        return account(json.loads(gzip.decompress(content) if traces[-1].suffix == ".gz" else content)["traceEvents"])
