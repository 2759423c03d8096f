"""Escalation: refused answers go to a larger model, with the reasons in the prompt, and through the same validators.

It runs once per enhancement task, after every bin is validated and before the judge's sample, within a budget of texts and
cost. Its answers lie beside the task model's (`Run.escalated`); validating the bin again puts them in the refused ones'
place, so that accounting, judge, gate and load know no other kind of copy. What fails again keeps the merchant's own.
"""

from __future__ import annotations

import argparse
import hashlib
import heapq
import logging
import sys
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from include import promotions
from include.generation.answers import Pending, first_request, generation_of, next_request
from include.generation.child import run_child
from include.generation.engine import EngineError, Request
from include.generation.fingerprint import part_fingerprint
from include.generation.leases import device_name
from include.generation.parts import GenerationParts, drop_invalid
from include.generation.preflight import check_profile
from include.generation.progress import Progress
from include.generation.prompts import neutralise, render_block
from include.generation.session import Session
from include.records import Generation, Verdict, WorkItem
from include.runs import Run
from include.settings import EscalationSettings, SettingsError
from include.validation.stage import validate

log = logging.getLogger(__name__)

STAGE = "escalate"
_WORK = tuple(WorkItem.__dataclass_fields__)


class _Refused(NamedTuple):
    bin: int
    verdict: Verdict


class Escalation:
    """One enhancement task's refused texts at the larger model; see `escalate`."""

    def __init__(self, run: Run, task: str, settings: EscalationSettings) -> None:
        self.run, self.name, self.settings = run, task, settings
        self.task = run.spec.settings.task(task)
        self.profile = promotions.in_force(run.spec.settings, settings.engine, device_name())
        self.counts: Counter[str] = Counter()
        self.spent = self.dearest = 0.0  # in the currency of the prices: of all answers, and of the dearest one
        self.answered: dict[int, set[str]] = {}  # text ids by bin, those of an interrupted try included
        self.pending: dict[str, tuple[int, Pending]] = {}

    def ask(self, session: Session) -> None:
        """Asks for what the budget allows and no earlier try has. Raises EngineError; finished answers are kept."""
        pipeline, again = self.run.spec.settings.pipeline, deque[Request]()
        fingerprint = part_fingerprint(self.profile, self.task)
        parts: dict[int, GenerationParts] = {}
        for bin_index in range(len(self.run.bins(self.name))):
            folder = self.run.escalated(self.name, bin_index)
            kept = drop_invalid(self.run.store, folder, fingerprint)
            self.answered[bin_index] = set()
            for row in self.run.store.read_rows(kept, Generation):
                self.answered[bin_index].add(row.text_id)
                self._pay(row)
            parts[bin_index] = GenerationParts(
                self.run.store, folder, fingerprint, kept, pipeline.rows_per_part, pipeline.seconds_per_part
            )
        self.counts["resumed"] = sum(map(len, self.answered.values()))
        chosen = self._chosen(self.settings.max_texts - self.counts["resumed"])
        progress = Progress(log, f"{self.name} escalation", len(chosen))
        try:
            for output in session.run(self._requests(chosen, progress), again=again):
                bin_index, pending = self.pending[output.id]
                if (request := next_request(pending, output, self.task)) is not None:
                    again.append(request)
                    continue
                del self.pending[output.id]
                row = generation_of(pending, output)
                self.counts[output.error or "answered"] += 1
                self._pay(row)
                if not output.error:  # without an answer the first verdict stands
                    self.answered[bin_index].add(output.id)
                    parts[bin_index].write(0, row)
                progress.add(output.output_tokens)
        finally:
            for writer in parts.values():
                writer.flush()

    def _pay(self, row: Generation) -> None:
        prices = self.settings
        cost = (row.prompt_tokens * prices.input_price + row.output_tokens * prices.output_price) / 1e6
        self.spent, self.dearest = self.spent + cost, max(self.dearest, cost)

    def _refused(self) -> Iterator[_Refused]:
        """Each refused text once: equal texts lie in one bin."""
        for bin_index, answered in self.answered.items():
            if not self.run.store.exists(self.run.manifest(self.name, "validate", bin_index)):
                continue
            seen = set(answered)
            for verdict in self.run.store.read_rows(self.run.verdicts(self.name, bin_index), Verdict):
                if not verdict.ok:
                    self.counts["refused_listings"] += 1
                    if verdict.text_id not in seen:
                        seen.add(verdict.text_id)
                        yield _Refused(bin_index, verdict)

    def _chosen(self, most: int) -> list[_Refused]:
        """An even draw of at most `most` refused texts, the same on every try; memory holds no more than those."""
        found = list(heapq.nsmallest(max(0, most) + 1, self._refused(), key=lambda r: _draw_key(r.verdict.text_id)))
        self.counts["over_budget"] += len(found) > most
        return found[: max(0, most)]

    def _requests(self, chosen: list[_Refused], progress: Progress) -> Iterator[Request]:
        limit = self.settings.max_cost
        for place, (bin_index, verdict) in enumerate(chosen):
            if limit is not None and self.spent + self.dearest * (len(self.pending) + 1) > limit:
                log.warning("%s: the budget of %s is used up; %d texts are left", self.name, limit, len(chosen) - place)
                self.counts["over_budget"] += 1
                return
            item = WorkItem(**{name: getattr(verdict, name) for name in _WORK})
            first = first_request(item, self.task, self.profile)
            reasons = ", ".join(reason.replace("_", " ") for reason in verdict.reasons)
            refusal = render_block(self.settings.template, "refusal", reasons=reasons)
            said = [
                {"role": "assistant", "content": neutralise(verdict.output) or "-"},
                {"role": "user", "content": refusal},
            ]
            request = replace(first, messages=[*first.messages, *said])
            if not self.pending and not progress.done:
                progress.start()
            self.pending[item.text_id] = (bin_index, Pending(item, 0, request))
            self.counts["asked"] += 1
            yield request

    def validate_again(self) -> int:
        """Validates each bin that has answers; returns the listings that are accepted by them."""
        accepted = 0
        for bin_index, texts in self.answered.items():
            if not texts:
                continue
            validate(self.run, self.name, bin_index)
            rows = self.run.store.read_rows(self.run.verdicts(self.name, bin_index), Verdict)
            accepted += sum(row.ok and row.text_id in texts for row in rows)
        return accepted


def _draw_key(text_id: str) -> bytes:
    return hashlib.blake2b(b"escalation" + text_id.encode(), digest_size=8).digest()


def escalate(run: Run, task: str) -> dict[str, Any]:
    """Asks the larger model about refused texts, validates their bins again, and writes manifest(task, "escalate").

    An engine or endpoint that fails costs the gain, not the night: what was answered counts, and `status` is "failed"
    with the error; a device that is leased is waited for. "stopped": a circuit breaker told the task to stop. "none": nothing was refused, or all was asked.

    Raises SettingsError for a task without `escalation`, EngineError (`gpu_busy`) while the device is leased.
    """
    settings = run.spec.settings.task(task).escalation
    if settings is None:
        raise SettingsError(f"tasks/{task}.yaml has no `escalation`: name an engine profile and a budget there")
    manifest: dict[str, Any] = {"status": "none", "engine_profile": settings.engine, "accepted_listings": 0}
    if task not in run.spec.enhancement_tasks:
        return manifest
    if run.read_stop(task) is not None:
        manifest["status"] = "stopped"
    else:
        work = Escalation(run, task, settings)
        error = ""
        with Session(work.profile) as session:
            try:
                check_profile(work.profile)
                work.ask(session)
            except EngineError as failed:
                if failed.kind == "gpu_busy":  # there is a device, and it will be free
                    raise
                error = f"{failed.kind}: {failed}"
                log.error("%s: the larger model failed, what it answered counts: %s", task, error)
            report = session.report()
        manifest |= {
            **report,
            "status": "failed" if error else "done" if any(work.answered.values()) else "none",
            "error": error,
            "texts": dict(sorted(work.counts.items())),
            "accepted_listings": work.validate_again(),
            "cost": round(work.spent, 6),
        }
    run.store.write_json(run.manifest(task, STAGE), manifest)
    log.info("%s escalation: %s", task, {name: manifest.get(name) for name in ("status", "texts", "accepted_listings")})
    return manifest


def main(arguments: list[str] | None = None) -> int:
    """`python -m include.escalation --run-dir DIR --task TASK`. Status 0: done; 75: a retry may help; 78: it will not."""
    parser = argparse.ArgumentParser(prog="python -m include.escalation", description=__doc__)
    parser.add_argument("--run-dir", required=True, help="folder or URL of the run")
    parser.add_argument("--task", required=True, help="enhancement task, such as title")
    options = parser.parse_args(arguments)
    run_child(lambda: escalate(Run.open(options.run_dir), options.task))


if __name__ == "__main__":
    sys.exit(main())
