"""The nightly DAG end to end on the real CPU engine: a good night, its repetition, a failed gate, and bad inputs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.nightly import DAY, Nightly, sample_rows

ROWS = 10


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> Nightly:
    """An installation after one run over a few sample listings, two of them hard: a duplicate and one far too long."""
    nightly = Nightly(tmp_path_factory.mktemp("night"))
    rows = sample_rows(ROWS)
    rows.append(rows[0] | {"listing_id": "copy-1"})
    rows.append(rows[1] | {"listing_id": "long-1", "description": "soft wool blanket 130 x 170 cm " * 2000})
    rows.append(rows[2] | {"listing_id": "empty-1", "title": "", "description": ""})
    for task in ("title", "description"):
        nightly.open_gate(task)
    nightly.set_up(rows)
    first = nightly.run()
    assert first.returncode == 0, (first.stdout + first.stderr)[-4000:]
    nightly.first_summary = nightly.summary()  # type: ignore[attr-defined]
    return nightly


@pytest.mark.engine
def test_a_night_ends_with_closed_accounting_and_copy_in_the_warehouse(night: Nightly) -> None:
    summary = night.first_summary  # type: ignore[attr-defined]
    assert summary["ok"]
    for name, task in summary["tasks"].items():
        ended = sum(task["quarantined"].values()) + sum(
            task[state] for state in ("unchanged", "holdout", "deferred", "errored", "accepted")
        )
        assert task["extracted"] == ended == ROWS + 3
        assert task["quarantined"].get("input_too_long") == 1
        published = night.query(
            "select count(*) from listing_copy where enhancement_task = :task and run_id = :run",
            task=name,
            run=summary["run_id"],
        )[0][0]
        assert task["loaded"] == published > 0
        assert task["judge"]["sampled"] > 0
        assert task["prefix_cache_hit_rate"] > 0.3
        assert task["engine_starts"] == 1


@pytest.mark.engine
def test_equal_listings_share_one_generation_and_both_get_copy(night: Nightly) -> None:
    copies = night.query(
        "select text from listing_copy where enhancement_task = 'title' and listing_id in ('copy-1', :id)",
        id=sample_rows(1)[0]["listing_id"],
    )
    assert len({row[0] for row in copies}) <= 1
    assert night.first_summary["tasks"]["title"]["requests"] <= ROWS + 1  # type: ignore[attr-defined]


@pytest.mark.engine
def test_secrets_and_listing_text_stay_out_of_the_manifests(night: Nightly) -> None:
    for path in (night.root / "data").rglob("*.json"):
        assert "sqlite:///" not in path.read_text(encoding="utf-8"), path


@pytest.mark.engine
def test_a_second_run_of_the_date_finds_nothing_and_starts_no_engine(night: Nightly) -> None:
    again = night.run()
    assert again.returncode == 0, (again.stdout + again.stderr)[-4000:]
    for task in night.summary()["tasks"].values():
        assert (task["outcome"], task["unchanged"], task["engine_starts"]) == ("empty", task["extracted"], 0)


@pytest.mark.engine
def test_a_failed_gate_publishes_nothing_of_its_task_and_sends_one_alert(night: Nightly) -> None:
    before = night.query("select listing_id, text from listing_copy where enhancement_task = 'title' order by 1")
    night.edit("tasks/title.yaml", lambda c: c | {"gate": c["gate"] | {"min_validator_pass_rate": 1.01 - 0.01}})
    night.edit(
        "tasks/title.yaml", lambda c: c | {"validators": c["validators"] | {"length": {"min_chars": 1, "max_chars": 2}}}
    )
    failed = night.run(enhancement_tasks=["title"], force=True)
    output = failed.stdout + failed.stderr
    assert failed.returncode != 0
    assert output.count("ALERT Listing enhancement") == 1, output[-4000:]
    assert "title (gate failed)" in output
    task = night.summary()["tasks"]["title"]
    assert (task["outcome"], task["loaded"]) == ("gate_failed", 0)
    assert (
        night.query("select listing_id, text from listing_copy where enhancement_task = 'title' order by 1") == before
    )


def test_a_catalog_without_a_needed_column_names_it(tmp_path: Path) -> None:
    nightly = Nightly(tmp_path)
    nightly.check("include.warehouse", "migrate")
    nightly.seed(sample_rows(2))
    nightly.edit("pipeline.yaml", lambda c: c | {"catalog": c["catalog"] | {"columns": {"title": "headline"}}})
    nightly.check("include.runs", "open", "--run-id", "r1", "--date", DAY)
    run_dir = next((tmp_path / "data" / f"dt={DAY}").iterdir())
    done = nightly.module("include.extraction", "run", "--run-dir", str(run_dir))
    assert done.returncode != 0
    assert "headline" in done.stdout + done.stderr
