"""A batch as a whole: nothing lost, nothing twice, nothing half-written, and memory flat in the number of lines."""

from __future__ import annotations

import fcntl
import itertools
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from include.batch.results import GrowingFile
from include.generation.engine import EngineError, Output, Request
from include.settings import SettingsError
from tests.batching import jsonl, line, rows_of
from tests.generating import say


class Killed(BaseException):
    """Ends the process's work at once, as a signal does."""


def many(count: int) -> bytes:
    return jsonl(*(line(f"id-{n}") for n in range(count)))


def dying_after(count: int) -> Any:
    left = itertools.count(count, -1)

    def answer(request: Request) -> Output:
        if next(left) <= 0:
            raise Killed
        return say("Fine.")(request)

    return answer


def test_a_killed_run_publishes_nothing_and_the_next_one_does_only_what_is_missing(batch: Any) -> None:
    made = batch(batch_size=1)
    bad = line("bad", stream=True)
    with pytest.raises(Killed):
        made.run(jsonl(bad) + many(40), dying_after(15))
    assert not made.out.exists()
    assert not made.errors.exists()
    assert not made.manifest.exists()
    part = made.out.with_name("results.jsonl.part")
    assert len(rows_of(part)) == 15
    with open(part, "ab") as file:
        file.write(b'{"id": "batch_req_to')
    manifest = made.run()
    assert len(made.asked) == 25
    assert manifest["request_counts"] == {"total": 41, "completed": 40, "failed": 1}
    assert manifest["resumed"] == 16
    assert manifest["usage"]["output_tokens"] == 120
    assert sorted(row["custom_id"] for row in rows_of(made.out)) == sorted(f"id-{n}" for n in range(40))
    assert made.codes() == [(1, "unsupported_parameter")]
    assert not list(made.out.parent.glob("*.part"))


def test_a_finished_batch_is_not_run_again_and_a_changed_one_is_run_whole(batch: Any) -> None:
    made = batch()
    first = made.run(many(6))
    again = made.run(None)
    assert (made.asked, again["fingerprint"]) == ([], first["fingerprint"])
    assert not list(made.out.parent.glob("*.part"))
    made.run(many(7))
    assert len(made.asked) == 7
    assert len(rows_of(made.out)) == 7
    other = batch_with(made, sampling_params={"temperature": 0.5})
    other.run(None)
    assert len(other.asked) == 7
    other.run(None, aliases=["gpt-x"])
    assert len(other.asked) == 7


def batch_with(made: Any, **changes: Any) -> Any:
    stub = made.settings.engines["stub"].model_copy(update=changes)
    made.settings = made.settings.model_copy(update={"engines": made.settings.engines | {"stub": stub}})
    return made


def test_a_part_of_other_settings_is_dropped(batch: Any) -> None:
    made = batch(batch_size=1)
    with pytest.raises(Killed):
        made.run(many(8), dying_after(5))
    assert batch_with(made, lineage="another").run()["resumed"] == 0
    assert len(made.asked) == 8


def test_a_new_batch_never_stands_beside_the_manifest_of_the_one_before(
    batch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = batch()
    made.run(many(3))

    def full(self: GrowingFile) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(GrowingFile, "publish", full)
        with pytest.raises(OSError, match="No space left"):
            made.run(many(4))
    assert not made.manifest.exists()
    assert made.run()["request_counts"]["completed"] == 4
    assert made.asked == []


@pytest.mark.parametrize("renamed", [["errors"], ["errors", "results"]])
def test_a_kill_between_the_renames_loses_nothing(batch: Any, renamed: list[str]) -> None:
    made = batch()
    made.run(jsonl(line("bad", n=3)) + many(5))
    made.manifest.unlink()
    for name in {"errors", "results"} - set(renamed):
        (made.out.parent / f"{name}.jsonl").rename(made.out.parent / f"{name}.jsonl.part")
    manifest = made.run()
    assert (made.asked, manifest["resumed"]) == ([], 6)
    assert (len(rows_of(made.out)), len(rows_of(made.errors))) == (5, 1)


def test_a_failure_of_ours_is_tried_again_and_then_told(batch: Any) -> None:
    made = batch()
    made.run(many(3), lambda r: say("", error="engine_failed", detail="abort")(r) if r.id == "2" else say("Fine.")(r))
    assert made.asked.count("2") == 3
    assert made.codes() == [(2, "engine_failed")]
    assert rows_of(made.errors)[0]["response"] is None


def test_a_line_that_breaks_the_engine_costs_only_itself(batch: Any) -> None:
    made = batch()
    manifest = made.run(many(20), lambda r: None if r.id == "7" else say("Fine.")(r))
    assert manifest["request_counts"] == {"total": 20, "completed": 19, "failed": 1}
    assert made.codes() == [(7, "engine_breaking_row")]


def test_results_stand_in_the_order_in_which_they_finished(batch: Any) -> None:
    made = batch(batch_size=2)
    made.run(many(3))
    assert [row["custom_id"] for row in rows_of(made.out)] == ["id-1", "id-2", "id-0"]


def test_a_second_writer_is_told_to_wait(batch: Any) -> None:
    made = batch()
    with open(made.out.with_name("results.jsonl.part"), "ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(EngineError, match="another process") as caught:
            made.run(many(1))
    assert (caught.value.kind, caught.value.retryable) == ("output_busy", True)


def test_what_a_person_can_mend_is_one_line_with_the_next_step(batch: Any, tmp_path: Path) -> None:
    made = batch()
    with pytest.raises(FileNotFoundError, match=r"no request file .*--in"):
        made.run(None)
    made.out = made.source
    with pytest.raises(SettingsError, match="one file twice"):
        made.run(many(1))
    from include.batch.run import run_batch

    with pytest.raises(SettingsError, match="no engine profile 'none'"):
        run_batch(made.settings, "none", tmp_path / "x", tmp_path / "y", tmp_path / "z")


def test_memory_is_flat_over_ten_thousand_lines(batch: Any) -> None:
    """What is kept of a line is its id's digest: well below the 1.5 KB of its request and result."""
    made = batch(batch_size=8)
    peaks = []
    for count in (1_000, 10_000):
        with open(made.source, "wb") as file:
            for number in range(count):
                file.write(
                    json.dumps(
                        line(f"id-{number}", messages=[{"role": "user", "content": f"{number} " * 100}])
                    ).encode()
                    + b"\n"
                )
        tracemalloc.start()
        try:
            manifest = made.run(None)
            for engine in made.engines.opened:
                engine.seen.clear()
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
        assert manifest["request_counts"]["completed"] == count
    assert (peaks[1] - peaks[0]) / 9_000 < 300
