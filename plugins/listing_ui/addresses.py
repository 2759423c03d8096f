"""Where the pages stand: on their own, and inside Airflow's frame. Cheap to import, as every Airflow process does."""

from __future__ import annotations

from urllib.parse import urlsplit

from airflow.sdk import conf

DAG_ID = "enhance_listings"
MOUNT, PAGE = "/listing-reports", "listing-reports"


def _root() -> str:
    """Path of Airflow's own address: empty, or such as `/airflow` behind a proxy."""
    return urlsplit(conf.get("api", "base_url", fallback="") or "").path.rstrip("/")


def mounted_at() -> str:
    """Path of the application on the API server, without a slash at its end."""
    return _root() + MOUNT


def framed(path: str) -> str:
    """Path of one of its pages within Airflow's frame, where the navigation stays in view."""
    return f"{_root()}/plugin/{PAGE}{mounted_at()}{path}"
