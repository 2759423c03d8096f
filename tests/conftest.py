"""What holds for every test: no call home, no hub, an Airflow home of its own, the same examples on every machine."""

import os
import tempfile

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
