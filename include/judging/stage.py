"""Draws the texts of one run and enhancement task that the judge shall read, after validation of all bins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from include.judging.calibration import accuracy_of, calibration_in_force
from include.judging.estimation import sample_size
from include.judging.sampling import Draw, Stratum, draw_key
from include.partitions import PartWriter
from include.records import SampledText, Verdict
from include.runs import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class _Key:
    """The columns of a Verdict that the strata are made of; a first pass reads no others."""

    merchant_id: str
    locale: str
    category: str
    ok: bool


def finished_bins(run: Run, task: str) -> list[int]:
    """Bins whose validation is complete; the others' listings are `errored` and nothing of them is published."""
    return [b for b in range(len(run.bins(task))) if run.store.exists(run.manifest(task, "validate", b))]


def accepted(run: Run, task: str, record: type[Any] = Verdict) -> Iterator[Any]:
    """Streams what the validators accepted, over all finished bins, as Verdict or as a record with some of its fields."""
    for bin_index in finished_bins(run, task):
        for row in run.store.read_rows(run.verdicts(task, bin_index), record):
            if row.ok:
                yield row


def _stratum(row: Any) -> Stratum:
    return row.merchant_id, row.locale, row.category


def sample(run: Run, task: str) -> dict[str, Any]:
    """Draws the judge's sample, writes it as SampledText parts and returns manifest(task, "sample").

    The size comes from the gate's margin, alpha and power, bounded by sampling.max_size; `status` is "underpowered" when
    that, the population or the calibration is too small for the wanted power, "empty" when nothing was accepted. Two
    passes over the verdicts; memory holds one counter per stratum and the sample.
    """
    settings = run.spec.settings.task(task)
    gate, sampling = settings.gate, settings.sampling
    run.store.remove(run.manifest(task, "sample"))
    run.store.remove(run.sampled(task))
    counts: Counter[Stratum] = Counter(_stratum(row) for row in accepted(run, task, _Key))
    population = counts.total()
    size = sample_size(
        population,
        baseline=gate.baseline,
        margin=gate.margin,
        alpha=gate.alpha,
        power=gate.power,
        min_size=sampling.min_size,
        max_size=sampling.max_size,
        judge=accuracy_of(calibration_in_force(run.spec.settings, task)[0]),
    )
    draw: Draw[Verdict] = Draw(counts, size.size)
    seed = f"{sampling.seed}/{run.spec.partition_date}/{task}"
    for row in accepted(run, task):
        draw.offer(_stratum(row), draw_key(seed, row.merchant_id, row.listing_id), row)
    texts: set[str] = set()
    with PartWriter(run.store, run.sampled(task), SampledText) as writer:
        for stratum, weight, listings in draw.by_text(lambda row: row.text_id):
            writer.write(_sampled(stratum, weight, listings))
            texts.add(listings[0].text_id)
    manifest = {
        **asdict(size),
        "status": "empty" if not population else "underpowered" if size.underpowered else "ok",
        "population": population,
        "listings": sum(draw.sizes.values()),
        "texts": len(texts),
        "seed": seed,
        "strata": {"/".join(s): {"listings": draw.totals[s], "drawn": n} for s, n in sorted(draw.sizes.items())},
    }
    run.store.write_json(run.manifest(task, "sample"), manifest)
    return manifest


def _sampled(stratum: Stratum, weight: float, listings: Sequence[Verdict]) -> SampledText:
    copied = ("text_id", "title", "description", "brand", "category", "locale", "attributes", "output")
    return SampledText(
        stratum="/".join(stratum),
        weight=weight,
        listings=len(listings),
        **{name: getattr(listings[0], name) for name in copied},
    )
