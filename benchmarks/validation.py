"""Measures the validators on real listings: speed, false alarms, and recall on planted faults.

Writes build/bench/validation.json. The listings lie beside the project in ../shared/data (or where --data says) and are
not part of it; without them there is nothing to measure, and this says so and fails.

Speed is rows by seconds of this process's processor time (`time.process_time`), so that waiting for a shared machine does
not count; a neighbour on the same core still slows it.

False alarms: human-written text is passed off as output. So that "the source says so, too" excuses nothing, a text is
judged against the listing's other field only; validators that check facts against the source are measured on pairs that
people labelled as consistent. The raw rate counts every alarm; the adjudicated one leaves out those of
benchmarks/adjudications.jsonl, where a reader agreed with the validator. Length, HTML and copied-through are reported
only: a catalogue's own text may be any of these.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import source_faults  # noqa: F401 - adds its faults to FAULTS
from benchmarks.faults import FAULTS, Case
from include.settings import Settings, load_settings
from include.validation.checker import Checker
from include.validation.registry import validators
from include.validation.stage import BATCH_ROWS
from include.validation.view import Source

ROOT = Path(__file__).resolve().parent.parent
FILES = (
    "listings_multimerchant_ccby.jsonl",
    "listings_amazon2020_cc0.jsonl",
    "listings_multilocale_mit.jsonl",
    "listings_permissive_misc.jsonl",
)
PAIRS = "faithfulness.jsonl"
# Validators that say "the source does not say so": measured on pairs with a label, not on text against its other field.
COMPARING = frozenset({
    "number_not_in_source", "unit_changed", "model_not_in_source", "brand_changed", "foreign_url", "injected_instruction",
    "language_switch", "truncated",
})  # fmt: skip
REPORTED_ONLY = frozenset({
    "too_short", "too_long", "too_few_words", "too_many_words", "too_few_sentences", "too_many_sentences", "copied_through",
    "html", "html_entity",
})  # fmt: skip
MOST_ADJUDICATED = 0.03  # of a file's rows
TARGETS = {"title": 20_000, "description": 5_000}
PLANTS = 400  # per fault kind and task
SEED = 20260301

Row = dict[str, Any]


def read(path: Path) -> Iterator[Row]:
    """Rows of a JSON Lines file; lines are split at newlines only."""
    with path.open("rb") as file:
        for line in file:
            if line.strip():
                yield json.loads(line)


def source_of(row: Row, **changes: str) -> Row:
    values = {name: row.get(name) or "" for name in ("title", "description", "brand", "merchant_id", "locale")}
    return values | {"attributes": json.dumps(row.get("attributes") or {}, ensure_ascii=False)} | changes


def text_of(row: Row, field: str) -> str:
    return str(row.get(field) or "").strip()


class Adjudications:
    """Alarms that a reader agreed with, by file, row, field and validator."""

    def __init__(self, path: Path) -> None:
        rows = list(read(path)) if path.exists() else []
        self.agreed = {(r["file"], r["id"], r["field"], r["validator"]) for r in rows}
        self.rows_by_file = Counter(name for name, _ in {(r["file"], r["id"]) for r in rows})

    def holds(self, *key: str) -> bool:
        return key in self.agreed

    def check_share(self, file: str, rows: int) -> None:
        if self.rows_by_file[file] > MOST_ADJUDICATED * rows:
            sys.exit(f"{file}: {self.rows_by_file[file]} of {rows} rows adjudicated, more than {MOST_ADJUDICATED:.0%}")


def false_alarms(data: Path, checkers: dict[str, Checker], adjudications: Adjudications, alarms: Path) -> Row:
    """Rates by file and validator; every alarm goes to `alarms` for a reader."""
    raw: dict[str, dict[str, float]] = {}
    adjudicated: dict[str, dict[str, float]] = {}
    texts: dict[str, int] = {}
    codes = [code for code, v in validators().items() if code not in v.flags]
    with alarms.open("w", encoding="utf-8") as out:
        for name in (*FILES, PAIRS):
            hits, agreed, judged, rows = Counter[str](), Counter[str](), 0, 0
            for row in read(data / name):
                rows += 1
                for key, field, source, text in _trials(name, row):
                    judged += 1
                    outcome = checkers[field].check(Source.from_json(source), text)
                    for code in outcome.reasons:
                        if (code in COMPARING) != (name == PAIRS):
                            continue
                        hits[code] += 1
                        agreed[code] += adjudications.holds(name, key, field, code)
                        out.write(
                            json.dumps(
                                {"file": name, "id": key, "field": field, "validator": code, "text": text},
                                ensure_ascii=False,
                            )
                            + "\n"
                        )
            adjudications.check_share(name, rows)
            measured = [c for c in codes if (c in COMPARING) == (name == PAIRS)]
            texts[name] = judged
            raw[name] = {c: round(hits[c] / judged, 6) for c in measured}
            adjudicated[name] = {c: round((hits[c] - agreed[c]) / judged, 6) for c in measured}
    return {
        "false_alarm_rate_raw": raw,
        "false_alarm_rate": adjudicated,
        "texts": texts,
        "adjudicated_rows": dict(adjudications.rows_by_file),
    }


def _trials(name: str, row: Row) -> Iterator[tuple[str, str, Row, str]]:
    """Row id, field, source and the human text that is passed off as output."""
    if name == PAIRS:
        if row["label"] == 1:
            source = {"title": "", "description": row["source"], "locale": "en-US"}
            yield row["id"], "description", source, row["generated"]
        return
    for field, other in (("title", "description"), ("description", "title")):
        text = text_of(row, field)
        if text:
            yield row["listing_id"], field, source_of(row, **{field: "", other: text_of(row, other)}), text


def sound_rows(data: Path, checkers: dict[str, Checker], field: str) -> list[Case]:
    """Listings whose own text passes every validator: a fault planted there is the only one."""
    cases = []
    for name in FILES:
        for row in read(data / name):
            text = text_of(row, field)
            source = source_of(row)
            if text and checkers[field].check(Source.from_json(source), text).ok:
                cases.append(Case(source, text))
    return cases


def recall(data: Path, checkers: dict[str, Checker], settings: Settings, missed: Path) -> Row:
    """Share of planted faults that the expected validators caught, by fault kind; the misses go to a file."""
    planted, caught = Counter[str](), Counter[str]()
    with missed.open("w", encoding="utf-8") as out:
        for field in TARGETS:
            cases = sound_rows(data, checkers, field)
            for kind, fault in FAULTS.items():
                if field not in fault.tasks:
                    continue
                rng = random.Random(f"{SEED}-{field}-{kind}")
                usual = _checker_with(settings, field, fault.settings) if fault.settings else checkers[field]
                done = 0
                for case in rng.sample(cases, len(cases)):
                    if done == PLANTS:
                        break
                    faulty = fault.plant(case, rng)
                    if faulty is None:
                        continue
                    done += 1
                    planted[kind] += 1
                    checker = usual if faulty.thinking is None else _checker_with(settings, field, {}, faulty.thinking)
                    found = checker.check(Source.from_json(faulty.source), faulty.output, faulty.finish_reason)
                    if fault.reasons.isdisjoint(found.reasons):
                        out.write(
                            json.dumps({"kind": kind, "task": field, "output": faulty.output, "got": found.reasons})
                            + "\n"
                        )
                    else:
                        caught[kind] += 1
    return {
        "recall": {kind: round(caught[kind] / planted[kind], 4) if planted[kind] else None for kind in FAULTS},
        "planted": {kind: planted[kind] for kind in FAULTS},
    }


def language_recall(data: Path, checkers: dict[str, Checker], missed: Path) -> Row:
    """Published translations of the same product passed off as output: whole, and half of it behind half of the original."""
    by_product: dict[str, dict[str, str]] = defaultdict(dict)
    titles: dict[str, str] = {}
    for row in read(data / "listings_multilocale_mit.jsonl"):
        key, text, locale = (row.get("attributes") or {}).get("product_key"), text_of(row, "description"), row["locale"]
        if key and text and locale[2:3] == "-":
            by_product[row["merchant_id"] + key][locale] = text
            titles[row["merchant_id"] + key] = text_of(row, "title")
    planted, caught = Counter[str](), Counter[str]()
    least = checkers["description"].context.settings.min_letters_for_language
    with missed.open("a", encoding="utf-8") as out:
        for _, texts in sorted(by_product.items()):
            for home, text in sorted(texts.items()):
                for away, other in sorted(texts.items()):
                    if home[:2] == away[:2] or text == other:
                        continue
                    source = Source(title="", description=text, locale=home)
                    sentences = [s for s in text.replace("! ", ". ").split(". ") if s]
                    mixed = ". ".join([*sentences[: max(1, len(sentences) // 2)], other])
                    for kind, output in (("language_switch", other), ("half_switched", mixed)):
                        if sum(map(str.isalpha, other)) < 1.5 * least:
                            continue
                        planted[kind] += 1
                        reasons = checkers["description"].check(source, output).reasons
                        if {"language_switch", "script_leak"} & set(reasons):
                            caught[kind] += 1
                        else:
                            out.write(json.dumps({"kind": kind, "home": home, "away": away, "output": output}) + "\n")
    return {"recall": {k: round(caught[k] / planted[k], 4) for k in planted}, "planted": dict(planted)}


def _checker_with(settings: Settings, task: str, changes: Row, thinking: bool | None = None) -> Checker:
    found = settings.task(task)
    changed = found.model_copy(update={"validators": found.validators.model_copy(update=changes)})
    return Checker(changed, thinking=thinking)


def rows_per_s(data: Path, settings: Settings) -> dict[str, float]:
    """Rows per second of processor time on one core, all validators on, best of five rounds.

    Half of the outputs are the listing's own text, half are its words in another order, so that numbers and phrases do not
    stand in the source letter for letter. Every check gets a Source of its own, so that nothing is known of it beforehand.
    Rows are checked in batches, as the validation stage does it.
    """
    rates = {}
    for field in TARGETS:
        checker = _checker_with(
            settings, field, {"max_copied_ratio": 0.999, "banned_terms": {"*": ("miracle cure", "best price")}}
        )
        limit = settings.task(field).validators.length.max_chars
        rows: list[tuple[tuple[str, ...], str]] = []
        for name in FILES:
            for number, row in enumerate(read(data / name)):
                words = text_of(row, field).split()
                if not words or len(" ".join(words)) > limit:
                    continue
                turn = len(words) // 2 if number % 2 else 0
                source = Source.from_json(source_of(row))
                parts = (source.title, source.description, source.brand, source.merchant_id, source.locale)
                rows.append(((*parts, source.attributes), " ".join(words[turn:] + words[:turn])))
        random.Random(SEED).shuffle(rows)
        rows = rows[:4000]
        best = 0.0
        for _ in range(5):
            started = time.process_time()
            for at in range(0, len(rows), BATCH_ROWS):
                checker.check_all((Source(*source), text, "stop") for source, text in rows[at : at + BATCH_ROWS])
            best = max(best, len(rows) / (time.process_time() - started))
        rates[field] = round(best, 1)
    return rates


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench")
    options = parser.parse_args()
    absent = [name for name in (*FILES, PAIRS) if not (options.data / name).exists()]
    if absent:
        print(f"no real listings at {options.data} ({', '.join(absent)} missing): nothing measured", file=sys.stderr)
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    settings = load_settings()
    checkers = {field: Checker.of(settings, field) for field in TARGETS}
    print("speed …", file=sys.stderr)
    result: Row = {"rows_per_s": rows_per_s(options.data, settings), "targets_rows_per_s": TARGETS}
    print("false alarms …", file=sys.stderr)
    adjudications = Adjudications(ROOT / "benchmarks" / "adjudications.jsonl")
    result |= false_alarms(options.data, checkers, adjudications, options.out / "validation-alarms.jsonl")
    print("planted faults …", file=sys.stderr)
    missed = options.out / "validation-missed.jsonl"
    result |= recall(options.data, checkers, settings, missed)
    languages = language_recall(options.data, checkers, missed)
    result["recall"] |= languages["recall"]
    result["planted"] |= languages["planted"]
    barred = {
        (file, code): rate
        for file, rates in result["false_alarm_rate"].items()
        for code, rate in rates.items()
        if code not in REPORTED_ONLY
    }
    result["worst"] = {
        "false_alarm": max((rate, file, code) for (file, code), rate in barred.items()),
        "recall": min((share, kind) for kind, share in result["recall"].items() if share is not None),
    }
    result["machine"] = {"cpus": os.cpu_count(), "load": round(os.getloadavg()[0], 2), "python": sys.version.split()[0]}
    (options.out / "validation.json").write_text(json.dumps(result, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    print(json.dumps({"rows_per_s": result["rows_per_s"], "worst": result["worst"]}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
