"""The load on real databases: what is published, what is guarded, what is counted."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone

import pytest

from include.records import AccountingError, JudgeScore, JudgeVerdict
from include.runs import Run
from include.settings import EscalationSettings
from include.warehouse.database import UnreachableError
from include.warehouse.load import LoadRefusedError, load, reconcile
from include.warehouse.migrate import OldSchemaError, check_models
from include.warehouse.staging import staging_tables
from tests.integration.warehouse_runs import DAY, TASK, finished_run, live, moment, refusal, rows, verdict


def test_models_and_migrations_agree(warehouse_url):
    check_models(warehouse_url)


def test_publishes_with_provenance_and_reads_back(warehouse_url, tmp_path):
    verdicts = [verdict(f"l{i}", f"copy {i}") for i in range(20)] + [verdict("bad", "x", ok=False, reasons=("empty",))]
    run = finished_run(tmp_path, verdicts, refused=[refusal("bad")])
    score = JudgeScore(text_id=verdicts[3].text_id, stratum="", weight=1, verdict=JudgeVerdict.PASS, score=0.75)
    run.store.write_part(f"{run.judged(TASK)}/part-00000.parquet", JudgeScore, [score])
    manifest = load(run, TASK, warehouse_url=warehouse_url)
    assert (manifest["accepted"], manifest["loaded"], manifest["stale"]) == (20, 20, 0)
    assert manifest["audit"]["status"] == "passed"
    assert rows(warehouse_url, "SELECT status FROM runs") == [("loaded",)]
    assert reconcile(run, TASK, warehouse_url=warehouse_url)["status"] == "published"
    assert rows(warehouse_url, "SELECT status FROM runs") == [("published",)]
    assert live(warehouse_url) == {f"l{i}": f"copy {i}" for i in range(20)}
    found = rows(
        warehouse_url,
        "SELECT run_id, arm, model, engine_profile, template_version, judge_score FROM listing_copy WHERE listing_id = 'l3'",
    )
    task = run.spec.settings.task(TASK)
    model = run.spec.settings.engines[task.engine].model
    assert found == [("run-1", "treatment", model, task.engine, task.template_version, 0.75)]
    assert rows(warehouse_url, "SELECT listing_id, reason, run_id FROM quarantine") == [("bad", "empty", "run-1")]
    assert staging_tables(warehouse_url) == []


def test_loading_again_changes_nothing(warehouse_url, tmp_path):
    run = finished_run(tmp_path, [verdict(f"l{i}", f"copy {i}") for i in range(9)], refused=[refusal("bad")])
    first = load(run, TASK, warehouse_url=warehouse_url)
    before = rows(warehouse_url, "SELECT * FROM listing_copy ORDER BY listing_id")
    again = load(run, TASK, warehouse_url=warehouse_url)
    assert rows(warehouse_url, "SELECT * FROM listing_copy ORDER BY listing_id") == before
    assert rows(warehouse_url, "SELECT count(*) FROM copy_history") == [(0,)]
    assert again["loaded"] == first["loaded"] == 9
    assert reconcile(run, TASK, warehouse_url=warehouse_url)["loaded"] == 9
    load(run, TASK, warehouse_url=warehouse_url)
    assert reconcile(run, TASK, warehouse_url=warehouse_url)["loaded"] == 9


def test_texts_that_failed_the_judge_are_not_loaded(warehouse_url, tmp_path):
    verdicts = [verdict("l1", "good"), verdict("l2", "bad")]
    run = finished_run(tmp_path, verdicts, failed_text_ids=[verdicts[1].text_id])
    assert load(run, TASK, warehouse_url=warehouse_url)["loaded"] == 1
    assert live(warehouse_url) == {"l1": "good"}


@pytest.mark.parametrize("gate", ["failed", "broken"])
def test_a_closed_gate_publishes_nothing(warehouse_url, tmp_path, gate):
    run = finished_run(tmp_path, [verdict("l1", "copy")], gate=gate)
    with pytest.raises(LoadRefusedError, match=gate):
        load(run, TASK, warehouse_url=warehouse_url)
    assert live(warehouse_url) == {}


def test_an_older_version_never_replaces_a_newer_one(warehouse_url, tmp_path):
    """dbt-core#6077: the late older record is counted as stale."""
    new = finished_run(tmp_path, [verdict("l1", "v5", updated=moment(DAY, 5))], run_id="new")
    load(new, TASK, warehouse_url=warehouse_url)
    old = [verdict("l1", "v3", updated=moment(DAY, 3)), verdict("l2", "other", updated=moment(DAY, 3))]
    manifest = load(finished_run(tmp_path, old, run_id="old"), TASK, warehouse_url=warehouse_url)
    assert (manifest["accepted"], manifest["loaded"], manifest["stale"]) == (2, 1, 1)
    assert live(warehouse_url) == {"l1": "v5", "l2": "other"}


def test_same_version_later_run_replaces_and_history_keeps_both(warehouse_url, tmp_path):
    load(finished_run(tmp_path, [verdict("l1", "first")], run_id="a"), TASK, warehouse_url=warehouse_url)
    later = datetime(2026, 3, 8, tzinfo=UTC)
    second = finished_run(tmp_path, [verdict("l1", "second")], run_id="b", extracted_at=later)
    assert load(second, TASK, warehouse_url=warehouse_url)["loaded"] == 1
    first = finished_run(tmp_path, [verdict("l1", "first")], run_id="a")
    manifest = load(first, TASK, warehouse_url=warehouse_url)  # a retry that comes late
    assert (manifest["loaded"], manifest["stale"]) == (1, 0)  # it was loaded, and has been replaced since
    assert reconcile(first, TASK, warehouse_url=warehouse_url)["loaded"] == 1
    assert live(warehouse_url) == {"l1": "second"}
    found = rows(
        warehouse_url, "SELECT text, run_id, live_until IS NULL, end_reason FROM copy_timeline ORDER BY live_from"
    )
    assert [tuple(map(str, row)) for row in found] in (
        [("first", "a", "False", "replaced"), ("second", "b", "True", "None")],
        [("first", "a", "0", "replaced"), ("second", "b", "1", "None")],
    )


def test_twin_keys_are_reduced_to_the_highest_version(warehouse_url, tmp_path):
    """ponder#1918: PostgreSQL refuses one INSERT … ON CONFLICT that meets a key twice."""
    twins = [verdict("l1", f"v{hour}", updated=moment(DAY, hour)) for hour in (1, 7, 3)] + [verdict("l2", "one")]
    manifest = load(finished_run(tmp_path, twins), TASK, warehouse_url=warehouse_url)
    assert live(warehouse_url) == {"l1": "v7", "l2": "one"}
    assert (manifest["accepted"], manifest["loaded"], manifest["stale"], manifest["twins"]) == (4, 2, 2, 2)


def test_offsets_become_utc(warehouse_url, tmp_path):
    """openregister#3876: SQLite drops the offset and keeps the wall-clock digits."""
    local = datetime(2026, 3, 1, 22, tzinfo=timezone(timedelta(hours=-8)))
    load(finished_run(tmp_path, [verdict("l1", "copy", updated=local)]), TASK, warehouse_url=warehouse_url)
    from include.warehouse.database import connect
    from include.warehouse.schema import listing_copy

    with connect(warehouse_url) as connection:
        found = connection.scalar(listing_copy.select().with_only_columns(listing_copy.c.source_updated_at))
    assert found == datetime(2026, 3, 2, 6, tzinfo=UTC)


@pytest.mark.parametrize("place", [0, 17, 49])
def test_one_poison_row_never_fails_its_batch(warehouse_url, tmp_path, caplog, place):
    """psycopg2#1243: NUL in text. It loads on SQLite and is quarantined on PostgreSQL; the others load on both."""
    verdicts = [verdict(f"l{i}", f"copy {i}") for i in range(50)]
    verdicts[place] = verdict(f"l{place}", "co\0py")
    run = finished_run(tmp_path, verdicts, rows_per_part=5)  # more batches than are prepared ahead
    manifest = load(run, TASK, warehouse_url=warehouse_url)
    refused = manifest["counts"]["quarantined"].get("refused_by_database", 0)
    assert refused == (1 if warehouse_url.startswith("postgresql") else 0)
    assert manifest["loaded"] == 50 - refused
    assert len(rows(warehouse_url, "SELECT 1 FROM quarantine")) == refused
    assert ("filled again" in caplog.text) == bool(refused)
    assert reconcile(run, TASK, warehouse_url=warehouse_url)["status"] == "published"


def test_a_long_incompressible_text_loads(warehouse_url, tmp_path):
    """airbroke#6: an index on long text fails above 2,704 bytes; there is none."""
    import random

    text = "".join(random.Random(1).choices([chr(c) for c in range(0x4E00, 0x9FA5)], k=20_000))
    load(finished_run(tmp_path, [verdict("l1", text)]), TASK, warehouse_url=warehouse_url)
    assert live(warehouse_url) == {"l1": text}


def test_counts_must_match_what_is_staged(warehouse_url, tmp_path):
    run = finished_run(tmp_path, [verdict("l1", "copy")], counts={"extracted": 2, "accepted": 2})
    with pytest.raises(AccountingError, match="accepted 2 listings but the verdicts hold 1"):
        load(run, TASK, warehouse_url=warehouse_url)
    assert live(warehouse_url) == {}


def test_reconcile_refuses_when_rows_are_gone(warehouse_url, tmp_path):
    from include.warehouse.database import writing
    from include.warehouse.schema import listing_copy

    run = finished_run(tmp_path, [verdict("l1", "copy"), verdict("l2", "copy")])
    load(run, TASK, warehouse_url=warehouse_url)
    with writing(warehouse_url) as connection:
        connection.execute(listing_copy.delete().where(listing_copy.c.listing_id == "l1"))
    with pytest.raises(AccountingError, match="'loaded': 1"):
        reconcile(run, TASK, warehouse_url=warehouse_url)
    assert rows(warehouse_url, "SELECT status FROM runs") == [("loaded",)]


def test_a_backfill_after_a_newer_day_changes_nothing_newer(warehouse_url, tmp_path):
    """airflow#43382: days reprocessed out of order, twice; row counts stay, newer versions survive."""
    days = [date(2026, 3, day) for day in range(1, 7)]

    def night(day, run_id, read_at=None):
        verdicts = [
            verdict("shared", f"of {day}", updated=moment(day)),
            verdict(f"own-{day}", run_id.split("-")[0], updated=moment(day)),
        ]
        run = finished_run(tmp_path, verdicts, run_id=run_id, day=day, extracted_at=read_at)
        manifest = load(run, TASK, warehouse_url=warehouse_url)
        reconcile(run, TASK, warehouse_url=warehouse_url)
        return manifest["loaded"], manifest["stale"]

    night(days[5], f"scheduled-{days[5]}")
    for day in days[:5]:
        assert night(day, f"scheduled-{day}") == (1, 1)
    before = live(warehouse_url)
    assert before["shared"] == "of 2026-03-06"
    assert len(before) == 7
    for day in reversed(days[:5]):
        assert night(day, f"backfill-{day}", datetime(2026, 4, 1, tzinfo=UTC)) == (1, 1)
    after = live(warehouse_url)
    assert after == {key: text if key in ("shared", "own-2026-03-06") else "backfill" for key, text in before.items()}
    assert rows(warehouse_url, "SELECT count(*) FROM listing_copy") == [(7,)]


def test_an_old_schema_is_named(empty_url, tmp_path):
    run = finished_run(tmp_path, [verdict("l1", "copy")])
    with pytest.raises(OldSchemaError, match=r"include\.warehouse migrate"):
        load(run, TASK, warehouse_url=empty_url)


def test_an_unreachable_warehouse_is_named_without_its_password(tmp_path):
    run = finished_run(tmp_path, [verdict("l1", "copy")])
    with pytest.raises(UnreachableError) as error:
        load(run, TASK, warehouse_url="postgresql://user:hunter2@127.0.0.1:1/none")
    assert "127.0.0.1:1" in str(error.value)
    assert "hunter2" not in str(error.value)


def test_copy_of_a_larger_model_is_recorded_as_its_own(warehouse_url: str, tmp_path) -> None:
    run = finished_run(tmp_path, [verdict("a", "Mug"), verdict("b", "Large mug", flags=("escalated",))])
    settings = run.spec.settings
    budget = EscalationSettings(engine="gpu-qwen3-4b", max_texts=9)
    tasks = settings.tasks | {TASK: settings.task(TASK).model_copy(update={"escalation": budget})}
    spec = run.spec.model_copy(update={"settings": settings.model_copy(update={"tasks": tasks})})
    load(Run(spec, run.store), TASK, warehouse_url=warehouse_url)
    found = rows(warehouse_url, "SELECT listing_id, engine_profile, model FROM listing_copy ORDER BY listing_id")
    assert found == [
        ("a", "cpu-smollm2-title", settings.engines["cpu-smollm2-title"].model),
        ("b", "gpu-qwen3-4b", "Qwen/Qwen3-4B"),
    ]
