"""How often the gate is wrong: simulated nights through the production sampling, calibration and decision.

Each night has its own finite catalogue (merchants, locales and categories of very different size and quality, texts that
several listings share), its own judge answers and its own human-labelled calibration set. Two kinds of night are run:
the true pass rate lies exactly at baseline - margin (passing is a *false pass*) or at the baseline (failing is a *false
alarm*). The same nights go to a gate that takes the judge at its word, and to gates that always pass or always fail.

    python -m benchmarks.gate [--nights 2000] [--out build/bench/gate.json]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.simulation import Flags, answer, calibrated_on, said_by_judge, write_result
from include.judging.agreement import Comparison
from include.judging.calibration import Calibration
from include.judging.decision import judge_decision
from include.judging.estimation import sample_size
from include.judging.sampling import Draw, Stratum
from include.settings import GateSettings

GATE = GateSettings(baseline=0.9, margin=0.1, alpha=0.05, power=0.8, min_validator_pass_rate=0.5)
LISTINGS, MAX_SIZE = 3_000, 1_000
SENSITIVITY, SPECIFICITY = 0.92, 0.80  # of the simulated judge
LABELLED_DOCUMENTS, PAIRS_PER_DOCUMENT, DOCUMENT_SPREAD = 300, 5, 0.03
STRATA: list[Stratum] = [(f"m{m}", f"l{loc}", f"c{c}") for m in range(8) for loc in range(3) for c in range(6)]
PROGRESS_EVERY = 100


class Night(NamedTuple):
    corrected_passes: bool
    plain_passes: bool  # of a gate that takes the judge at its word
    covered: bool  # the corrected 95% interval holds the true pass rate
    listings: int  # judged


def catalogue(rate: float, random: np.random.Generator) -> tuple[npt.NDArray[np.int64], list[int], Flags]:
    """One night: stratum and text of each listing, and which texts are good, so that exactly `rate` of the listings is."""
    strata = random.choice(len(STRATA), size=LISTINGS, p=random.dirichlet(np.full(len(STRATA), 0.5)))
    texts, steps = list(range(LISTINGS)), random.integers(1, 21, LISTINGS)
    for listing in np.flatnonzero(random.random(LISTINGS) < 0.3):  # these repeat the text of an earlier listing
        texts[listing] = texts[max(0, listing - steps[listing])]
    copies = np.bincount(texts, minlength=LISTINGS)
    leaning = random.normal(0.0, 1.0, len(STRATA))  # some strata are worse than others
    good, left = np.zeros(LISTINGS, dtype=bool), round(rate * LISTINGS)
    for text in np.argsort(leaning[strata] + random.normal(0.0, 2.0, LISTINGS)):
        if 0 < copies[text] <= left:
            good[text], left = True, left - copies[text]
    return strata, texts, good


def calibration(random: np.random.Generator) -> Calibration:
    """A calibration measured on fresh labels; the judge is a little better on some documents than on others."""
    documents = np.repeat(np.arange(LABELLED_DOCUMENTS), PAIRS_PER_DOCUMENT)
    truth = random.random(len(documents)) < 0.75
    spread = random.uniform(-DOCUMENT_SPREAD, DOCUMENT_SPREAD, LABELLED_DOCUMENTS)[documents]
    said = said_by_judge(truth, SENSITIVITY, SPECIFICITY, random, spread)
    return calibrated_on(
        [
            Comparison(document=str(document), human=human, judge=judge)
            for document, human, judge in zip(documents.tolist(), truth.tolist(), said.tolist(), strict=True)
        ]
    )


def night(rate: float, seed: int) -> Night:
    """One night whose true pass rate is `rate`, through the production sample size, draw and decision.

    Listings are ranked by plain random numbers instead of the production hash of their names, which is as uniform and slower.
    """
    random = np.random.default_rng(seed)
    strata, texts, good = catalogue(rate, random)
    measured = calibration(random)
    said = said_by_judge(good, SENSITIVITY, SPECIFICITY, random)
    size = sample_size(
        LISTINGS,
        baseline=GATE.baseline,
        margin=GATE.margin,
        alpha=GATE.alpha,
        power=GATE.power,
        max_size=MAX_SIZE,
        judge=measured.accuracy,
    ).size
    counts = {STRATA[number]: int(count) for number, count in enumerate(np.bincount(strata)) if count}
    draw: Draw[int] = Draw(counts, size)
    keys = random.integers(2**62, size=LISTINGS)
    for listing, (number, key) in enumerate(zip(strata.tolist(), keys.tolist(), strict=True)):
        draw.offer(STRATA[number], key, listing)
    rows = [
        answer(str(text), bool(said[text]), stratum="/".join(stratum), weight=weight, listings=len(listings))
        for stratum, weight, listings in draw.by_text(lambda listing: str(texts[listing]))
        for text in [texts[listings[0]]]
    ]
    corrected, plain = judge_decision(rows, LISTINGS, GATE, measured), judge_decision(rows, LISTINGS, GATE)
    assert corrected.ci95 is not None
    low, high = corrected.ci95
    return Night(corrected.shown, plain.shown, bool(low <= good[texts].mean() <= high), size)


def run(nights: int) -> dict[str, object]:
    """Both kinds of night, `nights` of each; the result as it is written."""
    started = time.monotonic()
    bad: list[Night] = []
    fine: list[Night] = []
    for number in range(1, nights + 1):
        bad.append(night(GATE.baseline - GATE.margin, 2 * number))
        fine.append(night(GATE.baseline, 2 * number + 1))
        if number % PROGRESS_EVERY == 0:
            seconds = time.monotonic() - started
            left = seconds / number * (nights - number)
            print(f"{number} of {nights} nights of each kind, {seconds:.0f} s, {left:.0f} s left", flush=True)

    def rates(passes: Callable[[Night], bool]) -> dict[str, float]:
        return {
            "false_pass_rate": float(np.mean([passes(night) for night in bad])),
            "false_alarm_rate": 1 - float(np.mean([passes(night) for night in fine])),
        }

    limits = {"false_pass_rate": GATE.alpha + 0.015, "false_alarm_rate": 1 - GATE.power + 0.03}

    def holds(found: dict[str, float]) -> bool:
        return all(found[name] <= limit for name, limit in limits.items())

    corrected = rates(lambda night: night.corrected_passes)
    others = {
        "without_correction": rates(lambda night: night.plain_passes),
        "always_pass": rates(lambda _: True),
        "always_fail": rates(lambda _: False),
    }
    return {
        "nights": nights,
        "configured": {"alpha": GATE.alpha, "power": GATE.power, "baseline": GATE.baseline, "margin": GATE.margin},
        "limits": limits,
        **corrected,
        "ok": holds(corrected) and not any(holds(rates) for rates in others.values()),
        "coverage_of_ci95": float(np.mean([night.covered for night in bad + fine])),
        "listings_judged": float(np.mean([night.listings for night in bad + fine])),
        "other_gates": {name: {**rates, "ok": holds(rates)} for name, rates in others.items()},
        "seconds": round(time.monotonic() - started, 1),
    }


def main() -> int:
    """Exit status 1 when a rate is above its limit, or when a gate that must miss the limits holds them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nights", type=int, default=2000, help="of each kind")
    parser.add_argument("--out", type=Path, default=Path("build/bench/gate.json"))
    options = parser.parse_args()
    result = run(options.nights)
    write_result(result, options.out)
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
