"""The shipped configuration on a part of the sample catalog: its gate lets the adapters' copy out, and not the base model's."""

from __future__ import annotations

import pytest

from tests.nightly import Nightly, sample_rows

pytestmark = [pytest.mark.engine, pytest.mark.long]
ROWS = 70


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> Nightly:
    nightly = Nightly(tmp_path_factory.mktemp("gate"))
    (nightly.config / "tasks" / "description.yaml").unlink()
    nightly.set_up(sample_rows(ROWS))
    return nightly


def test_the_gate_passes_the_adapters_copy_against_the_configured_baseline(night: Nightly) -> None:
    done = night.run()
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    task = night.summary()["tasks"]["title"]
    assert (task["gate"]["status"], task["gate"]["mode"], task["gate"]["override"]) == ("passed", "calibrated", "")
    assert task["loaded"] > ROWS / 2


def test_the_gate_fails_when_the_base_model_is_swapped_in(night: Nightly) -> None:
    night.edit("tasks/title.yaml", lambda c: c | {"engine": "cpu-smollm2"})
    done = night.run(force=True)
    assert done.returncode != 0
    task = night.summary()["tasks"]["title"]
    assert (task["outcome"], task["loaded"]) == ("gate_failed", 0)
    assert any("judge pass rate" in reason or "validators" in reason for reason in task["gate"]["reasons"])
