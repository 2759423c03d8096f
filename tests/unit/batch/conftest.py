"""A batch on a stub engine, whose profile names a model folder without a model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from include.batch import run as run_module
from include.generation import session as session_module
from include.settings import Settings, load_settings
from tests.batching import Batch
from tests.generating import profile


@pytest.fixture
def batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Batch]:
    """Makes a Batch; keyword arguments change its engine profile."""
    monkeypatch.setenv("LISTING_LEASE_DIR", str(tmp_path / "leases"))
    monkeypatch.setattr(session_module, "check_profile", lambda *_, **__: None)
    monkeypatch.setattr(run_module, "check_profile", lambda *_, **__: None)
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")

    def make(**changes: Any) -> Batch:
        values = load_settings().model_dump()
        values["pipeline"]["state_url"] = str(tmp_path / "state")
        values["engines"]["stub"] = profile(model=str(model), **changes).model_dump()
        return Batch(tmp_path, Settings.model_validate(values), monkeypatch)

    return make
