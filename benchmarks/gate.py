"""How often the gate is wrong: simulated nights through the production sampling, calibration and decision.

Each night has its own finite catalogue (merchants, locales and categories of very different size and quality, texts that
several listings share), its own judge answers and its own human-labelled calibration set. Two kinds of night are run:
the true pass rate lies exactly at baseline - margin (passing is a *false pass*) or at the baseline (failing is a *false
alarm*). The same nights go to a gate that takes the judge at its word, and to gates that always pass or always fail.

    python -m benchmarks.gate [--nights 2000] [--out build/bench/gate.json]
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from include.judging.agreement import Comparison, measured_accuracy
from include.judging.calibration import Calibration
from include.judging.decision import judge_decision
from include.judging.estimation import sample_size
from include.judging.sampling import Draw, Stratum, allocate, collapse, draw_key
from include.records import JudgeScore, JudgeVerdict
from include.settings import GateSettings

GATE = GateSettings(baseline=0.9, margin=0.1, alpha=0.05, power=0.8, min_validator_pass_rate=0.5)
LISTINGS, MAX_SIZE = 3_000, 1_000
SENSITIVITY, SPECIFICITY = 0.92, 0.80  # of the simulated judge
LABELLED_DOCUMENTS, PAIRS_PER_DOCUMENT, DOCUMENT_SPREAD = 300, 5, 0.03
STRATA: list[Stratum] = [(f"m{m}", f"l{loc}", f"c{c}") for m in range(8) for loc in range(3) for c in range(6)]


def catalogue(rate: float, random: np.random.Generator) -> tuple[list[Stratum], np.ndarray, np.ndarray]:
    """One night: stratum and text of each listing, and which texts are truly good: exactly `rate` of the listings."""
    shares = random.dirichlet(np.full(len(STRATA), 0.5))
    strata = [STRATA[i] for i in random.choice(len(STRATA), size=LISTINGS, p=shares)]
    texts = np.arange(LISTINGS)
    sharing = random.random(LISTINGS) < 0.3  # these repeat the text of an earlier listing
    for listing in np.flatnonzero(sharing[1:]) + 1:
        texts[listing] = texts[random.integers(max(0, listing - 20), listing)]
    copies = np.bincount(texts, minlength=LISTINGS)
    leaning = dict(zip(STRATA, random.normal(0.0, 1.0, len(STRATA)), strict=True))  # some strata are worse than others
    order = sorted(np.flatnonzero(copies), key=lambda t: leaning[strata[t]] + random.normal(0.0, 2.0))
    good, left = np.zeros(LISTINGS, dtype=bool), round(rate * LISTINGS)
    for text in order:  # fill up to exactly the wanted number of listings
        if copies[text] <= left:
            good[text], left = True, left - copies[text]
    return strata, texts, good


def flipped(truth: np.ndarray, random: np.random.Generator, spread: np.ndarray | float = 0.0) -> np.ndarray:
    """The judge's word on each text: right with its sensitivity or specificity."""
    right = np.where(truth, SENSITIVITY, SPECIFICITY) + spread
    return np.where(random.random(len(truth)) < right, truth, ~truth)


def calibration(random: np.random.Generator) -> Calibration:
    """A calibration measured on fresh labels; the judge is a little better on some documents than on others."""
    documents = np.repeat(np.arange(LABELLED_DOCUMENTS), PAIRS_PER_DOCUMENT)
    truth = random.random(len(documents)) < 0.75
    spread = random.uniform(-DOCUMENT_SPREAD, DOCUMENT_SPREAD, LABELLED_DOCUMENTS)[documents]
    said = flipped(truth, random, spread)
    judge = measured_accuracy(
        [
            Comparison(document=str(d), human=bool(t), judge=bool(s))
            for d, t, s in zip(documents, truth, said, strict=True)
        ]
    )
    return Calibration(
        version="simulated",
        created_at=datetime.now(UTC),
        judge_model="simulated",
        rubric="simulated",
        labels="simulated",
        sensitivity=judge.sensitivity,
        specificity=judge.specificity,
        passed_pairs=judge.passed_pairs,
        failed_pairs=judge.failed_pairs,
        kappa=0.0,
    )


def night(rate: float, seed: int) -> tuple[bool, bool, bool, int]:
    """(corrected gate passes, uncorrected gate passes, corrected interval covers the truth, listings judged)."""
    random = np.random.default_rng(seed)
    strata, texts, good = catalogue(rate, random)
    measured = calibration(random)
    said = flipped(good, random)
    size = sample_size(
        LISTINGS,
        baseline=GATE.baseline,
        margin=GATE.margin,
        alpha=GATE.alpha,
        power=GATE.power,
        max_size=MAX_SIZE,
        judge=measured.accuracy,
    )
    counts = Counter(strata)
    targets = collapse(counts, size.size)
    totals: Counter[Stratum] = Counter()
    for fine, count in counts.items():
        totals[targets[fine]] += count
    draw: Draw[int] = Draw(allocate(totals, size.size))
    for listing, stratum in enumerate(strata):
        draw.offer(targets[stratum], draw_key(str(seed), str(listing)), listing)
    rows = []
    for stratum, listings in draw.rows().items():
        for text, number in Counter(int(texts[listing]) for listing in listings).items():
            rows.append(
                JudgeScore(
                    text_id=str(text),
                    stratum="/".join(stratum),
                    weight=totals[stratum] / len(listings) * number,
                    listings=number,
                    verdict=JudgeVerdict.PASS if said[text] else JudgeVerdict.FAIL,
                )
            )
    corrected = judge_decision(rows, LISTINGS, GATE, measured)
    plain = judge_decision(rows, LISTINGS, GATE)
    truth = float(good[texts].mean())
    assert corrected.ci95 is not None
    return corrected.shown, plain.shown, corrected.ci95[0] <= truth <= corrected.ci95[1], size.size


def run(nights: int) -> dict[str, object]:
    started = time.monotonic()
    bad = [night(GATE.baseline - GATE.margin, seed) for seed in range(nights)]
    fine = [night(GATE.baseline, nights + seed) for seed in range(nights)]

    def rates(passes: Callable[[tuple[bool, bool, bool, int]], bool]) -> dict[str, float]:
        return {
            "false_pass_rate": float(np.mean([passes(n) for n in bad])),
            "false_alarm_rate": 1 - float(np.mean([passes(n) for n in fine])),
        }

    limits = {"false_pass_rate": GATE.alpha + 0.015, "false_alarm_rate": 1 - GATE.power + 0.03}

    def holds(found: dict[str, float]) -> bool:
        return all(found[name] <= limit for name, limit in limits.items())

    corrected = rates(lambda night: night[0])
    others = {
        "without_correction": rates(lambda night: night[1]),
        "always_pass": rates(lambda night: True),
        "always_fail": rates(lambda night: False),
    }
    return {
        "nights": nights,
        "configured": {"alpha": GATE.alpha, "power": GATE.power, "baseline": GATE.baseline, "margin": GATE.margin},
        "limits": limits,
        **corrected,
        "ok": holds(corrected),
        "coverage_of_ci95": float(np.mean([n[2] for n in bad + fine])),
        "listings_judged": float(np.mean([n[3] for n in bad + fine])),
        "other_gates": {name: {**found, "ok": holds(found)} for name, found in others.items()},
        "seconds": round(time.monotonic() - started, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nights", type=int, default=2000)
    parser.add_argument("--out", type=Path, default=Path("build/bench/gate.json"))
    options = parser.parse_args()
    result = run(options.nights)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
