"""Several engines on one device behind the one interface: while one waits for its host, another keeps the GPU at work.

Each has its own process, weights and KV cache. They are started one after the other, since each measures the free memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields

from include.generation.engine import Engine, EngineMetrics, Output, Request
from include.settings import EngineProfile

DEFAULT_UTILIZATION = 0.9  # vLLM's own share of the GPU's memory


class SeveralEngines:
    """See the module. A request goes to the engine with the fewest in flight."""

    def __init__(self, profile: EngineProfile, start: Callable[[EngineProfile], Engine]) -> None:
        """Starts `profile.engines` engines. Raises EngineStartError; those already started are ended first."""
        self.profile = profile
        whole = float(profile.engine_args.get("gpu_memory_utilization", DEFAULT_UTILIZATION))
        share = profile.engine_args | {"gpu_memory_utilization": round(whole / profile.engines, 3)}
        self._engines: list[Engine] = []
        self._where: dict[str, int] = {}
        self._load = [0] * profile.engines
        try:
            for _ in range(profile.engines):
                self._engines.append(start(profile.model_copy(update={"engine_args": share, "engines": 1})))
        except BaseException:
            self.shutdown()
            raise

    def encode(self, requests: Sequence[Request]) -> Sequence[list[int] | None]:
        return self._engines[0].encode(requests)

    def submit(self, request: Request, tokens: list[int] | None = None) -> Output | None:
        least = min(range(len(self._engines)), key=self._load.__getitem__)
        refused = self._engines[least].submit(request, tokens)
        if refused is None:
            self._where[request.id] = least
            self._load[least] += 1
        return refused

    def finished(self) -> list[Output]:
        found = [output for n, engine in enumerate(self._engines) if self._load[n] for output in engine.finished()]
        for output in found:
            self._load[self._where.pop(output.id)] -= 1
        return found

    def limit(self, max_num_seqs: int | None, max_num_batched_tokens: int | None) -> None:
        for engine in self._engines:
            engine.limit(max_num_seqs, max_num_batched_tokens)

    def trace(self, on: bool) -> None:
        self._engines[0].trace(on)

    def metrics(self) -> EngineMetrics:
        """Sums of counters, the longest total start, the fullest cache."""
        return _joined([engine.metrics() for engine in self._engines])

    def pids(self) -> set[int]:
        return {pid for engine in self._engines for pid in engine.pids()}

    def shutdown(self) -> None:
        for engine in self._engines:
            engine.shutdown()


def _joined(each: Sequence[EngineMetrics]) -> EngineMetrics:
    joined = EngineMetrics(description=each[0].description | {"engines": len(each)})
    for field in fields(EngineMetrics):
        known = [value for metrics in each if isinstance(value := getattr(metrics, field.name), (int, float))]
        if known:
            fullest = field.name in ("kv_cache_use_peak", "peak_gpu_memory_mb")
            setattr(joined, field.name, max(known) if fullest else sum(known))
    return joined
