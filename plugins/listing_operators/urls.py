"""SQLAlchemy URLs of Airflow's connections, for use inside a task."""

from __future__ import annotations

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
