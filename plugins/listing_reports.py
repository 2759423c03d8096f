"""Airflow plugin: run history, trends, reports and quarantine in Airflow's own pages. Wiring only; see `listing_ui`.

Every Airflow process imports this file. The web application is made when the API server asks for it, and nowhere else.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from airflow.plugins_manager import AirflowPlugin

from listing_ui.addresses import MOUNT, PAGE, mounted_at
from listing_ui.links import RunReportLink

TITLE = "Listing runs"


class ListingReportsPlugin(AirflowPlugin):
    """Mounts the application, puts it into the navigation and gives the nightly DAG's task instances a link to it."""

    name = "listing_reports"
    external_views: list[dict[str, Any]] = [  # noqa: RUF012 - as Airflow declares it
        {"name": TITLE, "href": f"{mounted_at()}/", "destination": "nav", "category": "browse", "url_route": PAGE}
    ]
    global_operator_extra_links: list[Any] = [RunReportLink()]  # noqa: RUF012

    @cached_property
    def fastapi_apps(self) -> list[dict[str, Any]]:  # type: ignore[override]
        from listing_ui.app import create_app

        return [{"app": create_app(), "url_prefix": MOUNT, "name": TITLE}]
