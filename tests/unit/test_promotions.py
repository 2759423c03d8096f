"""Promotions: what is in force on which device, how it ends, and that no file of theirs stops a night."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from include.promotions import current, in_force, promote, promoted_devices, roll_back
from include.settings import EngineProfile, Settings, load_settings

NAME, DEVICE = "gpu-qwen3-4b", "NVIDIA H200/141GB"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return with_engine(load_settings(), tmp_path)


def with_engine(settings: Settings, folder: Path, **changes: Any) -> Settings:
    values = settings.model_dump()
    values["pipeline"]["state_url"] = str(folder)
    values["engines"][NAME] |= changes
    return Settings.model_validate(values)


def tuned(settings: Settings, seqs: int) -> EngineProfile:
    base = settings.engines[NAME]
    args = base.engine_args | {"max_num_seqs": seqs}
    return base.model_copy(update={"engine_args": args, "batch_size": 2 * seqs, "model": "org/checkpoint-fp8"})


def test_a_promotion_is_in_force_on_its_device_alone(settings: Settings, tmp_path: Path) -> None:
    configured = settings.engines[NAME]
    assert in_force(settings, NAME, DEVICE) == configured
    version = promote(settings, NAME, DEVICE, tuned(settings, 512), {"versions": {"vllm": "0.32.0"}, "x": 1}, "ann")
    assert in_force(settings, NAME, DEVICE) == tuned(settings, 512)
    assert in_force(settings, NAME, "cpu") == configured
    assert promote(settings, NAME, DEVICE, tuned(settings, 512), {}, "ann") == version  # a task tried again
    stored = json.loads((tmp_path / "engines" / NAME / "NVIDIA_H200_141GB" / f"{version}.json").read_text())
    assert (stored["approved_by"], stored["evidence"]["x"], stored["versions"]) == ("ann", 1, {"vllm": "0.32.0"})
    assert promoted_devices(settings, NAME) == ["NVIDIA_H200_141GB"]


def test_what_the_model_says_stays_the_configurations(settings: Settings, tmp_path: Path) -> None:
    promote(settings, NAME, DEVICE, tuned(settings, 512), {}, "ann")
    later = with_engine(settings, tmp_path, sampling_params={"temperature": 0.1}, lease_wait_s=7.0)
    found = in_force(later, NAME, DEVICE)
    assert (found.sampling_params, found.lease_wait_s, found.batch_size) == ({"temperature": 0.1}, 7.0, 1024)
    assert found.lineage == settings.engines[NAME].lineage
    with pytest.raises(ValueError, match="keeps lineage"):
        promote(settings, NAME, DEVICE, tuned(settings, 512).model_copy(update={"lineage": "other"}), {}, "ann")


def test_roll_back_goes_to_what_stood_before_and_keeps_history(settings: Settings, tmp_path: Path) -> None:
    first = promote(settings, NAME, DEVICE, tuned(settings, 128), {}, "ann")
    promote(settings, NAME, DEVICE, tuned(settings, 256), {}, "ann")
    assert roll_back(settings, NAME, DEVICE) == first
    promote(settings, NAME, DEVICE, tuned(settings, 512), {}, "bob")
    assert roll_back(settings, NAME, DEVICE) == first  # not to the one that was rolled back before
    assert in_force(settings, NAME, DEVICE) == tuned(settings, 128)
    assert roll_back(settings, NAME, DEVICE) is None
    assert in_force(settings, NAME, DEVICE) == settings.engines[NAME]
    assert promoted_devices(settings, NAME) == []
    with pytest.raises(ValueError, match="nothing is promoted"):
        roll_back(settings, NAME, DEVICE)
    assert len(list((tmp_path / "engines" / NAME).glob("*/2*.json"))) == 3


@pytest.mark.parametrize("change", [{"model": "org/newer"}, {"lineage": "newer"}, {"revision": "b" * 40}])
def test_a_newer_configured_model_ends_the_promotion(
    settings: Settings, tmp_path: Path, change: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    promote(settings, NAME, DEVICE, tuned(settings, 512), {}, "ann")
    newer = with_engine(settings, tmp_path, **change)
    with caplog.at_level(logging.WARNING):
        assert in_force(newer, NAME, DEVICE) == newer.engines[NAME]
    assert "another model" in caplog.text


def test_a_checkpoint_that_is_gone_leads_to_the_configured_profile(
    settings: Settings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint = tmp_path / "quantized"
    checkpoint.mkdir()
    promote(settings, NAME, DEVICE, tuned(settings, 512).model_copy(update={"model": str(checkpoint)}), {}, "ann")
    assert in_force(settings, NAME, DEVICE).model == str(checkpoint)
    checkpoint.rmdir()
    with caplog.at_level(logging.WARNING):
        assert in_force(settings, NAME, DEVICE) == settings.engines[NAME]
    assert "which is not there: the configured profile runs" in caplog.text
    assert roll_back(settings, NAME, DEVICE) is None


def test_a_roll_back_to_a_promotion_whose_file_is_gone_leads_to_the_configured_profile(
    settings: Settings, tmp_path: Path
) -> None:
    first = promote(settings, NAME, DEVICE, tuned(settings, 512), {}, "ann")
    promote(settings, NAME, DEVICE, tuned(settings, 256), {}, "ann")
    (gone,) = tmp_path.rglob(f"{first}.json")
    gone.unlink()
    assert roll_back(settings, NAME, DEVICE) is None
    assert in_force(settings, NAME, DEVICE) == settings.engines[NAME]


@pytest.mark.parametrize("content", ["{", "[1]", '{"version": "gone"}', "\x00", '{"version": 7}'])
@pytest.mark.parametrize("which", ["current.json", "2*.json"])
def test_an_unreadable_file_leads_to_the_configured_profile(
    settings: Settings, tmp_path: Path, which: str, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    promote(settings, NAME, DEVICE, tuned(settings, 512), {}, "ann")
    next((tmp_path / "engines" / NAME).glob(f"*/{which}")).write_text(content)
    with caplog.at_level(logging.WARNING):
        assert current(settings, NAME, DEVICE) is None
        assert in_force(settings, NAME, DEVICE) == settings.engines[NAME]
    assert caplog.text
    assert roll_back(settings, NAME, DEVICE) is None
