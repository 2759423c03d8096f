"""Command lines: every error that a person can mend is one line with the next step, and output that cannot be written fails."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest
import sqlalchemy as sa
import yaml

from include.commands import command_line
from include.settings import load_settings

PAIR = json.dumps({"id": "a", "source": {"title": "Blue mug"}, "output": "Blue mug"}) + "\n"
Tell = Callable[..., str]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration whose folders are the test's own, and databases that are not there yet."""
    pipeline = load_settings().pipeline.model_dump(mode="json")
    config = tmp_path / "config"
    source = Path("include/config").resolve()
    config.mkdir()
    for name in ("tasks", "engines", "judge.yaml"):
        (config / name).symlink_to(source / name)
    places = {"data_url": str(tmp_path / "data"), "state_url": str(tmp_path / "state")}
    (config / "pipeline.yaml").write_text(yaml.safe_dump(pipeline | places))
    monkeypatch.setenv("LISTING_CONFIG_DIR", str(config))
    monkeypatch.setenv("MERCHANT_CATALOG_URL", f"sqlite:///{tmp_path}/catalog.db")
    monkeypatch.setenv("ADS_WAREHOUSE_URL", f"sqlite:///{tmp_path}/warehouse.db")
    return tmp_path


@pytest.fixture
def tell(home: Path, capsys: pytest.CaptureFixture[str]) -> Tell:
    """Runs a command that must end with status 2 and one line on stderr; returns the line."""

    def run(module: str, *arguments: str) -> str:
        found = import_module(module)
        capsys.readouterr()
        assert (found if hasattr(found, "main") else import_module(f"{module}.__main__")).main(arguments) == 2
        told = capsys.readouterr().err.strip().splitlines()
        assert len(told) == 1, told
        assert told[0].startswith("error: ")
        return told[0]

    return run


@pytest.fixture
def run_dir(home: Path, capsys: pytest.CaptureFixture[str]) -> str:
    from include.runs import main

    assert main(["open", "--run-id", "by-hand", "--date", "2026-01-14"]) == 0
    return capsys.readouterr().out.strip()


@pytest.mark.parametrize(
    ("module", "command"),
    [
        *[("include.warehouse", name) for name in ("load", "reconcile")],
        *[("include.judging", name) for name in ("sample", "gate")],
        ("include.validation", "suite"),
        ("include.extraction", "run"),
        *[("include.reporting", name) for name in ("show", "report")],
    ],
)
def test_a_missing_run_folder_and_a_torn_one_say_what_to_do(
    tell: Tell, run_dir: str, module: str, command: str
) -> None:
    task = [] if module in ("include.reporting", "include.extraction") else ["--task", "title"]
    assert "start with `python -m include.runs open`" in tell(module, command, "--run-dir", "/nowhere/run", *task)
    (Path(run_dir) / "run.json").write_text('{"run_id": ')
    assert "run.json is not JSON" in tell(module, command, "--run-dir", run_dir, *task)
    (Path(run_dir) / "run.json").write_text('{"run_id": "x"}')
    assert "RunSpec, partition_date: Field required; mend that" in tell(module, command, "--run-dir", run_dir, *task)


@pytest.mark.parametrize(
    ("module", "command", "step"),
    [
        ("include.warehouse", "load", "the gate of title is not decided"),
        ("include.warehouse", "reconcile", "run the load stage first"),
        ("include.judging", "sample", "run the extraction stage first"),
        ("include.judging", "gate", "run the extraction stage first"),
        ("include.validation", "suite", "run the extraction stage first"),
    ],
)
def test_a_missing_manifest_names_the_stage_to_run(
    tell: Tell, run_dir: str, module: str, command: str, step: str
) -> None:
    assert step in tell(module, command, "--run-dir", run_dir, "--task", "title")


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("postgresql://u:secret@127.0.0.1:9/x", "cannot reach postgresql"),
        ("no url with secret", "a database URL cannot be used"),
        ("nodriver://u:secret@h/x", "a database URL cannot be used"),
        ("sqlite:///README.md", "file is not a database"),
    ],
)
def test_a_database_that_cannot_be_used_is_one_line_without_its_password(
    tell: Tell, monkeypatch: pytest.MonkeyPatch, url: str, told: str
) -> None:
    monkeypatch.setenv("ADS_WAREHOUSE_URL", url)
    monkeypatch.setenv("MERCHANT_CATALOG_URL", url)
    for module, *command in (
        ("include.warehouse", "migrate"),
        ("include.warehouse", "clean", "--days", "3"),
        ("include.reporting", "preview"),
        ("include.extraction", "newest-day"),
        ("include.extraction", "seed-catalog", "--csv", "include/samples/listings.csv"),
    ):
        line = tell(module, *command)
        assert told in line
        assert "secret" not in line


def test_a_warehouse_without_tables_says_how_to_make_them(tell: Tell) -> None:
    assert "`python -m include.warehouse migrate`" in tell("include.reporting", "preview")


def test_cleaning_needs_a_positive_number_of_days_and_removes_no_folder_without_the_warehouse(
    tell: Tell, run_dir: str
) -> None:
    assert "--days is -3" in tell("include.warehouse", "clean", "--days", "-3")
    tell("include.warehouse", "clean", "--days", "3")
    assert Path(run_dir).exists()


@pytest.mark.parametrize(
    ("option", "told"), [("--row-limit=0", "--row-limit"), ("--row-limit=-5", "--row-limit"), ("--run-id=", "--run-id")]
)
def test_an_impossible_option_of_a_run_is_named_and_opens_nothing(
    tell: Tell, home: Path, option: str, told: str
) -> None:
    assert told in tell("include.runs", "open", "--run-id", "x", "--date", "2026-01-14", option)
    assert not (home / "data").exists()


def test_a_fault_of_the_program_keeps_its_trace() -> None:
    @command_line
    def broken() -> int:
        raise TypeError("ours")

    with pytest.raises(TypeError, match="ours"):
        broken()


def test_an_error_of_the_database_shows_no_statement(capsys: pytest.CaptureFixture[str]) -> None:
    @command_line
    def broken() -> int:
        raise sa.exc.IntegrityError("INSERT a listing's text", {}, Exception("UNIQUE constraint failed"))

    assert broken() == 2
    told = capsys.readouterr().err
    assert "UNIQUE constraint failed" in told
    assert "INSERT" not in told


@pytest.mark.parametrize("lines", [1, 3_000])
def test_a_full_disk_is_told_and_a_closed_pipe_is_silent(home: Path, lines: int) -> None:
    pairs = home / "pairs.jsonl"
    pairs.write_text(PAIR * lines)
    command = f"{sys.executable} -m include.validation check --task title --input {pairs}"
    full = subprocess.run(
        f"{command} > /dev/full", shell=True, capture_output=True, text=True, timeout=120, check=False
    )
    assert full.returncode == 2
    assert full.stderr.count("\n") == 1
    assert "No space left on device" in full.stderr
    if lines > 1:
        closed = subprocess.run(
            f"{command} | head -1", shell=True, capture_output=True, text=True, timeout=120, check=False
        )
        assert (closed.stdout.count("\n"), closed.stderr) == (1, "")


def test_a_summary_that_cannot_be_written_is_told(run_dir: str) -> None:
    command = f"{sys.executable} -m include.reporting show --run-dir {run_dir} > /dev/full"
    full = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=120, check=False)
    assert (full.returncode, full.stderr.count("\n")) == (2, 1)
    assert "No space left on device" in full.stderr
