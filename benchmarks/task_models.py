"""The three task models on held-out listings, on the real CPU engine: `make bench-task-models`.

Titles and descriptions by the adapters and by the plain base model, for held-out categories, brands and wordings: share
that passes the validators, share without a claim that the oracle finds wrong, lengths. Then the judge adapter, with its
calibrated threshold, reads the adapters' own rewrites and planted faults; its verdicts are compared with the oracle's.
Writes build/bench/task_models.json.

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
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from include.distillation import copywriting, merchants, oracle, pairs, world
from include.distillation.evaluation import ask, compared
from include.generation.engine import Output, open_engine
from include.judging.calibration import current_calibration
from include.judging.confidence import clean_probability
from include.judging.rubric import read_answer
from include.judging.scoring import sampling_params
from include.records import JudgeScore, JudgeVerdict, Listing
from include.settings import PROJECT_ROOT, load_settings
from include.validation.checker import Checker
from include.validation.view import Source

REAL = PROJECT_ROOT.parent / "shared" / "data"
BASE = "cpu-smollm2"
REAL_JUDGED = 60  # of the real listings of each task; the judge is the slowest of the three
log = logging.getLogger("bench")


def sentences(text: str) -> int:
    return len(re.findall(r"[.!?](?=\s|$)", text))


def _answers(profile: str, prompts: Sequence[Any], params: Mapping[str, Any]) -> list[Output]:
    with open_engine(load_settings().engines[profile]) as engine:
        return ask(engine, prompts, params, None)


def answers(profile: str, prompts: Sequence[Any], params: Mapping[str, Any]) -> list[Output]:
    """One engine of a profile in a process of its own, since a process cannot start a second one cleanly."""
    started = time.monotonic()
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        found = pool.submit(_answers, profile, prompts, params).result()
    log.info("%s: %d answers in %.0f s", profile, len(found), time.monotonic() - started)
    return found


class Bench:
    """The default configuration's engines and validators."""

    def __init__(self) -> None:
        self.settings = load_settings()
        self.checkers = {task: Checker.of(self.settings, task) for task in pairs.WRITERS}

    def write(self, task: str, listings: list[Listing], profile: str = "") -> list[Output]:
        params = dict(self.settings.task(task).sampling_params)
        prompts = [pairs.writer_prompt(task, listing) for listing in listings]
        return answers(profile or self.settings.task(task).engine, prompts, params)

    def outcome(self, task: str, listing: Listing, output: Output) -> Any:
        source = {
            name: getattr(pairs.as_extracted(listing), name) for name in ("title", "description", "locale", "brand")
        }
        source["attributes"] = json.loads(listing.attributes)
        return self.checkers[task].check(Source.from_json(source), output.text, output.finish_reason)

    def judge(self, rewrites: list[tuple[str, Listing, str]]) -> list[dict[str, JudgeVerdict]]:
        """For each (task, listing, text): the verdict of the claims alone, and the calibrated one."""
        judge, calibration = self.settings.judge, current_calibration(self.settings, "all")
        prompts = [pairs.judge_prompt(*rewrite) for rewrite in rewrites]
        found = []
        for output in answers(judge.engine, prompts, sampling_params(judge)):
            verdict = read_answer(output.text, judge).verdict
            known = verdict is not JudgeVerdict.ERROR
            probability = clean_probability(output.logprobs) if known else None
            score = JudgeScore(text_id="", stratum="", weight=1.0, verdict=verdict, score=probability)
            passes = calibration.passes(score) if calibration else verdict is JudgeVerdict.PASS
            calibrated = (JudgeVerdict.PASS if passes else JudgeVerdict.FAIL) if known else verdict
            found.append({"claims": verdict, "calibrated": calibrated})
        return found


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
            "oracle_faithful_rate": found.faithful and bool(output.text.strip()),
            "product_named_rate": not found.omitted,  # in the merchant's own words
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
        rows = [row for row in pairs.read_jsonl(path) if row["title"] and row["locale"] in world.LOCALES]
        for row in rng.sample(rows, min(len(rows), count // len(files))):
            attributes = {str(k): str(v) for k, v in (row["attributes"] or {}).items() if v}
            fields = {name: str(row[name] or "") for name in ("title", "description", "brand", "category", "locale")}
            ids = {"merchant_id": row["merchant_id"], "listing_id": row["listing_id"]}
            moment = merchants.FIRST_UPDATE
            found.append(Listing(**ids, **fields, attributes=json.dumps(attributes), source_updated_at=moment))
    return found


def run(rows: int, base_rows: int, planted: int, real: int, out: Path) -> dict[str, Any]:
    bench, started = Bench(), time.monotonic()
    sources = list(merchants.examples(20_260_301, rows, "held_out"))  # other listings than the calibration's
    known, unknown = [listing for listing, _ in sources], real_listings(real) if real else []
    result: dict[str, Any] = {"rows": rows, "base_rows": base_rows}
    to_judge: dict[str, list[tuple[str, Listing, str]]] = {}
    truth: dict[str, list[bool]] = {}

    def facts_known(task: str, outputs: list[Output]) -> list[pairs.Rewrite]:
        return [
            pairs.Rewrite(task, listing, product, output.text)
            for (listing, product), output in zip(sources, outputs, strict=False)
        ]

    result["real_listings"] = {"rows": len(unknown)} if unknown else None
    for task in pairs.WRITERS:
        outputs = bench.write(task, known + unknown)
        made = facts_known(task, outputs)
        table = measure(bench, task, made, outputs[:rows])
        result[task] = table["en-US"] | {"locales": table}
        log.info("%s: %s", task, json.dumps(table, ensure_ascii=False))
        to_judge[task] = [(task, r.listing, r.text) for r in made]
        truth[task] = [faithful(r) for r in made]
        if unknown:
            result["real_listings"][task] = measure_real(bench, task, unknown, outputs[rows:])
            real_copy = [(task, li, o.text) for li, o in zip(unknown, outputs[rows:], strict=True)]
            to_judge[f"real {task}"] = real_copy[:REAL_JUDGED]
        plain = bench.write(task, known[:base_rows], BASE)
        table = measure(bench, task, facts_known(task, plain), plain)
        result[task]["base_model"] = table["en-US"] | {"locales": table}
        log.info("%s by the base model: %s", task, json.dumps(table, ensure_ascii=False))
    rng = random.Random(4)
    faulty = []
    for listing, product in merchants.examples(20_260_302, planted, "held_out"):
        task = rng.choice(pairs.WRITERS)
        text = copywriting.labelled_copy(task, product, rng, "held_out", rng.random() < 0.5).text
        faulty.append(pairs.Rewrite(task, listing, product, text))
    to_judge["planted"] = [(r.task, r.listing, r.text) for r in faulty]
    truth["planted"] = [faithful(r) for r in faulty]
    said = iter(bench.judge([rewrite for group in to_judge.values() for rewrite in group]))
    verdicts = {name: [next(said) for _ in group] for name, group in to_judge.items()}
    result["judge"] = {}
    for kind in ("calibrated", "claims"):
        own = [(t, v[kind]) for task in pairs.WRITERS for t, v in zip(truth[task], verdicts[task], strict=True)]
        groups = {"": own} | {
            f"{name}_": list(zip(labels, [v[kind] for v in verdicts[name]], strict=True))
            for name, labels in truth.items()
        }
        for name, found in groups.items():
            figures = rounded(compared([t for t, _ in found], [v for _, v in found]))
            if kind == "calibrated" and not name:
                result["judge"] |= figures
            result["judge"][f"{name}{kind}"] = figures
    for name, judged in verdicts.items():
        if name.startswith("real "):
            tally = Counter(v["calibrated"].value for v in judged)
            result["real_listings"][name.removeprefix("real ")]["judge"] = dict(tally)
    log.info("judge: %s", json.dumps(result["judge"]))
    result["seconds"] = round(time.monotonic() - started, 1)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return result


def faithful(rewrite: pairs.Rewrite) -> bool:
    return pairs.check_rewrite(rewrite).faithful


def measure_real(bench: Bench, task: str, listings: list[Listing], outputs: list[Output]) -> dict[str, Any]:
    """The validators and lengths on listings that nobody here wrote."""
    outcomes = [bench.outcome(task, listing, output) for listing, output in zip(listings, outputs, strict=True)]
    for listing, output in list(zip(listings, outputs, strict=True))[:5]:
        log.info("  %s -> %s", listing.title[:80], output.text[:200])
    return {
        "validator_pass_rate": round(sum(o.ok for o in outcomes) / len(outcomes), 4),
        "mean_words": round(sum(len(o.text.split()) for o in outputs) / len(outputs), 2),
        "mean_sentences": round(sum(sentences(o.text) for o in outputs) / len(outputs), 2),
        "reasons": dict(Counter(reason for o in outcomes for reason in o.reasons).most_common()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=210, help="held-out listings, all locales")
    parser.add_argument("--base-rows", type=int, default=45, help="of them also by the plain base model")
    parser.add_argument("--planted", type=int, default=60)
    parser.add_argument("--real", type=int, default=200)
    parser.add_argument("--out", type=Path, default=PROJECT_ROOT / "build" / "bench" / "task_models.json")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    result = run(args.rows, args.base_rows, args.planted, args.real, args.out)
    for task in ("title", "description"):
        print(task, json.dumps({k: v for k, v in result[task].items() if k not in ("locales", "base_model")}))
    print("judge", json.dumps({k: v for k, v in result["judge"].items() if not isinstance(v, dict)}))


if __name__ == "__main__":
    main()
