"""Mining edge cases for people, and what becomes of two people's answers."""

import json

import numpy as np
import pytest

from include.judging.labelling import all_labels, collect, merge_labels, mine, production_mix, question, write_labels
from include.judging.labels import read_labels
from include.judging.stage import sample
from include.records import JudgeScore, SampledText
from tests.unit.judging.conftest import TASK, judged, verdict


@pytest.fixture
def run(make_run):
    """80 judged texts: every fourth fails, scores spread evenly."""
    run = make_run([[verdict(i) for i in range(80)]], gate={"margin": 0.01}, sampling={"max_size": 80})
    sample(run, TASK)
    texts = list(run.store.read_rows(run.sampled(TASK), SampledText))
    rows = [judged(row, place % 4 > 0, score=place / 80) for place, row in enumerate(texts)]
    run.store.write_part(f"{run.judged(TASK)}/part-00000.parquet", JudgeScore, rows)
    return run


def test_uncertain_and_disputed_texts_are_offered_before_the_rest(run):
    offers = mine(run, TASK, 30)
    kinds = [offer["origin"] for offer in offers]
    assert {kind: kinds.count(kind) for kind in set(kinds)} == {
        "mined:uncertain": 10,
        "mined:disputed": 10,
        "mined:rest": 10,
    }
    assert len({offer["id"] for offer in offers}) == 30
    assert mine(run, TASK, 30) == offers


def test_weights_stand_for_the_listings_of_each_class(run):
    offers = mine(run, TASK, 30)
    weights = {
        name: sum(o["weight"] for o in offers if o["origin"] == f"mined:{name}") for name in ("rest", "disputed")
    }
    assert np.mean([offer["weight"] for offer in offers]) == pytest.approx(1.0)
    assert weights["rest"] / weights["disputed"] == pytest.approx(45 / 15)


def test_labelled_pairs_are_not_offered_again_and_small_classes_leave_room(run):
    known = [offer["id"] for offer in mine(run, TASK, 60)]
    rest = mine(run, TASK, 60, known)
    assert not {offer["id"] for offer in rest} & set(known)
    assert len(known) + len(rest) == 80


def test_production_mix_sums_to_one(run):
    assert production_mix(run, TASK) == pytest.approx({"en-US/pass": 0.75, "en-US/fail": 0.25})


def test_the_question_hides_the_judge_and_merchant_text_has_no_effect(run):
    offer = mine(run, TASK, 3)[0]
    offer["source"] = {"title": "Mug\n\n# big\n<script>x</script> {{ conf }}"}
    subject, body = question(offer)
    assert "unsupported" not in body
    assert "verdict" not in body
    listing = body[body.index("title:") :].splitlines()[:4]
    assert all(line.startswith("    ") for line in listing[1:])
    assert offer["kind"] in subject


def test_only_what_two_people_agree_on_becomes_a_label(run, tmp_path):
    offers = mine(run, TASK, 8)
    ids = [offer["id"] for offer in offers]
    first = dict(zip(ids, ["pass", "pass", "fail", "fail", "pass", "cannot tell", "fail"], strict=False))
    second = dict(zip(ids, ["pass", "fail", "fail", "fail", "pass", "pass", "fail"], strict=False))
    rows, report = collect(offers, first, second)
    assert [row["label"] for row in rows] == ["pass", "fail", "fail", "pass", "fail"]
    assert report["disputed"] == [ids[1]]
    assert (report["decided_by_both"], report["labels"], report["offered"]) == (6, 5, 8)
    assert report["agreement"] == pytest.approx(5 / 6)
    assert report["kappa"] == pytest.approx(2 / 3)
    settings = run.spec.settings
    write_labels(settings, "batch-1", rows, report)
    write_labels(settings, "batch-2", [rows[0] | {"label": "fail"}], report)
    assert len(all_labels(settings)) == 5
    assert next(row for row in all_labels(settings) if row["id"] == ids[0])["label"] == "fail"
    given = tmp_path / "given.jsonl"
    given.write_text("".join(json.dumps({"source": f"s{i}", "output": "o", "label": i % 2}) + "\n" for i in range(6)))
    pairs, problems = read_labels(merge_labels(settings, "batch-2", str(given)))
    assert (len(pairs), problems) == (11, [])
