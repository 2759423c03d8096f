"""Escalation: refused answers go to a larger model, with the reasons in the prompt, and through the same validators.

It runs once per enhancement task, after every bin is validated and before the judge's sample, within a budget of texts and
cost. Its answers lie beside the task model's (`Run.escalated`); validating the bin again takes those that pass where the
task model's is refused, so that accounting, judge, gate and load know no other kind of copy. What fails again keeps the
merchant's own.
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
from include.generation.metrics import device_seconds
from include.generation.parts import GenerationParts, drop_invalid
from include.generation.preflight import check_profile
from include.generation.progress import Progress
from include.generation.prompts import neutralise, render_block
from include.generation.session import Session
from include.records import ESCALATED, Generation, Verdict, WorkItem
from include.runs import Run
from include.settings import EscalationSettings, SettingsError, digest, template_version
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
        # Shortening would make the prompt anew, without the reasons: a text that is too long for them stays refused.
        self.task = run.spec.settings.task(task).model_copy(update={"overlong": "quarantine"})
        self.profile = promotions.in_force(run.spec.settings, settings.engine, device_name())
        self.fingerprint = digest([part_fingerprint(self.profile, self.task), template_version(settings.template)])
        self.counts: Counter[str] = Counter()
        self.spent = 0.0  # in the currency of the prices, for every try of this process and each kept answer
        self.answered: dict[int, set[str]] = {}  # text ids by bin, those of an interrupted try included
        self.kept: dict[int, list[str]] = {}  # parts of earlier tries
        self.pending: dict[str, tuple[int, Pending]] = {}

    def recover(self) -> None:
        """Takes up what an earlier try left; bins whose verdicts hold answers of another model or prompt are validated anew."""
        store = self.run.store
        for bin_index in range(len(self.run.bins(self.name))):
            folder = self.run.escalated(self.name, bin_index)
            before, kept = store.list(folder), drop_invalid(store, folder, self.fingerprint)
            self.kept[bin_index], self.answered[bin_index] = kept, set()
            for row in store.read_rows(kept, Generation):
                self.answered[bin_index].add(row.text_id)
                self._pay(row.prompt_tokens, row.output_tokens)
            validated = store.exists(self.run.manifest(self.name, "validate", bin_index))
            if len(kept) < len(before) or (before and not validated):
                validate(self.run, self.name, bin_index)
        self.counts["resumed"] = sum(map(len, self.answered.values()))

    def ask(self, session: Session) -> None:
        """Asks for what the budget allows and no earlier try has. Raises EngineError; finished answers are kept."""
        pipeline, again = self.run.spec.settings.pipeline, deque[Request]()
        parts = {
            bin_index: GenerationParts(
                self.run.store,
                self.run.escalated(self.name, bin_index),
                self.fingerprint,
                kept,
                pipeline.rows_per_part,
                pipeline.seconds_per_part,
            )
            for bin_index, kept in self.kept.items()
        }
        left = deque(self._chosen(self.settings.max_texts - self.counts["resumed"]))
        progress = Progress(log, f"{self.name} escalation", len(left))
        try:
            while requests := self._affordable(left):
                for output in session.run(self._submitted(requests), again=again, progress=progress):
                    self._pay(output.prompt_tokens, output.output_tokens)
                    bin_index, pending = self.pending[output.id]
                    if (request := next_request(pending, output, self.task)) is not None:
                        again.append(request)
                        continue
                    del self.pending[output.id]
                    self.counts[output.error or "answered"] += 1
                    if not output.error:  # without an answer the first verdict stands
                        self.answered[bin_index].add(output.id)
                        parts[bin_index].write(0, generation_of(pending, output))
                    progress.add(output.output_tokens)
        finally:
            for writer in parts.values():
                writer.flush()

    def _pay(self, prompt_tokens: int, output_tokens: int) -> None:
        prices = self.settings
        self.spent += (prompt_tokens * prices.input_price + output_tokens * prices.output_price) / 1e6

    def _refused(self) -> Iterator[_Refused]:
        """Each refused text once: equal texts lie in one bin."""
        for bin_index, answered in self.answered.items():
            if not self.run.store.exists(self.run.manifest(self.name, "validate", bin_index)):
                continue
            seen = set(answered)
            for verdict in self.run.store.read_rows(self.run.verdicts(self.name, bin_index), Verdict):
                if not verdict.ok and verdict.text_id not in seen:
                    seen.add(verdict.text_id)
                    yield _Refused(bin_index, verdict)

    def _chosen(self, most: int) -> list[_Refused]:
        """An even draw of at most `most` refused texts, the same on every try; memory holds no more than those."""
        found = list(heapq.nsmallest(max(0, most) + 1, self._refused(), key=lambda r: _draw_key(r.verdict.text_id)))
        self.counts["over_budget"] = int(len(found) > most)
        return found[: max(0, most)]

    def _affordable(self, left: deque[_Refused]) -> list[tuple[int, Pending]]:
        """The next texts, as many as `max_cost` pays for at their dearest: what they cost less pays for the round after."""
        found, reserved, limit = list[tuple[int, Pending]](), 0.0, self.settings.max_cost
        while left:
            pending = self._pending(left[0].verdict)
            if limit is not None:
                reserved += self._dearest(pending.request)
                if self.spent + reserved > limit:
                    break
            found.append((left.popleft().bin, pending))
        if left and not found:
            log.warning("%s: the budget of %s is used up; %d texts are left", self.name, limit, len(left))
            self.counts["over_budget"] = 1
        return found

    def _dearest(self, request: Request) -> float:
        """An upper bound of a request's cost over all tries: a token is a character at least, and each try doubles the answer."""
        characters = sum(len(str(message["content"])) for message in request.messages)
        tries, written = self.task.attempts, int(request.sampling_params.get("max_tokens", 16))
        tokens = tries * characters * self.settings.input_price, (2**tries - 1) * written * self.settings.output_price
        return sum(tokens) / 1e6

    def _pending(self, verdict: Verdict) -> Pending:
        item = WorkItem(**{name: getattr(verdict, name) for name in _WORK})
        first = first_request(item, self.task, self.profile)
        reasons = ", ".join(reason.replace("_", " ") for reason in verdict.reasons)
        refusal = render_block(self.settings.template, "refusal", reasons=reasons)
        said = [
            {"role": "assistant", "content": neutralise(verdict.output) or "-"},
            {"role": "user", "content": refusal},
        ]
        return Pending(item, 0, replace(first, messages=[*first.messages, *said]))

    def _submitted(self, requests: list[tuple[int, Pending]]) -> Iterator[Request]:
        for bin_index, pending in requests:
            self.pending[pending.request.id] = (bin_index, pending)
            self.counts["asked"] += 1
            yield pending.request

    def validate_again(self) -> None:
        """Validates each bin that has answers, which puts the good ones in the refused ones' place."""
        for bin_index, texts in self.answered.items():
            if texts:
                validate(self.run, self.name, bin_index)


def _listings(run: Run, task: str) -> dict[str, int]:
    """Listings that a larger model's text was accepted for, and all that the task model's was refused for."""
    found = [run.store.read_json(run.manifest(task, "validate", b)) or {} for b in range(len(run.bins(task)))]
    accepted = sum(int(manifest.get("flags", {}).get(ESCALATED, 0)) for manifest in found)
    refused = sum(int(manifest.get("rejected", 0)) for manifest in found)
    return {"accepted_listings": accepted, "refused_listings": accepted + refused}


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
    earlier = run.store.read_json(run.manifest(task, STAGE))
    manifest: dict[str, Any] = {"status": "none", "engine_profile": settings.engine}
    if task not in run.spec.enhancement_tasks:
        return manifest
    work = Escalation(run, task, settings)
    work.recover()
    if run.read_stop(task) is not None:
        manifest["status"] = "stopped"
    else:
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
        work.validate_again()
        manifest |= {
            **report,
            "status": "failed" if error else "done" if any(work.answered.values()) else "none",
            "error": error,
            "texts": dict(sorted(work.counts.items())),
            "cost": round(work.spent, 6),
        }
    manifest |= _listings(run, task) | {"device_s": device_seconds(earlier, manifest)}
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
