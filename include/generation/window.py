"""Keeps an engine full: a window of requests in flight, topped up as they finish (`refill`) or emptied first (`closed`)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from include.generation.engine import Engine, Output, Request

AT_ONCE = 64  # prompts tokenized together: enough for every core, too few to keep an idle engine waiting


def run_window(
    engine: Engine,
    requests: Iterable[Request],
    *,
    again: deque[Request] | None = None,
    flight: dict[str, Request] | None = None,
    sent: Callable[[Request], None] | None = None,
) -> Iterator[Output]:
    """Answers of all requests, in completion order, exactly one per request.

    At most `profile.batch_size` requests are in flight, and `requests` is read at most one more window ahead, so it may be a
    generator of any length. What is next is tokenized while the engine works: a window that was emptied is full again at
    once. A consumer appends to `again` what it wants tried once more; those go first. `flight` holds
    the requests in flight, for a caller that must know what an engine's death took with it; what was only read ahead goes
    back to `again`. `sent` hears of each request as it is sent. Raises EngineDeadError.
    """
    flight = {} if flight is None else flight
    again = deque() if again is None else again
    source = iter(requests)
    size, refill = engine.profile.batch_size, engine.profile.submit == "refill"
    most_ahead = min(AT_ONCE, size) if refill else size
    ahead: deque[tuple[Request, list[int] | None]] = deque()

    def read(count: int) -> None:
        batch = list(islice(source, count))
        ahead.extend(zip(batch, engine.encode(batch), strict=True))

    try:
        while True:
            if refill or not flight:
                while room := min(AT_ONCE, size - len(flight)):
                    retried = [again.popleft() for _ in range(min(room, len(again)))]
                    batch = list(zip(retried, engine.encode(retried), strict=True))
                    if (missing := room - len(batch) - len(ahead)) > 0:
                        read(missing)
                    batch += [ahead.popleft() for _ in range(min(room - len(batch), len(ahead)))]
                    # before any is sent: the engine's death takes them all
                    flight |= {request.id: request for request, _ in batch}
                    for request, tokens in batch:
                        if sent is not None:
                            sent(request)
                        refused = engine.submit(request, tokens)
                        if refused is not None:
                            del flight[request.id]
                            yield refused
                    if len(batch) < room:
                        break
            if not flight:
                if again:
                    continue
                return
            read(min(AT_ONCE, most_ahead - len(ahead)))
            for output in engine.finished():
                if flight.pop(output.id, None) is not None:
                    yield output
    finally:
        again.extendleft(request for request, _ in reversed(ahead))
