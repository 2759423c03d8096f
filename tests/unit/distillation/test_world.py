"""The synthetic world: reproducible, split cleanly, and truthful in what it claims about its own copy."""

from __future__ import annotations

import csv
import json
import random
from collections import Counter
from pathlib import Path

import pytest

from include.distillation import copywriting, merchants, oracle, pairs
from include.distillation.pairs import Rewrite, as_extracted
from include.distillation.world import LOCALES, Quantity, categories, data, nouns, sample_product, slots
from include.settings import PROJECT_ROOT, load_settings
from include.validation.checker import Checker
from include.validation.view import Source

SAMPLE = PROJECT_ROOT / "include" / "samples" / "listings.csv"


def test_the_same_seed_gives_the_same_listings() -> None:
    assert list(merchants.examples(3, 20, "train")) == list(merchants.examples(3, 20, "train"))
    assert list(merchants.examples(3, 5, "train")) != list(merchants.examples(4, 5, "train"))


def test_categories_brands_and_wordings_of_the_evaluation_set_are_held_out() -> None:
    assert len(categories("train")) + len(categories("held_out")) >= 40
    assert not set(categories("train")) & set(categories("held_out"))
    brands = data("brands")
    assert not set(brands["train"]) & set(brands["held_out"])
    for language in ("en", "de", "fr"):
        for part in ("copy", "source"):
            for kind, frames in data("frames")[part][language].items():
                assert not set(frames["train"]) & set(frames["held_out"]), (language, part, kind)


def test_training_products_never_carry_a_held_out_noun_or_brand() -> None:
    held_out = {noun for key in categories("held_out") for locale in LOCALES for _, noun in nouns(key, locale)}
    rng = random.Random(1)
    for locale in LOCALES:
        for _ in range(400):
            product = sample_product(rng, "train", locale)
            assert product.noun not in held_out
            assert product.brand not in data("brands")["held_out"]


@pytest.mark.parametrize("locale", LOCALES)
@pytest.mark.parametrize("split", ["train", "held_out"])
def test_reference_copy_is_faithful_fits_the_limits_and_passes_the_validators(locale: str, split: str) -> None:
    checker, rng = Checker.of(load_settings(), "title"), random.Random(2)
    words, sentences = [], []
    for listing, product in merchants.examples(5, 60, split, (locale,), (1,)):
        seen = as_extracted(listing)
        for task in ("title", "description"):
            text = copywriting.write(task, product, rng, split)
            found = oracle.check(product, seen, text)
            assert found.faithful, (text, found, listing)
            assert not found.omitted, (text, listing)
            if task == "title":
                words.append(len(text.split()))
                source = {name: getattr(seen, name) for name in ("title", "description", "brand", "locale")}
                source["attributes"] = json.loads(seen.attributes)
                outcome = checker.check(Source.from_json(source), text)
                assert outcome.ok, (text, outcome.reasons, listing)
            else:
                sentences.append(text.count(". ") + 1)
    assert 5 <= sum(words) / len(words) <= 9
    assert 3 <= sum(sentences) / len(sentences) <= 5


def test_corrupted_copy_carries_its_fault_and_the_oracle_finds_it() -> None:
    rng, planted, found = random.Random(3), 0, 0
    for listing, product in merchants.examples(6, 200, "held_out"):
        for task in ("title", "description"):
            copy = copywriting.labelled_copy(task, product, rng, "held_out")
            for quote in (*copy.unsupported, *copy.contradictory):
                assert quote in copy.text
            if not copy.faithful:
                planted += 1
                found += not oracle.check(product, as_extracted(listing), copy.text).faithful
    assert planted > 150
    assert found >= 0.98 * planted


def test_grammar_follows_gender_and_vowels() -> None:
    product = sample_product(random.Random(1), "held_out", "fr-FR", "jump_rope")
    text = slots(product)
    assert (text["a_noun"], text["the_noun"], text["it"]) == ("une corde à sauter", "la corde à sauter", "elle")
    assert slots(sample_product(random.Random(1), "held_out", "fr-FR", "watering_can"))["the_noun"] == "l'arrosoir"
    assert slots(sample_product(random.Random(1), "held_out", "en-US", "kettle"))["a_noun"] in {
        "an electric kettle",
        "a kettle",
    }
    assert Quantity("capacity", 1.5, "l").text("de-DE") == "1,5 l"
    assert Quantity("capacity", 1.5, "l").text("en-US") == "1.5 L"


def test_the_sample_catalog_is_what_the_world_writes_and_messy_enough() -> None:
    with SAMPLE.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows == merchants.sample_catalog()
    assert len(rows) >= 300
    assert len({row["merchant_id"] for row in rows}) >= 8
    assert {row["locale"] for row in rows} == set(LOCALES)
    assert len({row["category"] for row in rows if row["category"] and row["locale"] == "en-US"}) >= 15
    assert len({(row["merchant_id"], row["listing_id"]) for row in rows}) == len(rows)
    texts = [f"{row['title']} {row['description']}" for row in rows]
    assert any("\0" in text for text in texts)
    assert any("Ignore all previous instructions" in text for text in texts)
    assert any("&amp;" in text for text in texts)
    assert any("<li>" in text for text in texts)
    assert any(row["title"].isupper() for row in rows)
    assert sum(not row["description"] for row in rows) >= 10
    assert sum(len(text) > 10_000 for text in texts) == 1
    contents = [(row["merchant_id"], row["title"], row["description"], row["attributes"]) for row in rows]
    assert len(set(contents)) < len(contents)
    assert SAMPLE.stat().st_size < 400_000


def test_balanced_judge_pairs_hold_no_more_faithful_rewrites_than_faulty_ones(tmp_path: Path) -> None:
    rng = random.Random(5)
    made = [
        Rewrite("title", listing, product, copywriting.labelled_copy("title", product, rng, faulty=index % 5 == 0).text)
        for index, (listing, product) in enumerate(merchants.examples(8, 60, "train"))
    ]
    pairs.write_jsonl(tmp_path / "rewrites.jsonl", map(pairs.to_row, made))
    answers = [
        json.loads(row["completion"][0]["content"]) for row in pairs.judge_pairs(tmp_path / "rewrites.jsonl", True)
    ]
    verdicts = Counter(answer["verdict"] for answer in answers)
    assert verdicts["fail"] == sum(not pairs.labelled_row(rewrite)["label"] for rewrite in made) > 0
    assert 0 < verdicts["pass"] <= verdicts["fail"]
    assert len(list(pairs.judge_pairs(tmp_path / "rewrites.jsonl", False))) == len(made)
