"""The button on a task instance of the nightly DAG that leads to the pages of its run."""

from __future__ import annotations

import contextlib
import json
import re
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperatorLink

from listing_ui.addresses import DAG_ID, framed

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey

_FOLDER = re.compile(r"/dt=([0-9-]+)/run=([A-Za-z0-9_.-]+)/?$")


def _run_dir(run_id: str) -> Any:
    """What `open_run` returned: the run's folder, or None as long as it has not been opened. For the API server only."""
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session

    with create_session() as session:
        found = session.execute(
            XComModel.get_many(
                key="return_value", run_id=run_id, dag_ids=DAG_ID, task_ids="open_run"
            ).with_only_columns(XComModel.value)
        ).first()
    value = found.value if found else None
    if isinstance(value, str):
        with contextlib.suppress(ValueError):  # stored as JSON text
            return json.loads(value)
    return value


class RunReportLink(BaseOperatorLink):
    """Made by the API server when a task instance is shown; other DAGs' tasks get no button."""

    @property
    def name(self) -> str:
        return "Run report and quarantine"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Address of the run's page, or an empty text for tasks of other DAGs and before the run is opened."""
        if ti_key.dag_id != DAG_ID:
            return ""
        folder = _FOLDER.search(str(_run_dir(ti_key.run_id) or ""))
        return framed(f"/runs/{folder[1]}/{folder[2]}") if folder else ""
