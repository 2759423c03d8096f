"""What a run's report tells in numbers, of one enhancement task: from manifests and parts, which are read a batch at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from include.judging.accounting import progress
from include.judging.costs import ComparisonSettings
from include.judging.stage import finished_bins
from include.reporting.refused import parts
from include.runs import Run

Row = dict[str, Any]
Refusals = Counter[tuple[str, str, str]]  # listings by merchant, reason and stage
MERCHANTS = 20  # shown by name, the largest
EXAMPLES = 5  # of each kind; a page to read, not a dump: the partitions hold every row
_KEY = ("merchant_id", "reason", "stage")


def refusals(run: Run, task: str) -> Refusals:
    """Counts the quarantined listings of every stage; memory grows with merchants and reasons, not with listings."""
    found: Refusals = Counter()
    for batch in run.store.read_batches(parts(run.store, task), _KEY):
        counted = pa.Table.from_batches([batch]).group_by(list(_KEY)).aggregate([([], "count_all")])
        for row in counted.to_pylist():
            found[row["merchant_id"], row["reason"], row["stage"]] += row["count_all"]
    return found


def by_reason(found: Refusals) -> dict[str, dict[str, int]]:
    """Listings of each reason by the stage that refused them, the commonest reason first."""
    rows: dict[str, Counter[str]] = {}
    for (_, reason, stage), listings in found.items():
        rows.setdefault(reason, Counter())[stage] += listings
    return {name: dict(row) for name, row in sorted(rows.items(), key=lambda item: (-item[1].total(), item[0]))}


def by_merchant(found: Refusals) -> dict[str, dict[str, int]]:
    """Listings of the merchants with most refusals by reason, and of all others together."""
    totals: Counter[str] = Counter()
    for (merchant, _, _), listings in found.items():
        totals[merchant] += listings
    names = [name for name, _ in totals.most_common(MERCHANTS)]
    shown, others = set(names), f"{len(totals) - MERCHANTS} others"
    rows: dict[str, Counter[str]] = {
        name: Counter() for name in (*names, *([others] if len(totals) > MERCHANTS else []))
    }
    for (merchant, reason, _), listings in found.items():
        rows[merchant if merchant in shown else others][reason] += listings
    return {name: dict(row.most_common()) for name, row in rows.items()}


def funnel(run: Run, task: str, summary: Row) -> list[Row]:
    """Steps from extracted to loaded: listings that came through, and why others did not; empty before extraction.

    A step that was not reached has None.
    """
    if not run.store.exists(run.plan(task)):
        return []
    state = progress(run, task)
    counts, withheld = state.counts, Counter[str](summary["quarantined"])
    withheld.subtract(counts.quarantined)
    validated = bool(finished_bins(run, task)) or not state.planned
    closed = summary["gate"]["status"] is not None
    aside = {name: getattr(counts, name) for name in ("unchanged", "holdout", "deferred")}
    refused = counts.extracted - state.planned - sum(aside.values())
    steps: list[tuple[str, int, bool, Mapping[str, int]]] = [
        ("extracted", counts.extracted, True, {}),
        ("to be written", state.planned, True, aside | {"refused by the extraction": refused}),
        ("answered", state.answered, validated, {"errored": counts.errored}),
        ("let pass by the validators", counts.accepted, validated, {"refused": state.answered - counts.accepted}),
        ("accepted", summary["accepted"], closed, withheld),
        ("loaded", summary["loaded"], summary["outcome"] in ("published", "not_reconciled"),
         {"stale": summary["stale"], "refused by the database": summary["accepted"] - summary["loaded"] - summary["stale"]}),
    ]  # fmt: skip
    return [
        {
            "step": step,
            "listings": rows if reached else None,
            "left": {k: v for k, v in left.items() if reached and v > 0},
        }
        for step, rows, reached, left in steps
    ]


def throughput(manifests: Iterable[Row]) -> Row:
    """The engines' rate against the rate at which tuning measured their promoted profiles, and their share of the roofline; None: not known.

    Seconds that the work would have taken at that rate, or at the roof, over the seconds that it took.
    """
    busy = [m for m in manifests if m.get("busy_s") and m.get("requests")]

    def ratio(seconds: Sequence[tuple[float, float]]) -> float | None:
        return sum(best for best, _ in seconds) / sum(taken for _, taken in seconds) if seconds else None

    under = [m for m in busy if m.get("tuned_requests_per_s")]
    expected = sum(m["requests"] / m["tuned_requests_per_s"] for m in under)
    return {
        "tuned_rate": sum(m["requests"] for m in under) / expected if under else None,
        "rate": sum(m["requests"] for m in under) / sum(m["busy_s"] for m in under) if under else None,
        "share": ratio([(m["requests"] / m["tuned_requests_per_s"], m["busy_s"]) for m in under]),
        "promotions": sorted({str(m["promotion"]) for m in under}),
        "roofline_share": ratio(
            [(m["roofline_share"] * m["busy_s"], m["busy_s"]) for m in busy if m.get("roofline_share") is not None]
        ),
    }


def costs(run: Run, task: str, bins: Sequence[Row | None], accepted: int, prices: ComparisonSettings) -> Row:
    """What the stages with an engine took, and the price of an accepted listing; None where a price is unknown.

    `bins` are the bins' generate manifests. A stage costs its device seconds, or what its manifest says of an endpoint's
    price; the bins of a hosted route cost the hosted price of their requests. `without` names stages of unknown cost,
    which the total leaves out.
    """
    settings, gpu = run.spec.settings, prices.gpu_hour_price or None
    million = prices.hosted_price_per_million.get(task) or None
    own_bins = set(run.own_bins(task)) if bins else set()
    enhancement = settings.task(task)
    judge, escalated = (run.store.read_json(run.manifest(task, stage)) for stage in ("judge", "escalate"))
    stages = [
        ("generate", enhancement.engine, [m for b, m in enumerate(bins) if m and b in own_bins]),
        ("judge", settings.judge.engine, [judge] if judge else []),
    ]
    if routed := [m for b, m in enumerate(bins) if m and b not in own_bins]:
        answered = sum(m.get("requests") or 0 for m in routed)
        hosted = {"cost": million / 1e6 * answered if million else None}
        stages.append(("generate, hosted", enhancement.routes[-1], [hosted]))
    if enhancement.escalation and escalated:
        stages.append(("escalate", enhancement.escalation.engine, [escalated]))
    rows: list[Row] = []
    for stage, engine, found in stages:
        if not found:
            continue
        own = settings.engines[engine].kind == "vllm"
        known = own and all(m.get("device_s") is not None for m in found)
        seconds = sum(m["device_s"] for m in found) if known else None
        price = found[0].get("cost") or None
        if own:
            price = seconds / 3600 * gpu if seconds is not None and gpu else None
        session = found[0].get("session") or found[0]
        device = (session.get("engine") or {}).get("device", "-") if own else "endpoint"
        rows.append({"stage": stage, "engine": engine, "device": device, "seconds": seconds, "price": price})
    total = sum(row["price"] or 0.0 for row in rows) if not rows or rows[0]["price"] is not None else None
    timed = [row["seconds"] for row in rows if row["seconds"] is not None]
    return {
        "stages": rows,
        "seconds": sum(timed) if timed else None,
        "total": total,
        "without": [row["stage"] for row in rows if row["price"] is None],
        "per_accepted": total / accepted if total is not None and accepted else None,
        "hosted": million / 1e6 if million else None,
    }


def examples(run: Run, task: str, gate: Row, refused: Refusals) -> dict[str, list[Row]]:
    """Before and after of a few listings: accepted, rejected with the validators' reasons, judged bad with the claims.

    Rejected ones are of the commonest reasons, judged ones the gate's worst. Stops reading when it has them all.
    """
    field = run.spec.settings.task(task).output_field
    claims = {row["text_id"]: row["detail"] for row in gate.get("examples", ()) if row.get("text_id")}
    failed = pa.array(sorted({*gate.get("failed_text_ids", ()), *claims}), pa.string())
    refusing = {reason: stages["validate"] for reason, stages in by_reason(refused).items() if "validate" in stages}
    reasons = dict(list(refusing.items())[:EXAMPLES])
    room = {("accepted", ""): EXAMPLES} | {("judged bad", text_id): 1 for text_id in claims}
    room |= {("rejected", reason): min(rows, -(-EXAMPLES // len(reasons))) for reason, rows in reasons.items()}
    found: dict[str, list[Row]] = {"accepted": [], "rejected": [], "judged bad": []}
    columns = ["merchant_id", "listing_id", "locale", field, "output", "ok", "reasons", "text_id"]
    bins = (part for b in finished_bins(run, task) for part in run.store.list(run.verdicts(task, b)))
    for batch in run.store.read_batches(bins, columns):
        first = pa.array([reasons[0] if reasons else "" for reasons in batch["reasons"].to_pylist()])
        for (kind, value), left in list(room.items()):
            if kind == "rejected":
                wanted = pc.equal(first, value)
            elif kind == "judged bad":
                wanted = pc.and_(batch["ok"], pc.equal(batch["text_id"], value))
            else:
                wanted = pc.and_(batch["ok"], pc.invert(pc.is_in(batch["text_id"], failed)))
            rows = batch.take(pc.indices_nonzero(wanted)[:left]).to_pylist()
            room[kind, value] -= len(rows)
            for row in rows:
                why = claims[value] if kind == "judged bad" else ", ".join(row["reasons"])
                shown = {"id": f"{row['merchant_id']}/{row['listing_id']}", "locale": row["locale"], "why": why}
                found[kind].append(shown | {"before": row[field], "after": row["output"]})
        room = {key: left for key, left in room.items() if left}
        if not room:
            break
    return found
