"""Database URLs: from the settings file, from Airflow's environment variables, and never with a secret in a message."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa

from include import connections
from include.connections import database_url, exports, read_airflow_settings, sqlalchemy_url
from include.settings import PROJECT_ROOT, SettingsError


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("AIRFLOW_CONN_") or name in connections.CONNECTIONS.values():
            monkeypatch.delenv(name)


@pytest.fixture
def settings_file(tmp_path: Path) -> Path:
    path = tmp_path / "airflow_settings.yaml"
    path.write_text(
        """
airflow:
  connections:
    - {conn_id: ads_warehouse, conn_type: postgres, conn_host: db, conn_schema: ads, conn_login: etl,
       conn_password: "p@ss/word", conn_port: 5433, conn_extra: {sslmode: require, keepalives: 1}}
    - {conn_id: empty, conn_type: sqlite}
    - {conn_id: untyped, conn_host: db}
  pools:
  variables: []
"""
    )
    return path


def test_the_shipped_file_holds_what_the_run_needs_and_no_secret() -> None:
    settings = read_airflow_settings()
    assert {"merchant_catalog", "ads_warehouse"} <= {entry["conn_id"] for entry in settings["connections"]}
    assert not [entry["conn_id"] for entry in settings["connections"] if entry.get("conn_password")]
    [gpu] = [pool for pool in settings["pools"] if pool["pool_name"] == "gpu"]
    assert gpu["pool_include_deferred"] is True  # a deferred task still holds its GPU


def test_a_sqlite_file_is_the_same_from_any_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert database_url("merchant_catalog") == f"sqlite:///{PROJECT_ROOT}/build/merchant_catalog.db"
    assert sqlalchemy_url("sqlite", host="/data/x.db") == "sqlite:////data/x.db"
    assert sqlalchemy_url("sqlite", host=":memory:") == "sqlite:///:memory:"


def test_every_field_of_a_server_connection_reaches_the_driver(settings_file: Path) -> None:
    url = sa.make_url(database_url("ads_warehouse", settings_file))
    assert (url.drivername, url.host, url.port, url.database) == ("postgresql+psycopg", "db", 5433, "ads")
    assert (url.username, url.password) == ("etl", "p@ss/word")
    assert dict(url.query) == {"sslmode": "require"}


@pytest.mark.parametrize(
    "value",
    [
        "postgres://etl:p%40ss@db:5433/ads?sslmode=require",
        '{"conn_type": "postgres", "host": "db", "login": "etl", "password": "p@ss", "port": "5433", "schema": "ads",'
        ' "extra": {"sslmode": "require"}}',
        '{"conn_type": "postgres", "host": "db", "login": "etl", "password": "p@ss", "port": 5433, "schema": "ads",'
        ' "extra": "{\\"sslmode\\": \\"require\\"}"}',
    ],
)
def test_the_environment_wins_in_both_of_airflows_forms(
    value: str, settings_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_ADS_WAREHOUSE", value)
    assert database_url("ads_warehouse", settings_file) == "postgresql+psycopg://etl:p%40ss@db:5433/ads?sslmode=require"


def test_a_sqlite_uri_of_the_environment_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_ADS_WAREHOUSE", "sqlite:////data/ads.db")
    assert database_url("ads_warehouse") == "sqlite:////data/ads.db"


@pytest.mark.parametrize(
    "value", ["hunter2", '{"password": "hunter2",', '{"conn_type": "postgres", "port": "hunter2"}']
)
def test_a_broken_environment_variable_is_named_without_its_secret(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_ADS_WAREHOUSE", value)
    with pytest.raises(SettingsError, match="AIRFLOW_CONN_ADS_WAREHOUSE is neither") as raised:
        database_url("ads_warehouse")
    assert "hunter2" not in str(raised.value)
    assert raised.value.__cause__ is None


def test_what_names_no_database_says_how_to_mend(settings_file: Path) -> None:
    with pytest.raises(SettingsError, match="names no file: put its path into the host field"):
        database_url("empty", settings_file)
    with pytest.raises(SettingsError, match="has no type: set conn_type"):
        database_url("untyped", settings_file)
    with pytest.raises(SettingsError, match=r"no connection 'other': add it to .* or set AIRFLOW_CONN_OTHER"):
        database_url("other", settings_file)


@pytest.mark.parametrize("content", ["", "airflow:", "airflow: [", "airflow: {connections: [3]}", "- airflow"])
def test_a_file_of_another_shape_is_an_error_that_names_it(content: str, tmp_path: Path) -> None:
    path = tmp_path / "airflow_settings.yaml"
    path.write_text(content)
    with pytest.raises(SettingsError, match=r"airflow_settings\.yaml is not a settings file"):
        read_airflow_settings(path)
    with pytest.raises(SettingsError, match="cannot read"):
        read_airflow_settings(tmp_path / "other.yaml")


def test_the_exports_run_in_a_shell_and_leave_a_set_variable_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_ADS_WAREHOUSE", "postgres://etl:a%20'b%24HOME@db/ads")
    monkeypatch.setenv("MERCHANT_CATALOG_URL", "sqlite:///mine.db")
    assert "MERCHANT_CATALOG_URL" not in exports()
    shell = f"{exports()}\n{sys.executable} -c 'import os; print(os.environ[\"ADS_WAREHOUSE_URL\"])'"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True)
    assert sa.make_url(done.stdout.strip()).password == "a 'b$HOME"
