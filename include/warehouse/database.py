"""Connections to the warehouse and the catalog: one engine per URL, transactions, and retries of what will pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from typing import Any, TypeVar

import sqlalchemy as sa
import tenacity
from sqlalchemy import event

Result = TypeVar("Result")

# PostgreSQL: deadlock, serialization failure, lock timeout.
_TRANSIENT_STATES = frozenset({"40P01", "40001", "55P03"})


class UnreachableError(RuntimeError):
    """A database cannot be reached; the message names it without its password."""


class UtcDateTime(sa.TypeDecorator[datetime]):
    """A point in time, always UTC. SQLite drops offsets silently, so the value is converted before it is bound.

    Raises ValueError for a datetime without a zone.
    """

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"{value!r} has no time zone: say which, or convert it to UTC")
        moment = value.astimezone(UTC)
        return moment.replace(tzinfo=None) if dialect.name == "sqlite" else moment

    def process_result_value(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def normalise_url(url: str) -> sa.URL:
    """The URL with the drivers that this project uses: psycopg 3 for every spelling of PostgreSQL."""
    parsed = sa.make_url(url)
    if parsed.get_backend_name() in ("postgresql", "postgres"):
        return parsed.set(drivername="postgresql+psycopg")
    return parsed


def _on_sqlite_connect(connection: Any, _: object) -> None:
    connection.isolation_level = None  # the driver must not begin transactions by itself: see _on_begin
    # Invalid UTF-8 becomes lone surrogates, which cleaning quarantines row by row; the default raises for the whole batch.
    connection.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")
    for pragma in ("busy_timeout=20000", "temp_store=FILE"):
        connection.execute(f"PRAGMA {pragma}").close()


def _on_begin(connection: sa.Connection) -> None:
    connection.exec_driver_sql(connection.get_execution_options().get("begin", "BEGIN"))


@cache
def engine_for(url: str) -> sa.Engine:
    """The engine of a URL; the same one for every call in this process. Raises UnreachableError for a URL that is none."""
    try:
        parsed = normalise_url(url)
        if parsed.get_backend_name() == "postgresql":
            return sa.create_engine(parsed, pool_pre_ping=True, connect_args={"options": "-c timezone=UTC"})
        engine = sa.create_engine(parsed)
    except (sa.exc.ArgumentError, ImportError) as error:  # neither the value nor make_url's words: they hold a password
        wanted = "give SQLAlchemy's form, such as postgresql://user@host/name, and install its driver"
        raise UnreachableError(f"a database URL cannot be used ({type(error).__name__}): {wanted}") from None
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _on_sqlite_connect)
        event.listen(engine, "begin", _on_begin)
    return engine


@contextmanager
def connect(url: str) -> Iterator[sa.Connection]:
    """A connection that is not yet in a transaction. Raises UnreachableError when there is no database."""
    engine = engine_for(url)
    try:
        connection = engine.connect()
    except sa.exc.DBAPIError as error:
        shown = engine.url.render_as_string(hide_password=True)
        raise UnreachableError(
            f"cannot reach {shown}: {str(error.orig).strip()}; check that it runs and that the connection is right. "
            "Nothing was changed; clear the failed task to go on."
        ) from None
    with connection:
        yield connection


@contextmanager
def writing(url: str) -> Iterator[sa.Connection]:
    """One writing transaction. SQLite has one writer: its lock is taken at the start, where waiting cannot deadlock."""
    with connect(url) as connection, connection.execution_options(begin="BEGIN IMMEDIATE").begin():
        yield connection


def plan_without(connection: sa.Connection, *steps: str) -> None:
    """Rules out steps of a plan ("hashjoin", "mergejoin", "material") for the rest of the transaction; on PostgreSQL only.

    Tables that were filled a moment ago have no statistics, and a plan that reads a large table whole for a few keys, or
    sorts whole texts on disk, costs more than any that it could win against.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(*(sa.func.set_config(f"enable_{step}", "off", True) for step in steps)))


def is_transient(error: BaseException) -> bool:
    """Whether the same transaction may well pass when it is tried again."""
    if not isinstance(error, sa.exc.DBAPIError):
        return False
    if getattr(error.orig, "sqlstate", None) in _TRANSIENT_STATES or error.connection_invalidated:
        return True
    text = str(error.orig)
    return "database is locked" in text or "database table is locked" in text


def retried(function: Callable[[], Result]) -> Result:
    """Runs a whole transaction, again with jittered back-off after a deadlock, serialization or lock error."""
    return tenacity.Retrying(
        retry=tenacity.retry_if_exception(is_transient),
        wait=tenacity.wait_random_exponential(multiplier=0.1, max=5),
        stop=tenacity.stop_after_attempt(8),
        reraise=True,
    )(function)
