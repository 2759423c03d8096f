"""Keeps an engine full: a window of requests in flight, topped up as they finish (`refill`) or emptied first (`closed`)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from include.generation.engine import Engine, Output, Request


def run_window(
    engine: Engine,
    requests: Iterable[Request],
    *,
    again: deque[Request] | None = None,
    flight: dict[str, Request] | None = None,
) -> Iterator[Output]:
    """Answers of all requests, in completion order, exactly one per request.

    At most `profile.batch_size` requests are in flight and `requests` is read no further than that, so it may be a
    generator of any length. A consumer appends to `again` what it wants tried once more; those go first. `flight` holds
    the requests in flight, for a caller that must know what an engine's death took with it. Raises EngineDeadError.
    """
    flight = {} if flight is None else flight
    again = deque() if again is None else again
    source = iter(requests)
    size, refill = engine.profile.batch_size, engine.profile.submit == "refill"
    while True:
        if refill or not flight:
            while len(flight) < size:
                request = again.popleft() if again else next(source, None)
                if request is None:
                    break
                flight[request.id] = request
                refused = engine.submit(request)
                if refused is not None:
                    del flight[request.id]
                    yield refused
        if not flight:
            if again:
                continue
            return
        for output in engine.finished():
            if flight.pop(output.id, None) is not None:
                yield output
