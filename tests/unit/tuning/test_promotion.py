"""What it takes to be promoted, and the way back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from include import promotions
from include.settings import Settings
from include.tuning import __main__ as commands
from include.tuning.promotion import choose, note_question, promote_best, roll_back_task
from include.tuning.trials import write_json
from tests.tuned_runs import RATES, judged, night, tuned


def test_the_fastest_finalist_whose_quality_holds_is_promoted_and_rolled_back(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, settings = night(home)
    monkeypatch.setattr(commands, "load_settings", lambda: settings)
    folder = tuned(home, settings, RATES | {"fast": [120.0, 121.0, 119.5], "slower": [99.0, 100.0, 101.0]})
    judged(folder, fast=False, **{"wild/../ü": True}, slower=True)
    assert commands.main(["promote", "--dir", str(folder), "--approved-by", "ann"]) == 0
    assert "wild/../ü is in force" in capsys.readouterr().out
    assert promotions.in_force(settings, "stub", "NVIDIA X").batch_size == 6
    stored = promotions.current(settings, "stub", "NVIDIA X")
    assert stored is not None
    assert (stored.approved_by, stored.versions, stored.evidence["quality"]["why"]) == (
        "ann",
        {"vllm": "0.32.0"},
        "fine",
    )
    assert commands.main(["roll-back", "--task", "title"]) == 0
    assert "the configured profile is in force" in capsys.readouterr().out
    assert promotions.in_force(settings, "stub", "NVIDIA X") == settings.engines["stub"]
    assert commands.main(["roll-back", "--task", "title"]) == 2
    assert "nothing is promoted" in capsys.readouterr().err


@pytest.mark.parametrize(("side", "told"), [("incumbent", "the incumbent failed"), ("fast", "fast failed")])
def test_repeats_that_an_engine_did_not_survive_are_no_proof(home: Path, side: str, told: str) -> None:
    _, settings = night(home)
    folder = tuned(home, settings, {name: RATES[name] for name in ("incumbent", "fast")})
    judged(folder, fast=True)
    assert choose(folder)["candidate"] == "fast"
    result = json.loads((folder / "result.json").read_text())
    row = result["incumbent"] if side == "incumbent" else result["finalists"][0]
    row["error"] = "the engine's process ended with status -9"
    write_json(folder / "result.json", result)
    with pytest.raises(ValueError, match=rf"{told} in a repeat: the engine's process ended with status -9"):
        choose(folder)


def test_a_promotion_replaces_what_it_was_compared_with_and_nothing_else(home: Path) -> None:
    """Two runs begin with one incumbent: the second one's finalist was never compared with the first one's."""
    _, settings = night(home)
    folder = tuned(home, settings, {name: RATES[name] for name in ("incumbent", "fast")})
    judged(folder, fast=True)
    assert "fast is in force" in promote_best(folder, settings, "ann")
    assert "fast is in force" in promote_best(folder, settings, "ann"), "a task tried again"
    other = tuned(home, settings, RATES | {"fast": []})
    judged(other, **{"wild/../ü": True})
    with pytest.raises(ValueError, match=r"another profile is in force on NVIDIA X since.*tune again"):
        promote_best(other, settings, "ann")
    assert promotions.in_force(settings, "stub", "NVIDIA X").batch_size == 5


def test_an_approval_is_for_the_profile_that_the_approver_saw(home: Path) -> None:
    _, settings = night(home)
    folder = tuned(home, settings, RATES)
    judged(folder, **{"fast": True, "wild/../ü": True})
    with pytest.raises(ValueError, match="the approver was asked about another: clear `approve`"):
        promote_best(folder, settings, "ann", as_asked=True)
    note_question(folder)
    judged(folder, **{"fast": False, "wild/../ü": True})  # compared again, on more listings
    with pytest.raises(ValueError, match=r"the choice is wild/\.\./ü now"):
        promote_best(folder, settings, "ann", as_asked=True)
    judged(folder, **{"fast": True, "wild/../ü": True})
    assert "fast is in force" in promote_best(folder, settings, "ann", as_asked=True)


def test_a_roll_back_that_stops_half_way_goes_on_with_the_others_and_names_what_is_left(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, settings = night(home)
    faster = settings.engines["stub"].model_copy(update={"batch_size": 9})
    for device in ("GPU-A", "GPU-B", "GPU-C"):
        promotions.promote(settings, "stub", device, faster, {}, "ann")
    whole = promotions.roll_back

    def full(settings: Settings, name: str, device: str) -> str | None:
        if device == "GPU-B":
            raise OSError(28, "No space left on device")
        return whole(settings, name, device)

    monkeypatch.setattr(promotions, "roll_back", full)
    with pytest.raises(RuntimeError, match=r"GPU-A: the configured.*not rolled back: GPU-B: .*No space left"):
        roll_back_task(settings, "title")
    windows = [promotions.in_force(settings, "stub", device).batch_size for device in ("GPU-A", "GPU-B", "GPU-C")]
    assert windows == [4, 9, 4]


def test_what_is_not_faster_not_compared_or_not_as_good_is_refused_in_one_line(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, settings = night(home)
    monkeypatch.setattr(commands, "load_settings", lambda: settings)

    def refusal(folder: Path) -> str:
        assert commands.main(["promote", "--dir", str(folder)]) == 2
        told = capsys.readouterr().err
        assert told.startswith("error: nothing is promoted: ")
        assert told.count("\n") == 1
        return told

    assert "no finished tuning run" in refusal(home)
    assert "no finalist" in refusal(tuned(home, settings, {"incumbent": [100.0, 101.0]}))
    assert "incumbent was not measured" in refusal(tuned(home, settings, {"incumbent": [], "fast": [5.0, 6.0]}))
    assert "could not be measured" in refusal(tuned(home, settings, {"incumbent": [1.0, 1.1], "fast": []}))
    assert "for want of repeats" in refusal(tuned(home, settings, {"incumbent": [1.0, 1.1], "fast": [5.0]}))
    noise = {"incumbent": [100.0, 101.0, 99.0], "fast": [101.0, 99.5, 102.0]}
    assert "not shown to be faster" in refusal(tuned(home, settings, noise))
    folder = tuned(home, settings, RATES)
    assert "quality of fast was not compared" in refusal(folder)
    judged(folder, fast=False)
    assert "fast: judge pass rate may fall" in refusal(folder)
    judged(folder, fast=True)
    newer = settings.engines | {"stub": settings.engines["stub"].model_copy(update={"lineage": "newer"})}
    monkeypatch.setattr(commands, "load_settings", lambda: settings.model_copy(update={"engines": newer}))
    assert "another model since" in refusal(folder)
