"""The records that flow between stages: one frozen dataclass per kind of row.

Every field is a plain value (text, number, flag, UTC datetime or a tuple of text), so that a record is one Parquet row;
``include.partitions`` derives the Arrow schema from the annotations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import StrEnum


class TerminalState(StrEnum):
    """Where one (listing, enhancement task) ends in one run. Exactly one state each; their sum is `extracted`."""

    UNCHANGED = "unchanged"  # current copy, or an earlier quarantine, stands under the same staleness key
    HOLDOUT = "holdout"  # keeps the merchant's copy, to measure lift
    DEFERRED = "deferred"  # row limit, budget, opted out or pinned by a person
    QUARANTINED = "quarantined"  # cannot be published, with a reason; not tried again until its staleness key changes
    ERRORED = "errored"  # no answer for reasons that are ours; tried again in the next run
    ACCEPTED = "accepted"  # goes to the load


class JudgeVerdict(StrEnum):
    """What the judge said of one text. Only PASS and FAIL enter the pass rate."""

    PASS = "pass"
    FAIL = "fail"
    ERROR = "judge_error"
    NOT_EVALUABLE = "not_evaluable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """A merchant's product listing after cleaning. Absent text is the empty string, never None."""

    merchant_id: str
    listing_id: str
    title: str
    description: str
    brand: str = ""
    category: str = ""
    locale: str = "en-US"
    attributes: str = "{}"  # JSON object of text to text
    source_updated_at: datetime  # timezone-aware, UTC


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkItem(Listing):
    """A listing that one enhancement task must rewrite, with the keys that later stages join on.

    `text_id` names the rendered prompt within its locale: listings that share it share one generation.
    """

    text_id: str
    content_hash: str
    staleness_key: str
    source_hash: str = ""  # of the row as it was delivered; empty for one that must be cleaned to be known


@dataclass(frozen=True, slots=True)
class SameCopy:
    """A listing whose copy is current although its row was not recognised: with its hash the next read knows the row."""

    merchant_id: str
    listing_id: str
    staleness_key: str
    source_hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """The engine's answer to one prompt. `error` is empty, or the reason why there is no usable answer."""

    text_id: str
    text: str
    finish_reason: str  # vLLM's: "stop", "length", "abort"; empty when nothing ran
    prompt_tokens: int = 0
    output_tokens: int = 0
    attempts: int = 1
    error: str = ""
    quarantine: bool = (
        False  # True: the row itself is at fault (input_too_long …); False with `error`: errored, retried
    )


ESCALATED = "escalated"  # a verdict's flag: the accepted text is a larger model's


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict(WorkItem):
    """The deterministic validators' answer for one listing. `ok` is exactly "no reasons"."""

    output: str
    finish_reason: str
    ok: bool
    reasons: tuple[str, ...] = ()
    repairs: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()  # noted, never rejecting: suspicious_source, escalated


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledText:
    """A generated text that the judge shall read, with the listing that it must agree with."""

    text_id: str
    stratum: str
    weight: float
    listings: int
    title: str
    description: str
    brand: str
    category: str
    locale: str
    attributes: str
    output: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeScore:
    """The judge's answer for one sampled text in one stratum.

    `listings` were drawn that share the text; `weight` is the number of listings of the run that they stand for.
    """

    text_id: str
    stratum: str
    weight: float
    verdict: JudgeVerdict
    listings: int = 1
    score: float | None = None  # probability of "pass" where the engine gives token probabilities
    unsupported: tuple[str, ...] = ()
    contradictory: tuple[str, ...] = ()
    omitted: tuple[str, ...] = ()
    raw: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantinedRow:
    """A listing that will not be published, with enough to find out why."""

    merchant_id: str
    listing_id: str
    staleness_key: str
    stage: str
    reason: str
    detail: str = ""
    output: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedCopy:
    """A listing whose copy ends without a new one: withdrawn by its merchant, or moved into the holdout arm."""

    merchant_id: str
    listing_id: str
    locale: str
    source_updated_at: datetime
    reason: str  # "retired" or "holdout"


class AccountingError(RuntimeError):
    """The terminal states of a run do not add up to what was extracted; nothing may be published."""


@dataclass(slots=True)
class RunCounts:
    """Listings of one run and enhancement task by terminal state. Counters only, so it merges over bins."""

    extracted: int = 0
    unchanged: int = 0
    holdout: int = 0
    deferred: int = 0
    quarantined: dict[str, int] = field(default_factory=dict)  # by reason
    errored: int = 0
    accepted: int = 0

    @property
    def quarantined_total(self) -> int:
        return sum(self.quarantined.values())

    def quarantine(self, reason: str, rows: int = 1) -> None:
        self.quarantined[reason] = self.quarantined.get(reason, 0) + rows

    def add(self, other: RunCounts) -> None:
        """Adds another part's counts to these."""
        for name in ("extracted", "unchanged", "holdout", "deferred", "errored", "accepted"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for reason, rows in other.quarantined.items():
            self.quarantine(reason, rows)

    def check_closed(self) -> None:
        """Raises AccountingError unless extracted equals the sum of the terminal states."""
        ended = self.unchanged + self.holdout + self.deferred + self.quarantined_total + self.errored + self.accepted
        if ended != self.extracted:
            raise AccountingError(
                f"accounting does not close: extracted {self.extracted} listings but {ended} reached a terminal state "
                f"({self.to_dict()}); nothing was published. Clear the run from its extract task to count again."
            )

    def to_dict(self) -> dict[str, object]:
        return asdict(self) | {"quarantined": dict(sorted(self.quarantined.items()))}

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> RunCounts:
        quarantined = values.get("quarantined", {})
        assert isinstance(quarantined, Mapping)
        numbers = {
            name: int(str(values.get(name, 0)))
            for name in ("extracted", "unchanged", "holdout", "deferred", "errored", "accepted")
        }
        return cls(**numbers, quarantined={str(k): int(v) for k, v in quarantined.items()})
