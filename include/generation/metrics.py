"""What a session saw, summed over its engines: rates, tokens, cache use, truncations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from include.generation.engine import EngineMetrics, Output
from include.generation.roofline import Work, roofline_share
from include.settings import EngineProfile


def device_seconds(earlier: Mapping[str, Any] | None, report: Mapping[str, Any]) -> float:
    """`device_s` of a stage's manifest: what its earlier tries took by the manifest before, and this session's report."""
    return round(sum(float(figures.get("device_s") or 0.0) for figures in (earlier or {}, report)), 4)


@dataclass(slots=True)
class Tally:
    """Counters of one session. `busy_seconds` leaves engine starts and stops out; rates are per busy second."""

    requests: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    finish_reasons: Counter[str] = field(default_factory=Counter)
    busy_seconds: float = 0.0
    start_seconds: float = 0.0
    engine_starts: int = 0
    ended: list[EngineMetrics] = field(default_factory=list)
    before: EngineMetrics = field(default_factory=EngineMetrics)  # what a shared engine had counted for others

    def count(self, output: Output) -> Output:
        """Counts one output and hands it on."""
        if output.error:
            self.errors[output.error] += 1
            return output
        self.requests += 1
        self.prompt_tokens += output.prompt_tokens
        self.output_tokens += output.output_tokens
        self.cached_tokens += output.cached_tokens
        self.finish_reasons[output.finish_reason] += 1
        return output

    def close(self, metrics: EngineMetrics) -> None:
        """Keeps the figures of an engine that ends."""
        self.ended.append(metrics)

    def prefix_cache_hit_rate(self, engines: list[EngineMetrics]) -> float | None:
        """Share of prompt tokens that the prefix cache served, as the engine counts; from the outputs where it does not."""
        queries = sum(m.prefix_cache_queries or 0 for m in engines) - (self.before.prefix_cache_queries or 0)
        if queries > 0:
            return (sum(m.prefix_cache_hits or 0 for m in engines) - (self.before.prefix_cache_hits or 0)) / queries
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else None

    def report(self, live: EngineMetrics | None, profile: EngineProfile) -> dict[str, Any]:
        """Plain JSON figures. Times in seconds, memory in MiB, shares from 0 to 1; None where the engine cannot say."""
        engines = [*self.ended, *([live] if live else [])]
        seconds = self.busy_seconds
        description = engines[-1].description if engines else {}
        known = {
            name: [v for m in engines if (v := getattr(m, name)) is not None]
            for name in ("preemptions", "kv_cache_use_peak", "peak_gpu_memory_mb")
        }
        return {
            "requests": self.requests,
            "requests_per_s": _rate(self.requests, seconds),
            "input_tokens_per_s": _rate(self.prompt_tokens, seconds),
            "output_tokens_per_s": _rate(self.output_tokens, seconds),
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.output_tokens,
            "prefix_cache_hit_rate": _rounded(self.prefix_cache_hit_rate(engines)),
            "kv_cache_use_peak": _rounded(max(known["kv_cache_use_peak"], default=None)),
            "preemptions": (
                sum(known["preemptions"]) - (self.before.preemptions or 0) if known["preemptions"] else None
            ),
            "peak_gpu_memory_mb": _rounded(max(known["peak_gpu_memory_mb"], default=None)),
            "roofline_share": _rounded(
                roofline_share(
                    profile,
                    str(description.get("device", "")),
                    seconds=seconds,
                    work=Work(
                        self.prompt_tokens - self.cached_tokens + self.output_tokens,
                        self.output_tokens,
                        (self.prompt_tokens + self.output_tokens / 2) / max(1, self.requests),
                    ),
                )
            ),
            "engine_start_s": _rounded(engines[-1].start_seconds if engines else 0.0),
            "engine_starts": self.engine_starts,
            "busy_s": _rounded(seconds),
            "device_s": _rounded((seconds + self.start_seconds) * profile.devices),  # 0 for an endpoint
            "truncated": self.finish_reasons["length"],
            "errors": dict(sorted(self.errors.items())),
            "engine": description,
        }


def _rate(count: int, seconds: float) -> float | None:
    return round(count / seconds, 2) if seconds > 0 else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(float(value), 4)
