"""The circuit breaker: one bin of gibberish stops the other bins' engines instead of costing the night."""

from __future__ import annotations

import math

from include.runs import Run, StopMarker

_Z = 2.326  # one-sided 99%: a bin is stopped for when its rate is surely above the limit, not for bad luck


def wilson_lower(hits: int, total: int, z: float = _Z) -> float:
    """Lower bound of Wilson's score interval for a share (E. B. Wilson 1927); 0 for an empty sample."""
    if total == 0:
        return 0.0
    share, z2 = hits / total, z * z
    centre = share + z2 / (2 * total)
    spread = z * math.sqrt(share * (1 - share) / total + z2 / (4 * total * total))
    return (centre - spread) / (1 + z2 / total)


def trip(run: Run, task: str, bin_index: int, *, answered: int, rejected: int, reason: str) -> StopMarker | None:
    """Writes the stop marker when this bin's rejection rate is above the limit, and returns it.

    `reason` is the bin's most frequent one. A bin that is fine again takes its own marker back.
    """
    settings = run.spec.settings.task(task)
    limit = settings.validators.breaker_reject_rate
    if limit is None:
        limit = 1 - settings.gate.min_validator_pass_rate
    if answered < settings.validators.breaker_min_rows or wilson_lower(rejected, answered) <= limit:
        run.clear_stop(task, bin_index)
        return None
    rate, engine = round(rejected / answered, 4), run.engines(task)[bin_index]
    marker = StopMarker(bin=bin_index, reason=reason, reject_rate=rate, engine=engine)
    run.write_stop(task, marker)
    return marker
