"""One bin of one enhancement task: work items in, Generation parts out, only what is missing, memory flat in the rows."""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from include import measurements, promotions
from include.generation.answers import Pending, first_request, generation_of, next_request
from include.generation.engine import Request
from include.generation.fingerprint import part_fingerprint
from include.generation.leases import device_name
from include.generation.metrics import device_seconds
from include.generation.parts import GenerationParts, drop_invalid, parts_of
from include.generation.preflight import check_profile
from include.generation.progress import Progress
from include.generation.session import Session
from include.records import Generation, WorkItem
from include.runs import Run, StopMarker

log = logging.getLogger(__name__)

STOP_POLL_SECONDS = 5.0


class BinWorker:
    """Generates the missing texts of one bin; see `generate_bins`."""

    def __init__(self, run: Run, task: str, bin_index: int) -> None:
        settings = run.spec.settings
        self.run, self.name, self.bin = run, task, bin_index
        self.task = settings.task(task)
        engine = run.engines(task)[bin_index]
        configured = settings.engines[engine]
        self.promotion = promotions.current(settings, engine, device_name())
        self.profile = self.promotion.over(configured) if self.promotion else configured
        self.pipeline = settings.pipeline
        self.again: deque[Request] = deque()
        self.pending: dict[str, Pending] = {}
        self.counts: Counter[str] = Counter()
        self.stopped: StopMarker | None = None
        self._stop_read = 0.0

    def generate(self, session: Session) -> None:
        """Answers every missing text. Raises EngineError; what was finished until then is kept."""
        store, folder = self.run.store, self.run.generated(self.name, self.bin)
        fingerprint = part_fingerprint(self.profile, self.task)
        self.existing = drop_invalid(store, folder, fingerprint)
        self.parts = GenerationParts(
            store, folder, fingerprint, self.existing, self.pipeline.rows_per_part, self.pipeline.seconds_per_part
        )
        plan = store.read_json(self.run.plan(self.name))
        self.progress = Progress(log, f"{self.name} bin {self.bin}", int(plan["rows"][self.bin]))
        log.info("run %s: %s bin %d of %d rows", self.run.spec.run_id, self.name, self.bin, self.progress.total)
        try:
            for output in session.run(self._requests(), again=self.again, progress=self.progress):
                pending = self.pending[output.id]
                request = next_request(pending, output, self.task)
                if request is not None:
                    self.counts["retried"] += 1
                    self.again.append(request)
                    continue
                del self.pending[output.id]
                self.counts[output.error or "answered"] += 1
                if not output.error or output.row_at_fault:  # our own failures are left out, so that a retry asks again
                    self.parts.write(pending.shard, generation_of(pending, output))
                if output.error:
                    item, detail = pending.item, without_listing(output.detail, pending.item)
                    log.warning("%s bin %d: listing %s of %s (text %s): %s (%s)", self.name, self.bin,
                                item.listing_id, item.merchant_id, output.id, output.error, detail)  # fmt: skip
                self.progress.add(output.output_tokens)
        finally:
            self.parts.flush()
        self.progress.report()

    def _requests(self) -> Iterator[Request]:
        """One request per distinct missing text, shard by shard; equal texts lie in one shard, so the sets stay small."""
        store = self.run.store
        for shard in self.run.bins(self.name)[self.bin]:
            seen = {row.text_id for row in store.read_rows(parts_of(self.existing, shard), Generation)}
            self.counts["resumed"] += len(seen)
            for item in store.read_rows(self.run.work(self.name, shard), WorkItem):
                if item.text_id in seen:
                    self.progress.skip()
                    continue
                if self._stop_requested():
                    return
                seen.add(item.text_id)
                request = first_request(item, self.task, self.profile)
                if not self.pending and not self.progress.done:
                    # Answers of a larger model were to an earlier generation's refusals.
                    store.remove(self.run.escalated(self.name, self.bin))
                self.pending[item.text_id] = Pending(item, shard, request)
                yield request

    def _stop_requested(self) -> bool:
        if time.monotonic() - self._stop_read >= STOP_POLL_SECONDS:
            self._stop_read = time.monotonic()
            self.stopped = self.run.read_stop(self.name)
            if self.stopped is not None:
                log.warning("stopping early: %s", self.stopped.reason)
        return self.stopped is not None


def without_listing(detail: str, item: WorkItem) -> str:
    """An error's detail for the log, unless it quotes the listing, as some endpoints do: logs hold ids, never texts."""
    texts = (item.title, item.description, item.attributes)
    slices = {detail[start : start + 12] for start in range(len(detail) - 11)}
    quoted = any(part in text for part in slices for text in texts) or any(
        text in detail for text in texts if len(text) > 3
    )
    return "its detail quotes the listing and is left out" if quoted else detail


def generate_bins(run: Run, tasks: Sequence[str], bin_index: int) -> dict[str, dict[str, Any]]:
    """Generates one bin of several enhancement tasks, one after the other, and writes each manifest(task, "generate", bin).

    Tasks whose engine profiles differ in name, lineage, adapter and sampling only share one engine. Finished rows of an
    earlier try with the same part fingerprint are kept, and no engine starts when nothing is missing. Returns the
    manifests by task. Raises EngineError when the engine cannot do it, SettingsError for an unknown task, IndexError for
    an unknown bin.
    """
    workers = [BinWorker(run, task, bin_index) for task in tasks]
    for worker in workers:
        run.clear_stop(worker.name, bin_index)
        check_profile(worker.profile)
    manifests: dict[str, dict[str, Any]] = {}
    for shared in _by_engine(workers):
        profile = shared[0].profile
        adapters = [w.profile.lora for w in shared if w.profile.lora]
        if len(shared) > 1:
            profile = profile.model_copy(update={"lora": None, "sampling_params": {}})
        with Session(profile, adapters=adapters) as session:
            for worker in shared:
                session.new_tally()
                worker.generate(session)
                manifests[worker.name] = _finish(worker, session)
    return manifests


def _by_engine(workers: Iterable[BinWorker]) -> list[list[BinWorker]]:
    """Workers that can share an engine, together, in order."""
    groups: dict[str, list[BinWorker]] = {}
    for worker in workers:
        own = {"name", "lineage", "lora", "sampling_params"}
        groups.setdefault(worker.profile.model_dump_json(exclude=own), []).append(worker)
    return list(groups.values())


def _finish(worker: BinWorker, session: Session) -> dict[str, Any]:
    """The bin's manifest, written before the engine goes: an engine that will not end must not cost the result."""
    store, path = worker.run.store, worker.run.manifest(worker.name, "generate", worker.bin)
    report = session.report()
    manifest = {
        "task": worker.name,
        "bin": worker.bin,
        "rows": worker.progress.total,
        "texts": dict(sorted(worker.counts.items())),
        "stopped": worker.stopped.reason if worker.stopped else "",
        **report,
        "device_s": device_seconds(store.read_json(path), report),
        "engine_profile": worker.profile.name,
        "promotion": worker.promotion.version if worker.promotion else None,
        "tuned_requests_per_s": worker.promotion.tuned_rate() if worker.promotion else None,
    }
    if session.tally.requests and manifest["requests_per_s"]:
        start, rate = manifest["engine_start_s"], manifest["requests_per_s"]
        measurements.record(worker.run.spec.settings, worker.profile.name, start_s=start, requests_per_s=rate)
    store.write_json(path, manifest)
    return manifest
