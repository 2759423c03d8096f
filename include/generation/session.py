"""A session: answers for a stream of requests from an engine that starts late and is replaced when it dies.

::

    with Session(profile) as session:
        for output in session.run(requests):  # exactly one output per request, in completion order
            ...
        manifest |= session.report()

The engine starts with the first request, so no request means no engine. When it dies, the requests in flight are tried
in ever smaller groups until the one that breaks it stands alone; out of memory, or a death that no row explains, steps
down the ladder of settings.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from itertools import chain
from typing import Any

from include.generation.engine import Engine, EngineDeadError, EngineError, EngineMetrics, Output, Request, open_engine
from include.generation.ladder import RUNGS, demoted
from include.generation.leases import Lease, device_lease
from include.generation.metrics import Tally
from include.generation.preflight import check_profile
from include.generation.progress import Progress
from include.generation.window import run_window
from include.settings import EngineProfile

log = logging.getLogger(__name__)

CANARY = "canary"
OpenEngine = Callable[..., AbstractContextManager[Engine]]


class Session:
    """See the module. Use as a context manager, from the process's main thread, one at a time."""

    def __init__(
        self, profile: EngineProfile, *, adapters: Sequence[str] = (), open_engine: OpenEngine = open_engine
    ) -> None:
        self.profile, self.adapters = profile, tuple(adapters)
        self.tally = Tally()
        self._open = open_engine
        self._engine: Engine | None = None
        self._rung = 0
        self._device: Lease | None = None
        self._deaths = 0
        self._breaking_rows = 0
        self._demotions: list[dict[str, Any]] = []
        self._held = ExitStack()  # the engine
        self._lease = ExitStack()  # the device, kept over an engine's replacement

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lease:
            self._stop()

    def run(
        self, requests: Iterable[Request], *, again: deque[Request] | None = None, progress: Progress | None = None
    ) -> Iterator[Output]:
        """Answers in completion order; `again` takes requests to be tried once more (see run_window), and the caller's
        `progress` has its clock started when the engine is up.

        Raises EngineError with the engine's own reason when it cannot start, or keeps dying.
        """
        again = deque() if again is None else again
        source = iter(requests)
        first = next(source, None)  # it starts the engine; without one there is nothing to start for
        if first is None:
            return
        source = chain([first], source)
        self._take_device(self.profile)  # a wait for it is no work of the engine
        began, starting = time.monotonic(), self.tally.start_seconds
        try:
            yield from self._answers(source, again, progress)
        finally:
            self.tally.busy_seconds += time.monotonic() - began - (self.tally.start_seconds - starting)

    def _answers(self, source: Iterator[Request], again: deque[Request], progress: Progress | None) -> Iterator[Output]:
        while True:
            flight: dict[str, Request] = {}
            try:
                engine = self._started()
                if progress is not None and not progress.done:
                    progress.start()
                for output in run_window(engine, source, again=again, flight=flight):
                    yield self.tally.count(output)
                return
            except EngineDeadError as death:
                lost = list(flight.values())
                log.warning("engine died with %d requests in flight: %s", len(lost), death)
                if self._after_death(death):
                    again.extendleft(reversed(lost))
                else:
                    yield from self._isolate(lost, death)

    def _isolate(self, suspects: Sequence[Request], death: EngineDeadError) -> Iterator[Output]:
        """Runs the suspects in groups, halving each group that kills the engine, down to the single row that does."""
        reproduced = False
        middle = (len(suspects) + 1) // 2
        groups = [list(suspects[middle:]), list(suspects[:middle])]
        while groups:
            group = iter(groups.pop())
            flight: dict[str, Request] = {}
            ahead: deque[Request] = deque()
            try:
                for output in run_window(self._started(), group, again=ahead, flight=flight):
                    yield self.tally.count(output)
            except EngineDeadError as again:
                reproduced, lost = True, [*flight.values(), *ahead, *group]
                if self._after_death(again):
                    groups.append(lost)
                elif len(lost) == 1:
                    yield self.tally.count(self._breaking(lost[0], again))
                else:
                    middle = (len(lost) + 1) // 2
                    groups += [lost[middle:], lost[:middle]]
        if not reproduced:
            self._demote(death)

    def _breaking(self, request: Request, death: EngineDeadError) -> Output:
        self._breaking_rows += 1
        if self._breaking_rows > self.profile.max_breaking_rows:
            raise EngineDeadError(
                f"more than {self.profile.max_breaking_rows} rows each broke the engine, so it is not the rows: {death}",
                kind=death.kind,
                retryable=death.retryable,
            ) from death
        log.warning("request %s breaks the engine and is set aside: %s", request.id, death)
        return Output(id=request.id, error="engine_breaking_row", detail=str(death)[:500], row_at_fault=True)

    def _after_death(self, death: EngineDeadError) -> bool:
        """Replaces a dead engine. True when its settings were to blame and the same requests may simply run again."""
        self._stop()
        self._deaths += 1
        if self._deaths > self.profile.max_engine_deaths or not death.retryable or self.profile.kind != "vllm":
            raise death
        if death.kind == "out_of_memory":
            self._demote(death)
            return True
        canary = Request(
            id=CANARY, messages=[{"role": "user", "content": "Say yes."}], sampling_params={"max_tokens": 4}
        )
        try:
            for _ in run_window(self._started(), [canary]):
                return False
        except EngineDeadError as again:  # no row is needed to kill it
            self._stop()
            self._deaths += 1
            self._demote(again)
        return True

    def _demote(self, failure: EngineError) -> None:
        """One rung down for the next start. Raises the failure itself at the ladder's foot."""
        if self._rung == RUNGS:
            raise failure
        self._stop()
        self._rung += 1
        settings = demoted(self.profile, self._rung)
        kept = ("gpu_memory_utilization", "max_num_seqs", "max_num_batched_tokens")
        step = {"after": failure.kind, "batch_size": settings.batch_size} | {k: settings.engine_args[k] for k in kept}
        self._demotions.append(step)
        log.warning("stepping down: %s", step)

    def _started(self) -> Engine:
        while self._engine is None:
            profile = demoted(self.profile, self._rung)
            self._take_device(profile)
            log.info("starting engine %s (%s)", profile.name, profile.model)
            began = time.monotonic()
            if self._device is not None and self.tally.engine_starts:
                self._device.wait_until_free()
            try:
                self._engine = self._held.enter_context(self._open(profile, adapters=self.adapters))
            except EngineError as error:
                if error.kind != "out_of_memory":
                    raise
                self._demote(error)
                continue
            finally:
                self.tally.start_seconds += time.monotonic() - began
            self.tally.engine_starts += 1
            if self._device is not None:
                self._device.record(self._engine.pids())
        return self._engine

    def _take_device(self, profile: EngineProfile) -> None:
        """Once per session; an endpoint needs none."""
        if self._device is not None or profile.kind != "vllm":
            return
        check_profile(profile)
        self._device = self._lease.enter_context(device_lease(profile.devices, wait_seconds=profile.lease_wait_s))
        check_profile(profile, device=True)

    def _stop(self) -> None:
        if self._engine is not None:
            self.tally.close(self._engine.metrics())
        self._engine = None
        began = time.monotonic()
        self._held.close()
        self.tally.start_seconds += time.monotonic() - began

    def new_tally(self) -> None:
        """Counts from here on for someone else, who shares the engine."""
        before = replace(self._engine.metrics()) if self._engine is not None else EngineMetrics()
        self.tally = Tally(before=before)

    def report(self) -> dict[str, Any]:
        """The session for a manifest: rates, cache use, starts, deaths and demotions; plain JSON values."""
        live = self._engine.metrics() if self._engine is not None else None
        return self.tally.report(live, demoted(self.profile, self._rung)) | {
            "engine_profile": self.profile.name,
            "engine_deaths": self._deaths,
            "demotions": self._demotions,
        }
