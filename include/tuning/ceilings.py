"""A device's ceilings, measured once under load: a large matrix product in each precision, a large copy.

`python -m include.tuning ceilings`. Data sheets promise what a card under sustained power does not hold.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from include.generation.leases import device_lease, is_cpu_build
from include.generation.roofline import Ceilings

SECONDS = 2.0  # under load before and while measuring, so that the clocks have settled
SIDE = 8192


def _rate(step: Callable[[], Any], per_step: float, wait: Callable[[], None], seconds: float) -> float:
    """`per_step` units times steps per second, after as long a warm-up."""
    done = 0.0
    for _ in range(2):
        began, steps = time.monotonic(), 0
        while time.monotonic() - began < seconds:
            for _ in range(4):
                step()
            wait()
            steps += 4
        done = steps * per_step / (time.monotonic() - began)
    return done


def measure_ceilings(seconds: float = SECONDS, side: int = SIDE) -> Ceilings:
    """Leases a device and measures it. FLOP/s in the device's 16 bits (float32 on a CPU) and 8 bits, bytes/s of a copy.

    Random values: products of zeros draw less power and run faster than real ones. A copy reads and writes each byte.
    """
    with device_lease(wait_seconds=60):
        import torch

        cpu = is_cpu_build()
        device = "cpu" if cpu else "cuda"
        side = min(side, 2048) if cpu else side
        wait = (lambda: None) if cpu else torch.cuda.synchronize
        kind = torch.float32 if cpu else torch.bfloat16
        a, b = (torch.randn(side, side, device=device).to(kind) for _ in range(2))
        operations = 2.0 * side**3
        flops = _rate(lambda: a @ b, operations, wait, seconds)
        low = 0.0
        if not cpu and torch.cuda.get_device_capability() >= (8, 9):
            x, y = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn).t().contiguous().t()
            one = torch.ones((), device=device)
            # Sums in the tensor core's own precision, as vLLM's kernels do; more exact sums are slower on Hopper.
            low = _rate(
                lambda: torch._scaled_mm(x, y, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True),
                operations,
                wait,
                seconds,
            )
        source = torch.randn(2**26 if cpu else 2**30, device=device)
        target = torch.empty_like(source)
        moved = _rate(lambda: target.copy_(source), 2.0 * source.numel() * 4, wait, seconds)
        name = "cpu" if cpu else torch.cuda.get_device_name()
    return Ceilings(flops, low, moved, f"measured on {name}")
