"""The refill window: every request answered once, the engine never fed beyond the window, one window read ahead."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

import pytest

from include.generation.engine import EngineDeadError, Output, Request
from include.generation.window import run_window
from tests.generating import StubEngine, profile, requests, say


@pytest.mark.parametrize("submit", ["refill", "closed"])
def test_every_request_gets_exactly_one_answer(submit: str) -> None:
    engine = StubEngine(profile(submit=submit), say("a mug"))
    outputs = list(run_window(engine, requests(23)))
    assert sorted(o.id for o in outputs) == sorted(r.id for r in requests(23))
    assert engine.widest == 4


def test_refill_tops_the_window_up_while_closed_empties_it_first() -> None:
    flights: dict[str, list[int]] = {}
    for submit in ("refill", "closed"):
        engine = StubEngine(profile(submit=submit), say("a mug"))
        flights[submit] = [len(engine.flight) for _ in run_window(engine, requests(12))]
    assert flights["refill"][:8] == [3] * 8  # 4 in flight before each of the first answers
    assert flights["closed"][:8] == [3, 2, 1, 0, 3, 2, 1, 0]


def test_requests_are_read_one_window_ahead_at_most() -> None:
    read = []

    def source() -> object:
        for request in requests(1000):
            read.append(request.id)
            yield request

    window = run_window(StubEngine(profile(), say("x")), source())  # type: ignore[arg-type]
    next(window)
    assert len(read) == 8


def test_what_is_asked_again_goes_first_and_counts_as_one_more_answer() -> None:
    again: deque[Request] = deque()
    engine = StubEngine(profile(batch_size=1), say("x"))
    answers = []
    for output in run_window(engine, requests(3), again=again):
        answers.append(output.id)
        if answers == ["r0"]:
            again.append(requests(1)[0])
    assert answers == ["r0", "r0", "r1", "r2"]


def test_a_last_answer_that_is_asked_again_is_not_lost() -> None:
    again: deque[Request] = deque()
    answers = []
    for output in run_window(StubEngine(profile(), say("x")), requests(1), again=again):
        answers.append(output.id)
        if len(answers) < 3:
            again.append(requests(1)[0])
    assert answers == ["r0"] * 3


def test_a_refused_request_is_answered_and_leaves_its_place() -> None:
    class Refusing(StubEngine):
        def submit(self, request: Request, tokens: list[int] | None = None) -> Output | None:
            if request.id == "r1":
                return Output(id="r1", error="input_too_long", row_at_fault=True)
            return super().submit(request, tokens)

    outputs = {o.id: o for o in run_window(Refusing(profile(), say("x")), requests(5))}
    assert len(outputs) == 5
    assert outputs["r1"] == replace(outputs["r1"], error="input_too_long")
    assert [o.error for o in outputs.values() if o.id != "r1"] == [""] * 4


def test_an_emptied_window_is_sent_again_without_waiting_for_the_tokenizer() -> None:
    events: list[str] = []

    class Watched(StubEngine):
        def encode(self, requests: Sequence[Request]) -> list[None]:
            events.extend(f"encode {request.id}" for request in requests)
            return [None] * len(requests)

        def submit(self, request: Request, tokens: list[int] | None = None) -> Output | None:
            events.append(f"send {request.id}")
            return super().submit(request, tokens)

    engine = Watched(profile(submit="closed"), say("a mug"))
    list(run_window(engine, requests(8)))
    second = events.index("send r4")
    assert events[second - 1] == "encode r7"  # the whole next window, before the first of it is sent
    assert [event for event in events[second:] if event.startswith("encode")] == []


def test_what_was_only_read_ahead_is_asked_again_after_the_engines_death() -> None:
    again: deque[Request] = deque()
    flight: dict[str, Request] = {}
    with pytest.raises(EngineDeadError):
        list(run_window(StubEngine(profile(), lambda _: None), requests(12), again=again, flight=flight))
    assert (list(flight), [request.id for request in again]) == (["r0", "r1", "r2", "r3"], ["r4", "r5", "r6", "r7"])
