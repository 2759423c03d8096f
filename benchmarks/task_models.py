"""The three task models on held-out listings, on the real CPU engine: `make bench-task-models`.

Titles and descriptions by the adapters and by the plain base model, for held-out categories, brands and wordings: share
that passes the validators, share that the oracle finds faithful, lengths. Then the judge adapter reads the adapters' own
rewrites and planted faults; its verdicts are compared with the oracle's. Writes build/bench/task_models.json.

Real listings of ../shared/data are measured the same way where they are there (no facts are known, so no oracle).
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import re
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from include.distillation import copywriting, merchants, oracle, pairs
from include.distillation.evaluation import ask, compared, judged
from include.generation.engine import open_engine
from include.records import JudgeVerdict, Listing
from include.settings import PROJECT_ROOT, load_settings
from include.validation.checker import Checker
from include.validation.view import Source

REAL = PROJECT_ROOT.parent / "shared" / "data"
log = logging.getLogger("bench")


def sentences(text: str) -> int:
    return len(re.findall(r"[.!?](?=\s|$)", text))


class Bench:
    """One engine on the shared base with all adapters, and the validators of the default configuration."""

    def __init__(self, engine: Any, adapters: dict[str, str]) -> None:
        self.engine, self.adapters = engine, adapters
        self.settings = load_settings()
        self.checkers = {task: Checker.of(self.settings, task) for task in pairs.WRITERS}

    def write(self, task: str, listings: list[Listing], adapter: str | None) -> list[Any]:
        params = dict(self.settings.task(task).sampling_params)
        return ask(self.engine, [pairs.writer_prompt(task, listing) for listing in listings], params, adapter)

    def outcome(self, task: str, listing: Listing, output: Any) -> Any:
        source = {
            name: getattr(pairs.as_extracted(listing), name) for name in ("title", "description", "locale", "brand")
        }
        source["attributes"] = json.loads(listing.attributes)
        return self.checkers[task].check(Source.from_json(source), output.text, output.finish_reason)

    def judge(self, rewrites: list[pairs.Rewrite]) -> list[JudgeVerdict]:
        prompts = [pairs.judge_prompt(r.task, r.listing, r.text) for r in rewrites]
        return judged(self.engine, self.settings.judge, self.adapters["judge"], prompts)


def rounded(figures: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 4) for name, value in figures.items()}


def measure(bench: Bench, task: str, made: list[pairs.Rewrite], outputs: list[Any]) -> dict[str, Any]:
    """One line of the table per locale, and for all."""
    groups: dict[str, list[dict[str, float]]] = defaultdict(list)
    reasons: Counter[str] = Counter()
    for rewrite, output in zip(made, outputs, strict=True):
        verdict = bench.outcome(task, rewrite.listing, output)
        found = oracle.check(rewrite.product, pairs.as_extracted(rewrite.listing), verdict.output or output.text)
        reasons.update(verdict.reasons)
        row = {
            "validator_pass_rate": verdict.ok,
            "oracle_faithful_rate": found.faithful and not found.omitted and bool(output.text.strip()),
            "no_wrong_claim_rate": found.faithful,
            "mean_words": len(output.text.split()),
            "mean_sentences": sentences(output.text),
        }
        for group in ("all", rewrite.listing.locale):
            groups[group].append(row)
    table: dict[str, Any] = {
        group: {name: round(sum(row[name] for row in rows) / len(rows), 4) for name in rows[0]} | {"rows": len(rows)}
        for group, rows in sorted(groups.items())
    }
    return table | {"reasons": dict(reasons.most_common())}


def real_listings(count: int) -> list[Listing]:
    """Real listings of four files, the same ones every time; empty where the data is absent."""
    rng = random.Random(13)
    found: list[Listing] = []
    files = sorted(REAL.glob("listings_*.jsonl"))
    for path in files:
        rows = [row for row in pairs.read_jsonl(path) if row["title"] and row["locale"] in merchants.LOCALES]
        for row in rng.sample(rows, min(len(rows), count // len(files))):
            attributes = {str(k): str(v) for k, v in (row["attributes"] or {}).items() if v}
            fields = {name: str(row[name] or "") for name in ("title", "description", "brand", "category", "locale")}
            ids = {"merchant_id": row["merchant_id"], "listing_id": row["listing_id"]}
            moment = merchants.FIRST_UPDATE
            found.append(Listing(**ids, **fields, attributes=json.dumps(attributes), source_updated_at=moment))
    return found


def run(rows: int, planted: int, real: int, out: Path) -> dict[str, Any]:
    settings = load_settings()
    adapters = {task: str(PROJECT_ROOT / "include" / "adapters" / task) for task in ("title", "description", "judge")}
    base = settings.engines["cpu-smollm2"]
    sources = list(merchants.examples(20_260_101, rows, "held_out"))
    listings = [listing for listing, _ in sources]
    started = time.monotonic()
    result: dict[str, Any] = {"base": base.model, "rows": rows}
    with open_engine(base, adapters=list(adapters.values())) as engine:
        bench = Bench(engine, adapters)
        rewrites: dict[str, list[pairs.Rewrite]] = {}
        for task in pairs.WRITERS:
            for name, adapter in (("adapter", adapters[task]), ("base", None)):
                used = len(sources) if name == "adapter" else len(sources) // 2
                outputs = bench.write(task, listings[:used], adapter)
                made = [
                    pairs.Rewrite(task, listing, product, output.text)
                    for (listing, product), output in zip(sources[:used], outputs, strict=True)
                ]
                table = measure(bench, task, made, outputs)
                log.info("%s by %s: %s", task, name, json.dumps(table["all"]))
                if name == "adapter":
                    rewrites[task] = made
                    result[task] = table["en-US"] | {"locales": table}
                else:
                    result[task]["base_model"] = table["en-US"] | {"locales": table}
        rng = random.Random(4)
        faulty = [
            pairs.Rewrite(
                task,
                listing,
                product,
                copywriting.labelled_copy(task, product, rng, "held_out", rng.random() < 0.5).text,
            )
            for listing, product in merchants.examples(20_260_102, planted, "held_out")
            for task in [rng.choice(pairs.WRITERS)]
        ]
        result["judge"] = {}
        for name, made in (*rewrites.items(), ("planted", faulty)):
            truth = [oracle.check(r.product, pairs.as_extracted(r.listing), r.text).faithful for r in made]
            said = bench.judge(made)
            result["judge"][name] = rounded(compared(truth, said))
            if name != "planted":
                result["judge"].setdefault("_own", ([], []))
                result["judge"]["_own"][0].extend(truth)
                result["judge"]["_own"][1].extend(said)
            log.info("judge on %s: %s", name, json.dumps(result["judge"][name]))
        result["judge"] |= rounded(compared(*result["judge"].pop("_own")))
        result["real_listings"] = measure_real(bench, real) if real else None
    result["seconds"] = round(time.monotonic() - started, 1)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return result


def measure_real(bench: Bench, count: int) -> dict[str, Any] | None:
    """The validators, lengths and the judge on listings that nobody here wrote; None where they are absent."""
    listings = real_listings(count)
    if not listings:
        log.info("no real listings at %s: left out of the table", REAL)
        return None
    table: dict[str, Any] = {"rows": len(listings)}
    for task in pairs.WRITERS:
        outputs = bench.write(task, listings, bench.adapters[task])
        outcomes = [bench.outcome(task, listing, output) for listing, output in zip(listings, outputs, strict=True)]
        product = merchants.sample_product(random.Random(1), "held_out", "en-US")
        made = [pairs.Rewrite(task, li, product, o.text) for li, o in zip(listings, outputs, strict=True)]
        verdicts = Counter(verdict.value for verdict in bench.judge(made))
        table[task] = {
            "validator_pass_rate": round(sum(o.ok for o in outcomes) / len(outcomes), 4),
            "mean_words": round(sum(len(o.text.split()) for o in outputs) / len(outputs), 2),
            "mean_sentences": round(sum(sentences(o.text) for o in outputs) / len(outputs), 2),
            "judge": dict(verdicts),
            "reasons": dict(Counter(reason for o in outcomes for reason in o.reasons).most_common()),
        }
        log.info("%s of real listings: %s", task, json.dumps(table[task]))
        for listing, output in list(zip(listings, outputs, strict=True))[:5]:
            log.info("  %s -> %s", listing.title[:80], output.text[:200])
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=300, help="held-out listings, all locales")
    parser.add_argument("--planted", type=int, default=150)
    parser.add_argument("--real", type=int, default=200)
    parser.add_argument("--out", type=Path, default=PROJECT_ROOT / "build" / "bench" / "task_models.json")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    result = run(args.rows, args.planted, args.real, args.out)
    for task in ("title", "description"):
        print(task, json.dumps({k: v for k, v in result[task].items() if k not in ("locales", "base_model")}))
    print("judge", json.dumps({k: v for k, v in result["judge"].items() if not isinstance(v, dict)}))


if __name__ == "__main__":
    main()
