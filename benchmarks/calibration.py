"""Does the corrected pass rate's interval cover the truth? Human labels, a judge made by flipping them, many splits.

Each replication flips the human labels of `../shared/data/faithfulness.jsonl` as a judge of moderate quality would, fits
the judge's sensitivity and specificity on half of the documents, and estimates the pass rate of the other half from the
judge's words alone. The share of replications whose 95% interval holds the human rate must be 95% within 1.5 points; the
uncorrected interval is shown beside it.

    python -m benchmarks.calibration [--labels FILE] [--replications 2000] [--out build/bench/calibration.json]
"""

from __future__ import annotations

import argparse
import json
import sys
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from include.judging.agreement import measured_accuracy
from include.judging.calibration import Calibration
from include.judging.decision import judge_decision
from include.judging.fitting import compare
from include.judging.labels import LabelledPair, read_labels
from include.records import JudgeScore, JudgeVerdict
from include.settings import GateSettings

LABELS = Path("../shared/data/faithfulness.jsonl")
SENSITIVITY, SPECIFICITY = 0.85, 0.75
GATE = GateSettings(baseline=0.3, margin=0.1, min_validator_pass_rate=0.5)


def replication(pairs: list[LabelledPair], seed: int) -> tuple[bool, bool, float, float]:
    """(corrected interval covers, raw interval covers, error of the corrected rate, of the raw rate)."""
    random = np.random.default_rng(seed)
    documents = random.permutation(sorted({pair.document for pair in pairs}))
    fitted = set(documents[: len(documents) // 2])
    right = random.random(len(pairs)) < np.where([p.passed for p in pairs], SENSITIVITY, SPECIFICITY)
    said = [bool(pair.passed == hit) for pair, hit in zip(pairs, right, strict=True)]
    judge = measured_accuracy([compare(p, j) for p, j in zip(pairs, said, strict=True) if p.document in fitted])
    calibration = Calibration(
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
    others = [(p, j) for p, j in zip(pairs, said, strict=True) if p.document not in fitted]
    rows = [
        JudgeScore(text_id=p.id, stratum="", weight=1.0, verdict=JudgeVerdict.PASS if j else JudgeVerdict.FAIL)
        for p, j in others
    ]
    truth = float(np.mean([p.passed for p, _ in others]))
    found, raw = judge_decision(rows, len(rows), GATE, calibration), np.mean([j for _, j in others])
    assert found.ci95 is not None
    assert found.pass_rate is not None
    assert found.raw_ci95 is not None
    return (
        found.ci95[0] <= truth <= found.ci95[1],
        found.raw_ci95[0] <= truth <= found.raw_ci95[1],
        found.pass_rate - truth,
        float(raw) - truth,
    )


def run(labels: Path, replications: int) -> dict[str, object]:
    pairs, _ = read_labels(labels)
    found = np.array([replication(pairs, seed) for seed in range(replications)], dtype=float)
    covered, raw_covered, error, raw_error = found.mean(axis=0)
    return {
        "pairs": len(pairs),
        "documents": len({pair.document for pair in pairs}),
        "replications": replications,
        "judge": {"sensitivity": SENSITIVITY, "specificity": SPECIFICITY},
        "corrected": {"coverage": float(covered), "mean_error": float(error)},
        "raw": {"coverage": float(raw_covered), "mean_error": float(raw_error)},
        "ok": bool(abs(covered - 0.95) <= 0.015 and abs(raw_covered - 0.95) > 0.015),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--labels", type=Path, default=LABELS)
    parser.add_argument("--replications", type=int, default=2000)
    parser.add_argument("--out", type=Path, default=Path("build/bench/calibration.json"))
    options = parser.parse_args()
    if not options.labels.is_file():
        print(f"not run: {options.labels} is absent; give a file of labelled pairs with --labels", file=sys.stderr)
        return 2
    result = run(options.labels, options.replications)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
