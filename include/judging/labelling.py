"""Collecting human labels: which judged texts people should look at, and what becomes of their answers.

Edge cases are mined: texts near the threshold (*uncertain*) and texts that every validator accepted but the judge did not
(*disputed*), with some of the *rest* so that nothing is left out of sight. Each offer carries the number of listings that
it stands for, so that the labels can be weighted back to the production mix.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import fsspec

from include.judging.agreement import Comparison, kappa, table
from include.judging.calibrate import production_cell
from include.judging.calibration import current_calibration, judging_state
from include.judging.estimation import EVALUABLE
from include.judging.sampling import draw_key
from include.partitions import Store, plain_json
from include.records import JudgeScore, JudgeVerdict, SampledText
from include.runs import Run
from include.settings import Settings, digest, resolve_path

UNCERTAIN_SHARE = 0.25
_CLASSES = ("uncertain", "disputed", "rest")


def labels_store(settings: Settings) -> Store:
    """Where offers and labels lie: one folder a batch under the state URL."""
    return judging_state(settings).child("labels")


@dataclass(frozen=True, slots=True)
class _Judged:
    text: SampledText
    verdict: JudgeVerdict
    score: float | None
    weight: float


def _judged(run: Run, task: str) -> list[_Judged]:
    """The evaluable texts of a run's judged sample, each once, with the listings it stands for."""
    weights: defaultdict[str, float] = defaultdict(float)
    found: dict[str, JudgeScore] = {}
    for row in run.store.read_rows(run.judged(task), JudgeScore):
        if row.verdict in EVALUABLE:
            found[row.text_id] = row
            weights[row.text_id] += row.weight
    texts = {row.text_id: row for row in run.store.read_rows(run.sampled(task), SampledText)}
    return [_Judged(texts[key], row.verdict, row.score, weights[key]) for key, row in found.items() if key in texts]


def classify(rows: Sequence[_Judged], threshold: float) -> dict[str, list[_Judged]]:
    """Rows by class; a quarter of those with a score, the nearest to the threshold, is uncertain."""
    scored = [row for row in rows if row.score is not None]
    nearest = sorted(scored, key=lambda row: (abs((row.score or 0.0) - threshold), row.text.text_id))
    uncertain = {row.text.text_id for row in nearest[: round(UNCERTAIN_SHARE * len(scored))]}
    found: dict[str, list[_Judged]] = {name: [] for name in _CLASSES}
    for row in rows:
        failed = row.verdict is JudgeVerdict.FAIL
        name = "uncertain" if row.text.text_id in uncertain else "disputed" if failed else "rest"
        found[name].append(row)
    return found


def mine(run: Run, task: str, count: int, known: Iterable[str] = ()) -> list[dict[str, Any]]:
    """Offers for labelling from one run's judged sample: about a third from each class, drawn by a seeded hash.

    `known` are ids of pairs that already have labels; they are not offered again. Each offer is a row of a labels file
    without its label; `weight` is the listings it stands for, relative to the mean offer.
    """
    calibration = current_calibration(run.spec.settings, task)
    kind = run.spec.settings.task(task).output_field
    classes = classify(_judged(run, task), calibration.threshold if calibration else 0.5)
    seen, offers = set(known), []
    remaining = count
    for place, (name, rows) in enumerate(sorted(classes.items(), key=lambda item: len(item[1]))):
        drawn = sorted(rows, key=lambda row: draw_key("labels", row.text.text_id))
        fresh = [row for row in drawn if _pair_id(row.text) not in seen]
        chosen = fresh[: remaining // (len(classes) - place)]
        remaining -= len(chosen)
        total = sum(row.weight for row in rows)
        weight = sum(row.weight for row in chosen)
        offers += [_offer(row, name, kind, row.weight * total / weight) for row in chosen]
    mean = sum(offer["weight"] for offer in offers) / len(offers) if offers else 1.0
    return [offer | {"weight": offer["weight"] / mean} for offer in offers]


def _pair_id(text: SampledText) -> str:
    return digest([text.text_id, text.output])


def _offer(row: _Judged, name: str, kind: str, weight: float) -> dict[str, Any]:
    text = row.text
    fields = ("title", "description", "brand", "category", "attributes")
    return {
        "id": _pair_id(text),
        "document": text.text_id,
        "source": {field: getattr(text, field) for field in fields if getattr(text, field)},
        "output": text.output,
        "locale": text.locale,
        "kind": kind,
        "origin": f"mined:{name}",
        "weight": weight,
    }


def production_mix(run: Run, task: str) -> dict[str, float]:
    """Share of the run's listings in each cell of locale and judge verdict."""
    rows = _judged(run, task)
    total = sum(row.weight for row in rows)
    mix: defaultdict[str, float] = defaultdict(float)
    for row in rows:
        mix[production_cell(row.text.locale, row.verdict)] += row.weight / total
    return dict(mix)


def question(offer: Mapping[str, Any]) -> tuple[str, str]:
    """Subject and Markdown body of one question to a person. It does not tell what the judge said.

    Merchant text stands in indented blocks, where Markdown and HTML have no effect.
    """
    source = "\n".join(f"{name}: {value}" for name, value in offer["source"].items())
    body = (
        "Does the copy say only what the listing says? *pass*: every claim is supported; *fail*: at least one claim is "
        "invented or contradicts the listing.\n\n"
        f"**Listing** ({offer['locale'] or 'locale unknown'})\n\n{_block(source)}\n\n"
        f"**Copy** ({offer['kind']})\n\n{_block(offer['output'])}\n"
    )
    return f"Is this {offer['kind']} true to its listing? ({offer['id'][:8]})", body


def _block(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines() or [""])


def collect(
    offers: Sequence[Mapping[str, Any]], first: Mapping[str, str], second: Mapping[str, str]
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Labels file rows and a report from two people's answers by pair id.

    A pair counts where both gave the same verdict; pairs they dispute, or that one of them could not tell, are reported
    and left out. Agreement and Cohen's kappa are over pairs that both decided.
    """
    rows, both, disputed = [], [], []
    for offer in offers:
        one, other = first.get(offer["id"], ""), second.get(offer["id"], "")
        if not {one, other} <= {"pass", "fail"}:
            continue
        both.append(Comparison(document=offer["id"], human=one == "pass", judge=other == "pass"))
        if one == other:
            rows.append({**offer, "label": one, "second_label": other})
        else:
            disputed.append(offer["id"])
    report = {
        "offered": len(offers),
        "decided_by_both": len(both),
        "agreement": len(rows) / len(both) if both else None,
        "kappa": kappa(table(both)),
        "disputed": sorted(disputed),
        "labels": len(rows),
    }
    return rows, plain_json(report)


def write_offers(settings: Settings, batch: str, offers: Sequence[Mapping[str, Any]], mix: Mapping[str, float]) -> str:
    """Stores a batch of offers and the production mix under the state URL; returns the batch's folder."""
    store = labels_store(settings)
    store.write_json(f"{batch}/offers.json", list(offers))
    store.write_json(f"{batch}/production.json", dict(mix))
    return store.child(batch).url


def write_labels(settings: Settings, batch: str, rows: Sequence[Mapping[str, Any]], report: Mapping[str, Any]) -> None:
    """Stores a batch's labels, and how far its two people agreed."""
    store = labels_store(settings)
    store.write_json(f"{batch}/agreement.json", dict(report))
    store.write_bytes(f"{batch}/labels.jsonl", _lines(rows))


def all_labels(settings: Settings) -> list[dict[str, Any]]:
    """Every label collected so far, over all batches; the newest of a pair counts."""
    store = labels_store(settings)
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(store.fs.glob(store.path("*", "labels.jsonl"))):
        for line in store.fs.cat_file(path).splitlines():
            row = json.loads(line)
            found[row["id"]] = row
    return list(found.values())


def _lines(rows: Iterable[Mapping[str, Any]]) -> bytes:
    return b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows)


def merge_labels(settings: Settings, batch: str, given: str | None) -> str:
    """Writes all collected labels, and a given file's, as one labels file; returns its path or URL."""
    store = labels_store(settings)
    rows = _lines(all_labels(settings))
    if given:
        with fsspec.open(resolve_path(given), "rb") as file:
            rows += file.read().rstrip(b"\n") + b"\n"
    store.write_bytes(f"{batch}/merged.jsonl", rows)
    return store.child(batch, "merged.jsonl").url
