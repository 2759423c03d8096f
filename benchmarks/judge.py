"""How fast the configured judge reads, how often its answers cannot be read, and whether it can tell copies apart at all.

The pairs come from the sample catalogue: each listing with its own title (*own*) and with the title of a listing of another
category (*foreign*, wrong by construction). A judge worth having passes the first more often than the second.

    python -m benchmarks.judge [--pairs 96] [--out build/bench/judge.json]
"""

from __future__ import annotations

import argparse
import csv
from collections import Counter
from pathlib import Path

from benchmarks.simulation import write_result
from include.judging.rubric import judge_values
from include.judging.sampling import draw_key
from include.judging.scoring import judge_texts, open_judge
from include.records import JudgeVerdict, SampledText
from include.settings import PROJECT_ROOT, load_settings

CATALOGUE = PROJECT_ROOT / "include" / "samples" / "listings.csv"


def pairs(count: int) -> dict[str, dict[str, str]]:
    """Template values by id; ids start with "own/" or "foreign/"."""
    with CATALOGUE.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["title"].strip() and row["description"].strip()]
    rows.sort(key=lambda row: draw_key("bench", row["merchant_id"], row["listing_id"]))
    found = {}
    for place, row in enumerate(rows[: count // 2]):
        other = next(
            r for r in rows[place:] + rows if r["category"] != row["category"] and r["locale"] == row["locale"]
        )
        for kind, copy in (("own", row["title"]), ("foreign", other["title"])):
            fields = {name: row[name] for name in ("title", "description", "brand", "category", "locale", "attributes")}
            text = SampledText(text_id="", stratum="", weight=1.0, listings=1, output=copy, **fields)
            found[f"{kind}/{row['merchant_id']}/{row['listing_id']}"] = judge_values(text, "title")
    return found


def run(count: int) -> dict[str, object]:
    settings = load_settings()
    texts = pairs(count)
    verdicts: Counter[tuple[str, str]] = Counter()
    scores: dict[str, list[float]] = {"own": [], "foreign": []}
    retried = disagreements = 0
    with open_judge(settings) as ask:
        for key, fields in judge_texts(texts, settings.judge, ask):
            kind = key.partition("/")[0]
            verdicts[kind, fields["verdict"].value] += 1
            retried += fields["attempts"] > 1
            if fields["verdict"] is not JudgeVerdict.ERROR:
                disagreements += fields["stated"] != fields["verdict"].value
                scores[kind].append(fields["score"] or 0.0)
        session = ask.report()
    errors = sum(number for (_, verdict), number in verdicts.items() if verdict == JudgeVerdict.ERROR)

    def passed(kind: str) -> float | None:
        read = len(scores[kind])
        return verdicts[kind, JudgeVerdict.PASS.value] / read if read else None

    ranked = [own > other for own in scores["own"] for other in scores["foreign"]]
    return {
        "judge": settings.engines[settings.judge.engine].lineage,
        "pairs": len(texts),
        "pairs_per_s": session["requests_per_s"],
        "unparsable_share": errors / len(texts),
        "retried_share": retried / len(texts),
        "disagreements": disagreements,
        "pass_rate_own": passed("own"),
        "pass_rate_foreign": passed("foreign"),
        "auc_of_score": sum(ranked) / len(ranked) if ranked else None,
        "session": session,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=96)
    parser.add_argument("--out", type=Path, default=Path("build/bench/judge.json"))
    options = parser.parse_args()
    write_result(run(options.pairs), options.out)


if __name__ == "__main__":
    main()
