"""What a verdict withholds: every listing that shares a failed text, with the quoted claims, and the worst to look at."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from include.judging.stage import accepted, finished_bins
from include.partitions import PartWriter
from include.records import JudgeScore, JudgeVerdict, QuarantinedRow, Verdict
from include.runs import Run

JUDGE_FAILED, JUDGE_NOT_EVALUABLE = "judge_failed", "judge_not_evaluable"
EXAMPLES = 5


def withheld_texts(scores: Sequence[JudgeScore], passes: Callable[[JudgeScore], bool]) -> dict[str, tuple[str, str]]:
    """Texts that may not go out, with reason and quoted claims; judge errors stay, like what was never sampled."""
    found: dict[str, tuple[str, str]] = {}
    for score in scores:
        if score.verdict is JudgeVerdict.NOT_EVALUABLE:
            found[score.text_id] = (JUDGE_NOT_EVALUABLE, "nothing to check the copy against, or nothing in it to check")
        elif score.verdict is not JudgeVerdict.ERROR and not passes(score):
            claims = [
                f"{kind}: " + "; ".join(f"“{claim}”" for claim in getattr(score, kind))
                for kind in ("unsupported", "contradictory")
                if getattr(score, kind)
            ]
            low = "" if claims else f"score {score.score:.2f} is below the calibrated threshold"
            found[score.text_id] = (JUDGE_FAILED, " | ".join(claims) or low)
    return found


def worst_first(scores: Sequence[JudgeScore], failed: Mapping[str, object]) -> list[str]:
    """The failed texts: the lowest score first, then those that most listings share."""
    keys: dict[str, tuple[float, float]] = {}
    for row in scores:
        if row.text_id in failed:
            score, weight = keys.get(row.text_id, (1.0, 0.0))
            keys[row.text_id] = (min(score, 1.0 if row.score is None else row.score), weight - row.weight)
    return sorted(keys, key=lambda text_id: (keys[text_id], text_id))


@dataclass(slots=True)
class Withheld:
    """Listings that a verdict of the judge keeps from being published: how many by reason, and some to look at."""

    by_reason: dict[str, int] = field(default_factory=dict)
    examples: list[dict[str, str]] = field(default_factory=list)


def withhold(run: Run, task: str, reasons: Mapping[str, tuple[str, str]], worst: Sequence[str]) -> Withheld:
    """Writes a QuarantinedRow for every accepted listing whose text is in `reasons` (text_id to reason and detail).

    `worst` orders the texts from which the examples come. Streams the verdicts; rewrites its parts on a second call.
    """
    found = Withheld()
    folder = run.quarantine(task, "judge")
    run.store.remove(folder)
    if not reasons:
        return found
    wanted = worst[:EXAMPLES]
    shown: dict[str, dict[str, str]] = {}
    with PartWriter(run.store, folder, QuarantinedRow) as writer:
        row: Verdict
        for row in accepted(run, task):
            if row.text_id not in reasons:
                continue
            reason, detail = reasons[row.text_id]
            withheld = QuarantinedRow(
                merchant_id=row.merchant_id,
                listing_id=row.listing_id,
                staleness_key=row.staleness_key,
                stage="judge",
                reason=reason,
                detail=detail,
                output=row.output,
            )
            writer.write(withheld)
            found.by_reason[reason] = found.by_reason.get(reason, 0) + 1
            if row.text_id in wanted:
                shown.setdefault(row.text_id, _example(withheld, row.text_id))
    found.examples = [shown[text_id] for text_id in wanted if text_id in shown]
    return found


def add_quarantined(run: Run, task: str, examples: list[dict[str, str]]) -> None:
    """Fills up the examples with the first listings that the validators withheld."""
    for bin_index in finished_bins(run, task):
        for row in run.store.read_rows(run.quarantine(task, "validate", bin_index), QuarantinedRow):
            if len(examples) >= EXAMPLES:
                return
            examples.append(_example(row))


def _example(row: QuarantinedRow, text_id: str = "") -> dict[str, str]:
    shown = ("merchant_id", "listing_id", "reason", "detail", "output")
    return {"text_id": text_id} | {name: value for name, value in asdict(row).items() if name in shown}
