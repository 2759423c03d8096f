"""The folder that a night and its tuning run live in."""

from __future__ import annotations

from pathlib import Path

import pytest

from include.tuning import quality


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "model" / "model.safetensors").write_bytes(b"weights")
    monkeypatch.setenv("LISTING_LEASE_DIR", str(tmp_path / "leases"))
    monkeypatch.setattr(quality, "device_name", lambda: "NVIDIA X")
    return tmp_path
