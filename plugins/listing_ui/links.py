"""The button on a task instance of the nightly DAG that leads to the pages of its run."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from airflow.sdk import BaseOperatorLink

from listing_ui.addresses import DAG_ID, framed

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey


class RunReportLink(BaseOperatorLink):
    """Made by the API server when a task instance is shown; other DAGs' tasks get no button."""

    @property
    def name(self) -> str:
        return "Run report and quarantine"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Address that leads to the run's page, or an empty text for tasks of other DAGs."""
        return framed(f"/find/{quote(ti_key.run_id, safe='')}") if ti_key.dag_id == DAG_ID else ""
