"""Sessions: no engine without a request, a breaking row found, settings stepped down, the real error on top."""

from __future__ import annotations

import logging
import math
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from include.generation import session as session_module
from include.generation.engine import EngineDeadError, EngineError, EngineStartError, Output, Request
from include.generation.ladder import RUNGS, demoted
from include.generation.metrics import device_seconds
from include.generation.progress import Progress
from include.generation.session import CANARY, Session
from include.settings import EngineProfile
from tests.generating import Engines, StubEngine, profile, requests, say


@pytest.fixture(autouse=True)
def _no_device(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setenv("LISTING_LEASE_DIR", str(tmp_path / "leases"))
    monkeypatch.setattr(session_module, "check_profile", lambda *_, **__: None)


def poisoned(*bad: str):
    return lambda request: None if request.id in bad else say("fine")(request)


def test_no_request_starts_no_engine() -> None:
    engines = Engines(say("x"))
    with Session(profile(), open_engine=engines) as session:
        assert list(session.run([])) == []
        assert session.report()["engine_starts"] == 0
    assert not engines.opened


def test_the_engine_ends_with_the_session_and_the_report_counts() -> None:
    engines = Engines(say("x", cached_tokens=4))
    with Session(profile(), open_engine=engines) as session:
        assert len(list(session.run(requests(10)))) == 10
        report = session.report()
    assert [engine.ended for engine in engines.opened] == [True]
    assert report["requests"] == 10
    assert report["prompt_tokens"] == 100
    assert report["prefix_cache_hit_rate"] == 0.4
    assert report["requests_per_s"] > 0


def test_the_rate_of_a_stage_counts_from_the_engines_start_and_no_later_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = [0.0]
    monkeypatch.setattr(session_module.time, "monotonic", lambda: clock[0])  # the one clock of all modules
    deaths = iter([True])

    class Slow(Engines):
        def make(self, profile: EngineProfile) -> StubEngine:
            clock[0] += 100.0
            return super().make(profile)

    def answer(request: Request) -> Output | None:
        clock[0] += 1.0
        return None if request.id == "r5" and next(deaths, False) else say("x")(request)

    progress = Progress(logging.getLogger("stage"), "judge", 10, every_seconds=math.inf)
    with Session(profile(), open_engine=Slow(answer)) as session:
        for _ in session.run(requests(10), progress=progress):
            progress.add()
    assert clock[0] > 200  # it died once
    with caplog.at_level(logging.INFO, "stage"):
        progress.report()
    (line,) = (record.getMessage() for record in caplog.records if record.name == "stage")
    rate = 10 / (clock[0] - 100)
    assert line == f"judge: 10/10 (100%), {rate:.1f}/s, 0:00 left"


def test_device_seconds_are_starts_and_work_times_devices_and_no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(session_module.time, "monotonic", lambda: clock[0])

    class Slow(Engines):
        def make(self, profile: EngineProfile) -> StubEngine:
            clock[0] += 7.0
            return super().make(profile)

    def lease(*_: object, **__: object) -> object:
        clock[0] += 1000.0
        return nullcontext(SimpleNamespace(record=lambda pids: None))

    def answer(request: Request) -> Output:
        clock[0] += 2.0
        return say("x")(request)

    monkeypatch.setattr(session_module, "device_lease", lease)
    cases = [({"engine_args": {"tensor_parallel_size": given}}, count) for given, count in ((2, 2), (None, 1))]
    for changes, devices in (({}, 1), *cases, ({"kind": "openai"}, 0)):
        with Session(profile(batch_size=1, **changes), open_engine=Slow(answer)) as session:
            list(session.run(requests(3)))
            report = session.report()
        assert report["busy_s"] == 6.0
        assert report["device_s"] == 13.0 * devices
    assert device_seconds({"device_s": 4.5}, report | {"device_s": 2.0}) == 6.5
    assert device_seconds(None, {}) == 0.0


@pytest.mark.parametrize("bad", [("r0",), ("r37",), ("r99",), ("r3", "r64")])
def test_rows_that_break_the_engine_are_found_and_all_others_answered(bad: tuple[str, ...]) -> None:
    engines = Engines(poisoned(*bad))
    with Session(profile(batch_size=32), open_engine=engines) as session:
        outputs = {o.id: o for o in session.run(requests(100))}
    assert len(outputs) == 100
    assert {o.id for o in outputs.values() if o.error} == set(bad)
    assert all(outputs[i].error == "engine_breaking_row" and outputs[i].row_at_fault for i in bad)
    assert len(engines.opened) <= 1 + len(bad) * (2 + math.ceil(math.log2(32)))
    assert all(engine.ended for engine in engines.opened)


def test_a_group_of_suspects_larger_than_the_window_loses_none_of_them() -> None:
    with Session(profile(batch_size=8), open_engine=Engines(poisoned("r50"))) as session:
        death = EngineDeadError("killed", kind="engine_failed")
        outputs = {o.id: o for o in session._isolate(list(requests(100)), death)}
    assert len(outputs) == 100
    assert [o.id for o in outputs.values() if o.error] == ["r50"]


def test_more_breaking_rows_than_the_cap_blame_the_engine() -> None:
    engines = Engines(poisoned(*(f"r{n}" for n in range(0, 40, 2))))
    with Session(profile(max_breaking_rows=2, max_engine_deaths=99), open_engine=engines) as session:
        outputs: list[Output] = []
        with pytest.raises(EngineDeadError, match=r"more than 2 rows .* illegal memory access"):
            outputs.extend(session.run(requests(40)))
    assert sum(o.error == "engine_breaking_row" for o in outputs) == 2


def test_an_engine_that_dies_on_everything_ends_with_its_own_error_after_the_ladder() -> None:
    engines = Engines(lambda request: None)
    with (
        Session(profile(batch_size=64, engine_args={"max_num_seqs": 64}), open_engine=engines) as session,
        pytest.raises(EngineDeadError, match="illegal memory access"),
    ):
        list(session.run(requests(200)))
    assert len(engines.opened) <= 2 * (RUNGS + 1)
    assert all(CANARY in engine.seen for engine in engines.opened[1::2])


def test_out_of_memory_steps_down_and_loses_nothing() -> None:
    class Greedy(StubEngine):
        def finished(self) -> list[Output]:
            if self.profile.engine_args.get("max_num_seqs", 64) > 16:
                raise EngineDeadError("torch.OutOfMemoryError: CUDA out of memory", kind="out_of_memory")
            return super().finished()

    class GreedyEngines(Engines):
        def make(self, profile):
            return Greedy(profile, self.answer)

    engines = GreedyEngines(say("x"))
    with Session(profile(batch_size=64, engine_args={"max_num_seqs": 64}), open_engine=engines) as session:
        assert len(list(session.run(requests(150)))) == 150
        report = session.report()
    assert [step["max_num_seqs"] for step in report["demotions"]] == [32, 16]
    assert report["demotions"][0]["after"] == "out_of_memory"
    assert report["engine_deaths"] == 2


def test_a_start_out_of_memory_steps_down_and_another_failure_does_not() -> None:
    tried = []

    def refuse_large(profile, *, adapters=()):
        tried.append(profile.engine_args["max_num_seqs"])
        if tried[-1] > 32:
            raise EngineStartError("No available memory for the cache blocks", kind="out_of_memory")
        return Engines(say("x"))(profile)

    with Session(profile(batch_size=64, engine_args={"max_num_seqs": 64}), open_engine=refuse_large) as session:
        assert len(list(session.run(requests(5)))) == 5
    assert tried == [64, 32]

    def refuse(profile, *, adapters=()):
        raise EngineStartError("no model", kind="model_not_found", retryable=False)

    with Session(profile(), open_engine=refuse) as session, pytest.raises(EngineStartError, match="no model"):
        list(session.run(requests(5)))


def test_a_death_that_no_row_explains_steps_down_once_and_goes_on() -> None:
    class Once(StubEngine):
        deaths = 0

        def finished(self) -> list[Output]:
            if "r20" in {r.id for r in self.flight} and not Once.deaths:
                Once.deaths += 1
                raise EngineDeadError("signal 9", kind="engine_failed")
            return super().finished()

    class OnceEngines(Engines):
        def make(self, profile):
            return Once(profile, self.answer)

    with Session(profile(batch_size=16), open_engine=OnceEngines(say("x"))) as session:
        outputs = list(session.run(requests(60)))
        report = session.report()
    assert sorted(o.id for o in outputs) == sorted(r.id for r in requests(60))
    assert not any(o.error for o in outputs)
    assert report["engine_deaths"] == 1
    assert len(report["demotions"]) == 1


def test_a_consumer_that_stops_early_still_ends_the_engine() -> None:
    engines = Engines(say("x"))
    with Session(profile(), open_engine=engines) as session:
        next(session.run(requests(10)))
    assert engines.opened[0].ended


def test_the_ladder_keeps_a_window_that_feeds_the_engine() -> None:
    start = profile(batch_size=1024, engine_args={"max_num_seqs": 512, "max_num_batched_tokens": 16384})
    steps = [demoted(start, rung) for rung in range(RUNGS + 1)]
    assert steps[0] is start
    assert [s.engine_args["max_num_seqs"] for s in steps] == [512, 256, 128, 64]
    assert [s.batch_size for s in steps] == [1024, 512, 256, 128]
    assert all(s.engine_args["max_num_batched_tokens"] >= s.engine_args["max_num_seqs"] for s in steps[1:])
    assert steps[3].engine_args["gpu_memory_utilization"] == pytest.approx(0.75)


def test_errors_keep_their_kind_through_the_cap() -> None:
    engines = Engines(poisoned("r1"))
    with Session(profile(max_engine_deaths=0), open_engine=engines) as session, pytest.raises(EngineError) as caught:
        list(session.run([Request(id="r1", messages=[])]))
    assert caught.value.kind == "engine_failed"
