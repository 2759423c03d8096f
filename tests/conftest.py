"""What holds for every test: no call home, no hub, an Airflow home of its own, the same examples on every machine."""

import os
import tempfile
from typing import NoReturn

import hypothesis

_HOME = tempfile.TemporaryDirectory(prefix="airflow-home-")
os.environ.update(
    AIRFLOW_HOME=_HOME.name,
    GX_ANALYTICS_ENABLED="false",
    HF_HUB_OFFLINE="1",
    VLLM_NO_USAGE_STATS="1",
)
hypothesis.settings.register_profile("project", deadline=None, derandomize=True, max_examples=60)
hypothesis.settings.load_profile("project")


_PID, _exit = os.getpid(), os._exit


def _end(status: int) -> NoReturn:
    """A stage's child ends by this; called by a test itself it would end the suite there, with the child's status: green."""
    if os.getpid() == _PID:
        raise AssertionError(f"os._exit({status}) in the tests' own process: start the command in a process of its own")
    _exit(status)


os._exit = _end
