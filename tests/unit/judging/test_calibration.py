"""Labels, fitting, storing and refusing a calibration."""

import json
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from include.judging import __main__ as command
from include.judging.agreement import Comparison, clustered_rate, kappa, length_bias, table
from include.judging.calibrate import calibrate, reversed_source
from include.judging.calibration import calibration_in_force, current_calibration, refusals, store_calibration
from include.judging.fitting import compare, cross_fitted, fit, flips, pick_threshold, stored_verdicts
from include.judging.labels import LabelsError, read_labels, reweighted
from include.judging.rubric import rubric_version
from include.records import JudgeScore, JudgeVerdict
from include.settings import SettingsError, load_settings
from tests.unit.judging.test_scoring import CLEAN, Judge

PASS, FAIL = JudgeVerdict.PASS, JudgeVerdict.FAIL


def write_labels(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def labelled(count=200, se=0.9, sp=0.85):
    """Rows whose stored judge "flipper" agrees with people at these rates."""
    random = np.random.default_rng(3)
    rows = []
    for number in range(count):
        good = bool(random.random() < 0.6)
        said = good if random.random() < (se if good else sp) else not good
        rows.append(
            {
                "id": f"r{number}",
                "source": {"title": f"Mug {number % 40}", "description": "Blue. 300 ml."},
                "output": "A blue mug" + " of stoneware" * int(random.integers(0, 5)),
                "label": int(good),
                "error_type": "none" if good else "incorrect",
                "locale": ("en-US", "de-DE")[number % 2],
                "judge_labels": {"flipper": {"label": int(said)}},
            }
        )
    return rows


@pytest.fixture
def pairs(tmp_path):
    return read_labels(write_labels(tmp_path / "labels.jsonl", labelled()))[0]


@pytest.fixture
def settings(tmp_path):
    found = load_settings()
    pipeline = found.pipeline.model_copy(update={"state_url": str(tmp_path / "state")})
    task = found.task("title")
    task = task.model_copy(update={"gate": task.gate.model_copy(update={"mode": "calibrated"})})
    judge = found.judge.model_copy(update={"calibration": None, "max_calibration_age_days": 180})
    return found.model_copy(update={"pipeline": pipeline, "tasks": found.tasks | {"title": task}, "judge": judge})


def fitted(pairs, settings, **values):
    scores = stored_verdicts(pairs, "flipper")
    lineage = settings.engines[settings.judge.engine].lineage
    return fit(pairs, scores, settings, **({"judge_model": lineage, "rubric": rubric_version(settings.judge)} | values))


def test_bad_rows_are_named_and_left_out(tmp_path):
    rows = [*labelled(10), {"source": "x", "output": "y"}, {"source": "x", "output": "y", "label": 0.5}, 7]
    path = tmp_path / "labels.jsonl"
    write_labels(path, [*rows, labelled(1)[0]])
    path.write_text(path.read_text() + "{cut\n")
    found, problems = read_labels(path)
    assert len(found) == 10
    assert [problem.split(":")[0] for problem in problems] == [f"line {n}" for n in (11, 12, 13, 14, 15)]


@pytest.mark.parametrize("rows", [[], [row | {"label": 1} for row in labelled(5)]])
def test_labels_of_one_kind_cannot_measure_a_judge(tmp_path, rows):
    with pytest.raises(LabelsError, match="both are needed"):
        read_labels(write_labels(tmp_path / "l.jsonl", rows))


def test_an_absent_file_is_a_clear_error(tmp_path):
    with pytest.raises(LabelsError, match="cannot read"):
        read_labels(tmp_path / "none.jsonl")


def test_pairs_of_one_source_are_one_document(pairs):
    assert len({pair.document for pair in pairs}) == 40


def test_kappa_by_hand():
    assert kappa([[20, 5], [10, 15]]) == pytest.approx(0.4)
    assert np.isnan(kappa([[50, 0], [0, 0]]))


def comparison(document, human, judge, **values):
    return Comparison(document=document, human=human, judge=judge, **values)


def test_repeats_of_one_document_do_not_count_as_evidence():
    rows = [comparison(str(d), True, d % 2 == 0) for d in range(40)]
    repeated = [row for row in rows for _ in range(10)]
    once, often = (clustered_rate(found, lambda r: r.judge) for found in (rows, repeated))
    assert once[0] == often[0]
    assert often[1] == pytest.approx(once[1], rel=0.05)


def test_length_bias_is_seen():
    fair = [comparison("d", i % 3 > 0, i % 3 > 0, length=i) for i in range(90)]
    biased = [comparison("d", i % 3 > 0, i > 45, length=i) for i in range(90)]
    assert np.isnan(length_bias(fair)["spearman"])
    assert length_bias(biased)["spearman"] > 0.5


def test_threshold_separates_and_never_looks_at_its_own_document():
    random = np.random.default_rng(4)
    rows = []
    for document in range(60):
        for _ in range(4):
            human = bool(random.random() < 0.5)
            score = float(np.clip(random.normal(0.7 if human else 0.4, 0.15), 0, 1))
            rows.append(comparison(str(document), human, True, score=score))
    assert 0.45 < pick_threshold(rows) < 0.65
    before, after = kappa(table(rows)), kappa(table(cross_fitted(rows)))
    assert np.isnan(before) or before == 0.0
    assert after > 0.5
    odd = [comparison("odd", False, True, score=0.99)] * 200
    spoiled = cross_fitted([*rows, *odd])
    assert all(row.judge for row in spoiled if row.document == "odd"), "its own rows would have raised the threshold"


def test_no_scores_no_threshold():
    assert pick_threshold([comparison("a", True, True), comparison("b", False, False)]) == 0.0


def test_fit_recovers_the_judge(pairs, settings):
    found = fitted(pairs, settings)
    assert found.sensitivity == pytest.approx(0.9, abs=0.07)
    assert found.specificity == pytest.approx(0.85, abs=0.1)
    assert found.report["refusals"] == []
    assert found.report["kappa_ci95"][0] < found.kappa < found.report["kappa_ci95"][1]
    assert set(found.report["locales"]) == {"en-US", "de-DE"}
    assert found.report["error_kinds"]["incorrect"]["caught"] == pytest.approx(found.specificity)
    json.dumps(found.report, allow_nan=False)


def test_judge_errors_are_counted_and_left_out(pairs, settings):
    scores = stored_verdicts(pairs, "flipper")
    scores["r0"] = JudgeScore(text_id="r0", stratum="", weight=1, verdict=JudgeVerdict.ERROR)
    del scores["r1"]
    found = fit(pairs, scores, settings, judge_model="m", rubric="r")
    assert found.report["judged"] == 198
    assert found.report["verdicts"]["judge_error"] == found.report["verdicts"]["unanswered"] == 1


def test_a_calibration_is_stored_and_found_again(pairs, settings):
    found = fitted(pairs, settings)
    assert current_calibration(settings, "title") is None
    store_calibration(settings, found)
    assert current_calibration(settings, "title") == found
    assert calibration_in_force(settings, "title") == (found, [])
    own = fitted(pairs[:150], settings)
    store_calibration(settings, own, "title")
    assert current_calibration(settings, "title").version == own.version != found.version
    assert current_calibration(settings, "description").version == found.version


def test_a_calibration_that_cannot_be_read_is_named_with_the_next_step(pairs, settings, tmp_path):
    shipped = tmp_path / "calibration.json"
    configured = settings.judge.model_copy(update={"calibration": str(shipped)})
    found = fitted(pairs, settings)
    impossible = [
        {"sensitivity": 90.0},
        {"specificity": 85.0},
        {"passed_pairs": -1.0},
        {"failed_pairs": -1.0},
    ]  # percent, say
    wrong = [found.model_copy(update=values).model_dump_json() for values in impossible]
    for content in ("{", "{}", "\x00", *wrong):
        shipped.write_text(content)
        with pytest.raises(SettingsError, match=r"calibration\.json is not a calibration: .*judging calibrate"):
            current_calibration(settings.model_copy(update={"judge": configured}), "title")


def test_refused_when_stale_weak_or_for_another_judge_or_rubric(pairs, settings):
    found = fitted(pairs, settings)
    now = datetime.now(UTC)
    assert refusals(found, settings, now) == []
    assert "no calibration" in refusals(None, settings)[0]
    assert "days old" in refusals(found, settings, now + timedelta(days=365))[0]
    assert "for judge 'other'" in refusals(found.model_copy(update={"judge_model": "other"}), settings, now)[0]
    assert "rubric" in refusals(found.model_copy(update={"rubric": "old"}), settings, now)[0]
    assert "kappa" in refusals(found.model_copy(update={"kappa": 0.02}), settings, now)[0]
    assert "Youden" in refusals(found.model_copy(update={"specificity": 0.3}), settings, now)[0]
    changed = settings.model_copy(update={"judge": settings.judge.model_copy(update={"max_claims": 9})})
    assert "rubric" in refusals(found, changed, now)[0]


def test_mined_labels_are_weighted_to_the_production_mix(pairs):
    """Labels mined by the judge's verdict over-represent failures; weights undo it (verification bias)."""
    random = np.random.default_rng(8)
    truth = random.random(40_000) < 0.8
    said = np.where(random.random(40_000) < np.where(truth, 0.9, 0.7), truth, ~truth)
    production = {"/pass": float(said.mean()), "/fail": float(1 - said.mean())}
    chosen = np.concatenate([np.flatnonzero(said)[:500], np.flatnonzero(~said)[:1500]])
    base = pairs[0]
    mined = [
        type(base)(
            id=str(i), document=str(i), source={}, output="x", passed=bool(truth[i]), judges={"j": bool(said[i])}
        )
        for i in chosen
    ]

    def sensitivity(found):
        return clustered_rate([compare(p, p.judges["j"]) for p in found if p.passed], lambda r: r.judge)[0]

    weighted, uncovered = reweighted(mined, lambda p: "/pass" if p.judges["j"] else "/fail", production)
    assert uncovered == []
    assert sensitivity(mined) < 0.75
    assert sensitivity(weighted) == pytest.approx(0.9, abs=0.03)
    assert sum(p.weight for p in weighted) == pytest.approx(len(mined))
    assert reweighted(mined, lambda p: "a", {"a": 0.5, "b": 0.5})[1] == ["b"]


def test_flips_and_reordering(pairs):
    first = stored_verdicts(pairs, "flipper")
    second = first | {"r0": JudgeScore(text_id="r0", stratum="", weight=1, verdict=FAIL)}
    second["r0"] = JudgeScore(text_id="r0", stratum="", weight=1, verdict=FAIL if first["r0"].verdict is PASS else PASS)
    assert flips(pairs, first, second) == {"pairs": 200, "share": pytest.approx(1 / 200)}
    values = {"description": "One. Two. Three.", "attributes": "a: 1; b: 2", "title": "t"}
    assert reversed_source(values) == {"description": "Three. Two. One.", "attributes": "b: 2; a: 1", "title": "t"}
    assert reversed_source(values | {"description": "a\nb"})["description"] == "b\na"


def test_calibrate_writes_calibration_report_and_plot_and_names_a_weak_judge(tmp_path, settings):
    labels = write_labels(tmp_path / "labels.jsonl", labelled(se=0.05, sp=0.97))
    found = calibrate(labels, str(tmp_path / "out" / "c.json"), settings, stored_judge="flipper")
    assert any("too weak" in reason for reason in found.report["refusals"])
    assert "REFUSED" in (tmp_path / "out" / "c.md").read_text()
    assert (tmp_path / "out" / "c.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "out" / "c.json").read_text())["version"] == found.version
    with pytest.raises(LabelsError, match="flipper"):
        calibrate(labels, str(tmp_path / "c.json"), settings, stored_judge="nobody")


def test_a_judge_that_fails_nearly_everything_has_no_agreement_and_is_not_put_in_force(tmp_path, settings, monkeypatch):
    """As published for a strong model: people fail 35%, it fails 97%, whatever the text."""
    said = {(True, True): 9, (True, False): 251, (False, True): 3, (False, False): 137}  # person, judge
    rows = labelled(400)
    for row, (human, judge) in zip(rows, (cell for cell, n in said.items() for _ in range(n)), strict=True):
        row |= {"label": int(human), "judge_labels": {"strict": {"label": int(judge)}}}
    labels, out = write_labels(tmp_path / "labels.jsonl", rows), str(tmp_path / "c.json")
    observed = (9 + 137) / 400
    expected = (260 * 12 + 140 * 388) / 400**2
    monkeypatch.setattr("include.settings.load_settings", lambda: settings)
    arguments = ["calibrate", "--labels", labels, "--out", out, "--stored-judge", "strict"]
    found = command._calibrate(command._parser().parse_args(arguments))
    assert json.loads((tmp_path / "c.json").read_text())["kappa"] == pytest.approx(
        (observed - expected) / (1 - expected)
    )
    assert [reason.split(" is below")[0] for reason in found["refusals"]] == [
        "the judge is too weak: kappa 0.009",
        "the judge is too weak: Youden index 0.013",
    ]
    with pytest.raises(LabelsError, match="not put in force: the judge is too weak"):
        command._calibrate(command._parser().parse_args([*arguments, "--store", "title"]))
    assert current_calibration(settings, "title") is None


def test_the_configured_file_counts_while_none_is_stored(pairs, settings, tmp_path):
    shipped = fitted(pairs, settings)
    (tmp_path / "shipped.json").write_text(shipped.model_dump_json())
    judge = settings.judge.model_copy(update={"calibration": str(tmp_path / "shipped.json")})
    settings = settings.model_copy(update={"judge": judge})
    assert current_calibration(settings, "title") == shipped
    own = fitted(pairs[:150], settings)
    store_calibration(settings, own)
    assert current_calibration(settings, "title").version == own.version


def test_the_configured_judge_is_asked_once_and_its_flips_are_reported(tmp_path, settings):
    rows = labelled(40)
    faulty = {row["id"] for row in rows if not row["label"]}
    labels, out = write_labels(tmp_path / "labels.jsonl", rows), str(tmp_path / "c.json")
    wrong = json.dumps({"unsupported": ["2 litres"], "contradictory": [], "omitted": [], "verdict": "fail"})
    flipping = next(row["id"] for row in rows if row["label"]) + "#reversed"

    def reply(key, attempt):
        return wrong if key.removesuffix("#reversed") in faulty or key == flipping else CLEAN

    judge = Judge(reply)
    found = calibrate(labels, out, settings, opener=judge)
    assert (found.kappa, found.sensitivity, found.specificity) == (1.0, 1.0, 1.0)
    assert found.judge_model == settings.engines[settings.judge.engine].lineage
    assert found.rubric == rubric_version(settings.judge)
    assert found.report["flips"]["share"] == pytest.approx(1 / 40)
    assert found.report["refusals"] == []
    assert len(judge.asked) == 80
    assert calibrate(labels, out, settings, opener=judge).version == found.version
    assert judge.starts == 1, "answers are kept: a second calibration starts no engine"


def test_pairs_are_weighted_to_the_production_mix_and_uncovered_cells_are_named(tmp_path, settings):
    labels, out = write_labels(tmp_path / "labels.jsonl", labelled()), str(tmp_path / "c.json")
    mix = {"en-US/pass": 0.5, "de-DE/pass": 0.3, "de-DE/fail": 0.1, "fr-FR/fail": 0.1}
    found = calibrate(labels, out, settings, stored_judge="flipper", production=mix)
    assert found.report["uncovered_cells"] == ["fr-FR/fail"]
    assert found.report["judge_pass_rate"] == pytest.approx(0.8 / 0.9)
