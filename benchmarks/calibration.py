"""Does the corrected pass rate's interval cover the truth? Human labels, a judge made by flipping them, many splits.

Each replication flips the human labels of `../shared/data/faithfulness.jsonl` as a judge of moderate quality would, fits
the judge's sensitivity and specificity on half of the documents, and estimates the pass rate of the other half from the
judge's words alone. The share of replications whose 95% interval holds the human rate must be 95% within 1.5 points; the
uncorrected interval is shown beside it, and so is the agreement with people of the judges whose labels the file holds.

    python -m benchmarks.calibration [--labels FILE] [--replications 2000] [--out build/bench/calibration.json]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.simulation import answer, calibrated_on, said_by_judge, write_result
from include.judging.decision import judge_decision
from include.judging.fitting import compare, published_judges
from include.judging.labels import LabelledPair, read_labels
from include.settings import GateSettings, load_settings

LABELS = Path("../shared/data/faithfulness.jsonl")
SENSITIVITY, SPECIFICITY = 0.85, 0.75
GATE = GateSettings(baseline=0.3, margin=0.1, min_validator_pass_rate=0.5)


class Replication(NamedTuple):
    """Whether the corrected and the raw 95% interval hold the truth, and the errors of both estimates."""

    covered: bool
    raw_covered: bool
    error: float
    raw_error: float


def replication(pairs: Sequence[LabelledPair], seed: int) -> Replication:
    """Flips the labels, fits on one half of the documents and estimates the pass rate of the other."""
    random = np.random.default_rng(seed)
    documents = random.permutation(sorted({pair.document for pair in pairs}))
    fitted = set(documents[: len(documents) // 2])
    said = said_by_judge(np.array([pair.passed for pair in pairs]), SENSITIVITY, SPECIFICITY, random).tolist()
    judged = list(zip(pairs, said, strict=True))
    calibration = calibrated_on([compare(pair, passed) for pair, passed in judged if pair.document in fitted])
    others = [(pair, passed) for pair, passed in judged if pair.document not in fitted]
    rows = [answer(pair.id, passed) for pair, passed in others]
    truth = float(np.mean([pair.passed for pair, _ in others]))
    found = judge_decision(rows, len(rows), GATE, calibration)
    assert found.raw is not None
    assert found.ci95 is not None
    assert found.pass_rate is not None
    assert found.raw_ci95 is not None
    return Replication(
        found.ci95[0] <= truth <= found.ci95[1],
        found.raw_ci95[0] <= truth <= found.raw_ci95[1],
        found.pass_rate - truth,
        found.raw.rate - truth,
    )


def run(labels: Path, replications: int) -> dict[str, object]:
    """All replications on one file of labels; the result as it is written."""
    pairs, _ = read_labels(labels)
    found = [replication(pairs, seed) for seed in range(replications)]
    covered, raw_covered, error, raw_error = np.mean(found, axis=0).tolist()
    return {
        "pairs": len(pairs),
        "documents": len({pair.document for pair in pairs}),
        "replications": replications,
        "judge": {"sensitivity": SENSITIVITY, "specificity": SPECIFICITY},
        "corrected": {"coverage": covered, "mean_error": error},
        "raw": {"coverage": raw_covered, "mean_error": raw_error},
        "published_judges": {
            name: {figure: judge[figure] for figure in ("pairs", "kappa", "youden", "refusals")}
            for name, judge in published_judges(pairs, load_settings()).items()
        },
        "ok": abs(covered - 0.95) <= 0.015 and abs(raw_covered - 0.95) > 0.015,
    }


def main() -> int:
    """Exit status 1 when a coverage is off its limit, 2 when there are no labels."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--labels", type=Path, default=LABELS)
    parser.add_argument("--replications", type=int, default=2000)
    parser.add_argument("--out", type=Path, default=Path("build/bench/calibration.json"))
    options = parser.parse_args()
    if not options.labels.is_file():
        print(f"not run: {options.labels} is absent; give a file of labelled pairs with --labels", file=sys.stderr)
        return 2
    result = run(options.labels, options.replications)
    write_result(result, options.out)
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
