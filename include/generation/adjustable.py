"""vLLM's schedulers with limits that can be lowered between runs, so that one engine start serves many measurements.

The scheduler lives in the engine's own process, which reads the limits from a file whenever the prefix cache is reset.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

LIMITS_VARIABLE = "LISTING_ENGINE_LIMITS"


class _Limits:
    """Reads the limits before a reset; they lie at or below those that the engine was started with."""

    def reset_prefix_cache(self, *args: Any, **kwargs: Any) -> bool:
        limits = json.loads(Path(os.environ[LIMITS_VARIABLE]).read_text(encoding="utf-8"))
        started: Any = self.scheduler_config  # type: ignore[attr-defined]
        self.max_num_running_reqs = limits["max_num_seqs"] or started.max_num_seqs
        self.max_num_active_reqs = self.max_num_running_reqs  # newer versions admit by this one
        self.max_num_scheduled_tokens = limits["max_num_batched_tokens"] or started.max_num_batched_tokens
        return bool(super().reset_prefix_cache(*args, **kwargs))  # type: ignore[misc]


class AdjustableScheduler(_Limits, Scheduler):
    """For engines that schedule a step after the one before it."""


class AdjustableAsyncScheduler(_Limits, AsyncScheduler):
    """For engines that schedule a step while the one before it runs."""
