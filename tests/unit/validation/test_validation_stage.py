"""One bin through the stage: joins, accounting, quarantine, repeatability, the circuit breaker."""

import json
import subprocess
import sys

from include.partitions import Store
from include.records import QuarantinedRow, RunCounts, Verdict
from include.validation import stage
from include.validation.__main__ import main
from include.validation.breaker import wilson_lower
from include.validation.stage import validate
from tests.validating import answer, settings_with, work_item


def rows(run: object, folder: str, record: type) -> list:
    return list(run.store.read_rows(folder, record))  # type: ignore[attr-defined]


def test_every_work_item_ends_in_one_state(make_run) -> None:
    items = [work_item(n) for n in range(7)]
    bin_rows = [
        (items[0], answer(items[0])),
        (items[1], answer(items[1], "Here is the rewritten title: dripper")),
        (items[2], None),
        (items[3], answer(items[3], "", finish_reason="", error="engine stopped")),
        (items[4], answer(items[4], "", finish_reason="", error="input_too_long: 9000 tokens", quarantine=True)),
        (items[5], answer(items[5], '"Acme ceramic dripper with stand"')),
        (items[6], answer(items[6], "", finish_reason="stop")),
    ]
    run = make_run([bin_rows])
    manifest = validate(run, "title", 0)
    counts = RunCounts.from_dict(manifest["counts"])
    counts.check_closed()
    assert (counts.extracted, counts.accepted, counts.errored) == (7, 2, 2)
    assert counts.quarantined == {"meta_text": 1, "input_too_long": 1, "empty_output": 1}
    assert sum(cell["rows"] for cell in manifest["aggregate"]) == 7
    assert {cell["reason"] for cell in manifest["aggregate"]} == {
        "",
        "errored",
        "meta_text",
        "input_too_long",
        "empty_output",
    }
    assert manifest["repairs"] == {"outer_quotes": 1}
    verdicts = {v.listing_id: v for v in rows(run, run.verdicts("title", 0), Verdict)}
    assert verdicts["L00005"].output == "Acme ceramic dripper with stand"
    assert all(v.ok is (not v.reasons) for v in verdicts.values())
    quarantined = {q.listing_id: q for q in rows(run, run.quarantine("title", "validate", 0), QuarantinedRow)}
    assert {q.reason for q in quarantined.values()} == {"meta_text", "input_too_long", "empty_output"}
    assert quarantined["L00004"].stage == "generate"
    assert quarantined["L00004"].detail == "9000 tokens"
    assert run.store.read_json(run.manifest("title", "validate", 0)) == json.loads(json.dumps(manifest))


def test_batches_change_no_verdict(make_run, monkeypatch) -> None:
    items = [work_item(n) for n in range(6)]
    texts = ["Here is the rewritten title: dripper", None, "Acme ceramic dripper", "", "Acme ceramic dripper \u2605"]
    answers = [(i, None if text is None else answer(i, text)) for i, text in zip(items, texts, strict=False)]
    run = make_run([[*answers, (items[5], answer(items[5], "Acme ceramic dripper with", finish_reason="length"))]])
    validate(run, "title", 0)
    whole = rows(run, run.verdicts("title", 0), Verdict)
    monkeypatch.setattr(stage, "BATCH_ROWS", 2)
    validate(run, "title", 0)
    assert rows(run, run.verdicts("title", 0), Verdict) == whole
    assert [v.reasons for v in whole] == [
        ("meta_text",), (), ("empty_output",), ("pictograph",), ("truncated",),
    ]  # fmt: skip


def test_listings_that_share_a_text_share_its_answer(make_run) -> None:
    first, twin = work_item(0, text_id="shared"), work_item(1, text_id="shared")
    run = make_run([[(first, answer(first)), (twin, None)]])
    assert validate(run, "title", 0)["counts"]["accepted"] == 2


def test_merchant_rules_reach_only_their_merchant(make_run) -> None:
    first, twin = work_item(0, text_id="shared"), work_item(1, text_id="shared")
    settings = settings_with(banned_terms={"merchant-1": ("wooden",)})
    run = make_run([[(first, answer(first)), (twin, None)]], settings=settings)
    counts = validate(run, "title", 0)["counts"]
    assert (counts["accepted"], counts["quarantined"]) == (1, {"banned_term": 1})


def test_running_again_replaces_the_earlier_output(make_run) -> None:
    item = work_item(0)
    run = make_run([[(item, answer(item, "**Acme** ceramic dripper"))]])
    assert validate(run, "title", 0)["counts"]["accepted"] == 0
    run.store.write_part(f"{run.generated('title', 0)}/part-00001.parquet", type(answer(item)), [answer(item)])
    again = validate(run, "title", 0)
    assert again["counts"]["accepted"] == 1
    assert rows(run, run.quarantine("title", "validate", 0), QuarantinedRow) == []
    assert validate(run, "title", 0) | {"seconds": 0} == again | {"seconds": 0}


def test_an_error_never_replaces_an_answer(make_run) -> None:
    item = work_item(0)
    run = make_run([[(item, answer(item))]])
    late = answer(item, "", error="engine stopped", finish_reason="")
    run.store.write_part(f"{run.generated('title', 0)}/part-00001.parquet", type(late), [late])
    assert validate(run, "title", 0)["counts"]["accepted"] == 1


def test_lone_surrogates_are_rejected_and_stored(make_run) -> None:
    """Parquet and UTF-8 cannot hold them, so one such answer must not take the bin down."""
    from include.validation.stage import storable

    assert storable("Mug \ud83d") == "Mug ?"
    assert storable("Mügé") == "Mügé"


def test_a_bin_of_gibberish_stops_the_others_and_a_good_retry_clears_it(make_run) -> None:
    items = [work_item(n) for n in range(400)]
    bad = [(i, answer(i, "f" * 60) if n % 5 < 3 else answer(i)) for n, i in enumerate(items)]
    run = make_run([[], bad], settings=settings_with(gate={"min_validator_pass_rate": 0.9}))
    manifest = validate(run, "title", 1)
    marker = run.read_stop("title")
    assert marker is not None
    assert (marker.bin, marker.reason, marker.reject_rate) == (1, "char_repetition", 0.6)
    assert marker.engine == run.spec.settings.task("title").engine
    assert manifest["stopped"] == marker.model_dump()
    run.store.write_part(
        f"{run.generated('title', 1)}/part-00001.parquet", type(answer(items[0])), [answer(i) for i in items]
    )
    validate(run, "title", 1)
    assert run.read_stop("title") is None


def test_another_bins_marker_stays(make_run) -> None:
    items = [work_item(n) for n in range(200)]
    run = make_run([[(i, answer(i, "f" * 60)) for i in items], [(work_item(999), answer(work_item(999)))]])
    validate(run, "title", 0)
    validate(run, "title", 1)
    marker = run.read_stop("title")
    assert marker is not None
    assert marker.bin == 0
    type(run).create(run.spec)
    assert run.read_stop("title") is None, "a run that starts again starts without markers"


def test_a_handful_of_bad_rows_trips_nothing(make_run) -> None:
    items = [work_item(n) for n in range(50)]
    run = make_run([[(i, answer(i, "f" * 60)) for i in items]])
    assert validate(run, "title", 0)["stopped"] is None


def test_wilson_lower_bound_against_published_values() -> None:
    """Newcombe 1998, table I: 81 of 263 has the 95% score interval 0.2553 to 0.3662."""
    assert round(wilson_lower(81, 263, 1.959964), 4) == 0.2553
    assert wilson_lower(0, 0) == 0


def test_the_stage_runs_from_the_command_line(make_run) -> None:
    item = work_item(0)
    run = make_run([[(item, answer(item))]])
    command = [
        sys.executable,
        "-m",
        "include.validation",
        "run",
        "--run-dir",
        run.store.url,
        "--task",
        "title",
        "--bin",
        "0",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["accepted"] == 1
    assert "\r" not in done.stderr
    assert Store(run.store.url).exists(run.manifest("title", "validate", 0))


def test_a_folder_that_is_no_run_is_said_plainly(tmp_path: object, capsys: object) -> None:
    assert main(["run", "--run-dir", str(tmp_path), "--task", "title", "--bin", "0"]) == 2
    assert "run.json is missing" in capsys.readouterr().err  # type: ignore[attr-defined]


def test_a_folder_in_place_of_pairs_and_json_nested_too_deeply_are_said_plainly(tmp_path, capsys) -> None:
    assert main(["check", "--task", "title", "--input", str(tmp_path)]) == 2
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text("[" * 200_000 + "\n")
    assert main(["check", "--task", "title", "--input", str(pairs)]) == 1
    told = capsys.readouterr()
    assert "Is a directory" in told.err
    assert "line 1: the JSON is nested too deeply" in told.out


def test_long_work_says_how_far_it_is_in_plain_lines(make_run, monkeypatch, caplog) -> None:
    """graphrag-toolkit#129: progress bars and carriage returns break task logs."""
    monkeypatch.setattr(stage, "PROGRESS_SECONDS", -1.0)
    monkeypatch.setattr(stage, "BATCH_ROWS", 1)
    run = make_run([[(item, answer(item)) for item in map(work_item, range(3))]])
    with caplog.at_level("INFO", logger=stage.__name__):
        stage.validate(run, "title", 0)
    lines = [record.getMessage() for record in caplog.records]
    assert [line.split(" listings validated, ")[0] for line in lines[:3]] == [f"title bin 0: {n}" for n in (1, 2, 3)]
    assert all(line.isprintable() for line in lines)


def test_log_lines_name_run_and_bin_and_never_quote_a_listing_or_its_copy(make_run, monkeypatch, caplog) -> None:
    mark = "Zanzibar clove marker"
    items = [work_item(n, title=f"{mark} {n}", description=f"A {mark}.", merchant_id="one") for n in range(200)]
    run = make_run([[(i, answer(i, f"Here is the rewritten title: {mark}")) for i in items]])
    monkeypatch.setattr(stage, "PROGRESS_SECONDS", 0.0)
    with caplog.at_level("DEBUG"):
        validate(run, "title", 0)  # every answer is refused, so the breaker speaks, too
    lines = [record.getMessage() for record in caplog.records]
    assert {record.levelname for record in caplog.records} >= {"INFO", "ERROR"}
    assert not [line for line in lines if "Zanzibar" in line]
    assert lines[-1].startswith("title bin 0: ")
    assert lines[-1].endswith(f"(run {run.spec.run_id})")
