"""URLs of Airflow's connections, for use inside a task."""

from __future__ import annotations

from urllib.parse import quote, urlsplit

from include import connections


def sqlalchemy_url(conn_id: str) -> str:
    """The connection's URL, with its password: hand it on by argument or environment, never by XCom or command line.

    Raises AirflowNotFoundException when there is no such connection, SettingsError when it names no database.
    """
    from airflow.sdk import Connection

    found = Connection.get(conn_id)
    return connections.sqlalchemy_url(
        found.conn_type,
        host=found.host,
        schema=found.schema,
        login=found.login,
        password=found.password,
        port=found.port,
        extra=found.extra_dejson,
    )


def connection_url(conn_id: str) -> str:
    """SQLAlchemy URL of a database connection; of an `http` or `openai` one its address with the API key as password.

    An endpoint's address stands in `host` (`https://api.example.com/v1`), its key in `password`. Handle as a secret.
    """
    from airflow.sdk import Connection

    found = Connection.get(conn_id)
    if found.conn_type not in ("http", "openai"):
        return sqlalchemy_url(conn_id)
    host = found.host or ""
    address = urlsplit(host if "://" in host else f"{found.schema or 'http'}://{host}")
    port = found.port or address.port
    place = (address.hostname or "") + (f":{port}" if port else "")
    key = f":{quote(found.password, safe='')}@" if found.password else ""
    return f"{address.scheme}://{key}{place}{address.path}"
