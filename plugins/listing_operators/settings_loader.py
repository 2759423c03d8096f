"""Loads `airflow_settings.yaml` into Airflow's metadata database: `python -m listing_operators.settings_loader`.

One process and one transaction, since every `airflow` command costs seconds to start. Running it
again writes the same entries again; what was edited of them in the UI is lost.
"""

from __future__ import annotations

import json
import logging
from typing import Any

from include.connections import read_airflow_settings

log = logging.getLogger(__name__)

_FIELDS = ("conn_type", "host", "schema", "login", "password", "port")


def _save_connection(session: Any, entry: dict[str, Any]) -> None:
    from airflow.models import Connection
    from sqlalchemy import select

    found = session.scalar(select(Connection).where(Connection.conn_id == entry["conn_id"]))
    if found is None:
        found = Connection(conn_id=entry["conn_id"])
        session.add(found)
    for name in _FIELDS:
        value = entry.get(name if name == "conn_type" else f"conn_{name}")
        found.__setattr__(name, value if value != "" else None)
    extra = entry.get("conn_extra")
    found.extra = json.dumps(extra) if isinstance(extra, dict) else extra


def load_airflow_settings() -> dict[str, int]:
    """Writes connections, pools and variables as the file has them; entries of other names are left alone.

    Returns how many of each. Raises SettingsError when the file cannot be read.
    """
    settings = read_airflow_settings()

    from airflow.models import Pool, Variable
    from airflow.utils.session import create_session

    with create_session() as session:
        for entry in settings["connections"]:
            _save_connection(session, entry)
        for entry in settings["pools"]:
            Pool.create_or_update_pool(
                entry["pool_name"],
                int(entry["pool_slot"]),
                str(entry.get("pool_description") or ""),
                bool(entry.get("pool_include_deferred", False)),
                session=session,
            )
        for entry in settings["variables"]:
            Variable.set(entry["variable_name"], entry["variable_value"], session=session)
    return {kind: len(entries) for kind, entries in settings.items()}


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    counts = load_airflow_settings()
    log.info("airflow_settings.yaml loaded: %s", ", ".join(f"{n} {kind}" for kind, n in counts.items()))
