"""Database URLs from Airflow-style connections, without Airflow.

A connection comes from AIRFLOW_CONN_<ID> (URI or JSON, as Airflow reads it), else from `airflow_settings.yaml`.
`python -m include.connections` prints the two that the stages need as shell exports, so that every stage can be run by
hand against the same databases as the DAG.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from include.runs import CATALOG_URL_VARIABLE, WAREHOUSE_URL_VARIABLE
from include.settings import PROJECT_ROOT, SettingsError, resolve_path

SETTINGS_FILE = PROJECT_ROOT / "airflow_settings.yaml"
CONNECTIONS = {"merchant_catalog": CATALOG_URL_VARIABLE, "ads_warehouse": WAREHOUSE_URL_VARIABLE}

# Airflow's connection types whose SQLAlchemy driver has another name.
_DRIVERS = {"postgres": "postgresql+psycopg", "postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql"}


def sqlalchemy_url(
    conn_type: str | None,
    *,
    host: str | None = None,
    schema: str | None = None,
    login: str | None = None,
    password: str | None = None,
    port: int | str | None = None,
    extra: Mapping[str, Any] | None = None,
) -> str:
    """SQLAlchemy URL of a connection's fields, with its password in it: pass it on by environment only.

    An SQLite file stands in `host` and may be relative to the project. Text values of `extra` become URL parameters
    (`sslmode`, say). Raises SettingsError when the type is missing.
    """
    if not conn_type:
        raise SettingsError("the connection has no type: set conn_type to sqlite, postgres or another SQL database")
    if conn_type == "sqlite":
        path = host or schema or ""
        if not path:
            raise SettingsError("the sqlite connection names no file: put its path into the host field")
        return f"sqlite:///{path if path == ':memory:' else resolve_path(path)}"
    query = {key: value for key, value in (extra or {}).items() if isinstance(value, str)}
    url = URL.create(
        _DRIVERS.get(conn_type, conn_type), login, password, host, int(port) if port else None, schema or None, query
    )
    return url.render_as_string(hide_password=False)


def _from_environment(value: str) -> str:
    """URL of an AIRFLOW_CONN_… value: a JSON object of Airflow's field names, or a URI."""
    if value.lstrip().startswith("{"):
        fields = json.loads(value)
        extra = fields.get("extra") or {}
        fields["extra"] = json.loads(extra) if isinstance(extra, str) else extra
        names = ("host", "schema", "login", "password", "port", "extra")
        return sqlalchemy_url(fields.get("conn_type"), **{name: fields.get(name) for name in names})
    url = make_url(value)
    if url.drivername == "sqlite":
        return sqlalchemy_url("sqlite", host=url.host, schema=url.database)
    return url.set(drivername=_DRIVERS.get(url.drivername, url.drivername)).render_as_string(hide_password=False)


def read_airflow_settings(path: Path = SETTINGS_FILE) -> dict[str, list[dict[str, Any]]]:
    """The `connections`, `pools` and `variables` of a settings file, each a list of entries.

    Raises SettingsError when the file is missing, is not YAML or has another shape.
    """
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))["airflow"]
        return {
            kind: [dict(entry) for entry in found.get(kind) or []] for kind in ("connections", "pools", "variables")
        }
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror}") from error
    except (yaml.YAMLError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise SettingsError(f"{path} is not a settings file of Astro's format: {error!r}") from error


def database_url(conn_id: str, path: Path = SETTINGS_FILE) -> str:
    """SQLAlchemy URL of a connection. Raises SettingsError when there is none or it names no database."""
    variable = f"AIRFLOW_CONN_{conn_id.upper()}"
    if value := os.environ.get(variable):
        try:
            return _from_environment(value)
        except (ArgumentError, ValueError) as error:
            # Neither the value nor the library's message, which quotes it: it holds a password.
            raise SettingsError(f"{variable} is neither a URI nor a JSON connection ({type(error).__name__})") from None
    for entry in read_airflow_settings(path)["connections"]:
        if entry.get("conn_id") == conn_id:
            fields = {
                name: entry.get(f"conn_{name}") for name in ("host", "schema", "login", "password", "port", "extra")
            }
            return sqlalchemy_url(entry.get("conn_type"), **fields)
    raise SettingsError(f"no connection {conn_id!r}: add it to {path.name} or set {variable}")


def exports() -> str:
    """Shell lines that set the stages' database variables; one that is set already is left as it is."""
    lines = [
        f"export {variable}={shlex.quote(database_url(conn_id))}"
        for conn_id, variable in CONNECTIONS.items()
        if variable not in os.environ
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    try:
        print(exports())  # noqa: T201
    except SettingsError as error:
        sys.exit(f"error: {error}")
