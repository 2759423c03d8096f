"""What a tuning run tries: candidates (how the model is run) and a grid of scheduler settings, from `tuning.yaml`.

A *candidate* fixes what an engine start fixes: precision, KV cache, CUDA graphs, engines per device. A *cell* is one
point of the grid, which a started engine can change: `max_num_seqs`, `max_num_batched_tokens`, and the client's window.
"""

from __future__ import annotations

import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from include.judging.costs import ComparisonSettings
from include.settings import (
    CONFIG_DIR_VARIABLE,
    PROJECT_ROOT,
    Count,
    EngineProfile,
    Frozen,
    SettingsError,
    Share,
    digest,
    read_settings_file,
)

# What the baseline shares: limits of the data and of the hardware, not of speed.
_KEPT = ("max_model_len", "load_format", "block_size", "tensor_parallel_size")


class Candidate(Frozen):
    """One way to run the task model. Its values lie over those of the profile that is tuned."""

    name: str
    model: str | None = None  # a quantized checkpoint's folder or id; None: the profile's own weights
    revision: str | None = None  # commit of an id
    engine_args: dict[str, Any] = Field(default={})
    environment: dict[str, str] = Field(default={})
    engines: Count = 1  # side by side on one device; each gets its share of the memory

    def profile(self, base: EngineProfile) -> EngineProfile:
        """The base profile run this way."""
        values = base.model_dump() | {
            "engine_args": base.engine_args | self.engine_args,
            "environment": base.environment | self.environment,
            "engines": self.engines,
        }
        return EngineProfile.model_validate(
            values | ({"model": self.model, "revision": self.revision} if self.model else {})
        )


def file_name(candidate: str) -> str:
    """A candidate's name where it can be a file's, else its digest: it may be a model's, with a slash."""
    return candidate if re.fullmatch(r"[A-Za-z0-9_-]+", candidate) else digest(candidate)


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """Scheduler settings of one measurement. `batch_size` is the client's window over all engines of the device."""

    max_num_seqs: int
    max_num_batched_tokens: int
    batch_size: int
    submit: Literal["refill", "closed"] = "refill"


@dataclass(frozen=True, slots=True)
class Window:
    """Requests at a time of one measurement, for arms without scheduler settings: see include.tuning.arms."""

    batch_size: int


class Grid(Frozen):
    """Values of the coarse grid. `windows` are multiples of max_num_seqs: batch_size is never below it."""

    max_num_seqs: tuple[Count, ...]
    max_num_batched_tokens: tuple[Count, ...]
    windows: tuple[Count, ...] = (1, 2)
    submit: tuple[Literal["refill", "closed"], ...] = ("refill", "closed")

    def cells(self) -> list[Cell]:
        """Every valid point: a step must have room for one token of each sequence."""
        return [
            Cell(seqs, tokens, seqs * window, submit)
            for seqs in self.max_num_seqs
            for tokens in self.max_num_batched_tokens
            for window in self.windows
            for submit in self.submit
            if tokens >= seqs
        ]

    def shape(self, base: EngineProfile) -> EngineProfile:
        """The base profile as an engine that can serve every cell."""
        args = base.engine_args | {
            "max_num_seqs": max(self.max_num_seqs),
            "max_num_batched_tokens": max(self.max_num_batched_tokens),
        }
        return base.model_copy(update={"engine_args": args, "batch_size": 2 * max(self.max_num_seqs)})


class TuningSettings(ComparisonSettings):
    """One file `tuning.yaml`: what to try, how long, and when a candidate counts as no worse."""

    grid: Grid
    candidates: tuple[Candidate, ...] = Field(min_length=1)
    baseline_engine_args: dict[str, Any] = Field(default={"dtype": "bfloat16"})  # everything else is vLLM's default
    requests: Count = 2_000  # of one measurement that counts
    probe_requests: Count = 500  # of a first look at a cell
    hopeless: Share = 0.8  # a cell whose first look is below this share of the best is not measured further
    fine_steps: Count = 12  # most cells of the fine search
    finalists: Count = 2  # candidates started afresh with their best cell, beside the baseline
    repeats: Count = 3  # of a finalist; baseline and incumbent get as many before the search and after it
    margin: Share = 0.02  # most that pass rates may fall, in the paired comparison
    alpha: float = Field(default=0.05, gt=0, lt=1)

    @model_validator(mode="after")
    def _measurements_tell(self) -> TuningSettings:
        names = [candidate.name for candidate in self.candidates]
        if len({*names, "baseline", "incumbent"}) < len(names) + 2:
            raise ValueError("two candidates have one name, or one is named baseline or incumbent")
        widest = max(self.grid.max_num_seqs) * max(self.grid.windows)
        if self.probe_requests < widest:
            raise ValueError(
                f"probe_requests {self.probe_requests} never fills the widest window, {widest}: looks would be alike"
            )
        return self


def load_tuning(path: str | Path | None = None) -> TuningSettings:
    """The settings of `tuning.yaml` in the configuration folder, or of another file. Raises SettingsError."""
    folder = Path(os.environ.get(CONFIG_DIR_VARIABLE) or PROJECT_ROOT / "include" / "config")
    file = Path(path) if path else folder / "tuning.yaml"
    found = read_settings_file(file, TuningSettings)
    if not found.grid.cells():
        raise SettingsError(
            f"{file}: no cell of the grid is valid, max_num_batched_tokens is below max_num_seqs in each"
        )
    if not found.margin:
        raise SettingsError(
            f"{file}: with margin 0 a finalist must be shown to be better in every check: allow a fall, such as 0.02"
        )
    return found


def with_cell(profile: EngineProfile, cell: Cell) -> EngineProfile:
    """The profile with a cell's settings, as an engine that is started for that cell alone."""
    args = profile.engine_args | {
        "max_num_seqs": cell.max_num_seqs,
        "max_num_batched_tokens": cell.max_num_batched_tokens,
    }
    changes = {"engine_args": args, "batch_size": cell.batch_size, "submit": cell.submit}
    return EngineProfile.model_validate(profile.model_dump() | changes)


def baseline_of(base: EngineProfile, tuning: TuningSettings) -> EngineProfile:
    """vLLM's defaults, given all prompts at once as `LLM.generate` is: what every ratio is against."""
    args = {name: base.engine_args[name] for name in _KEPT if name in base.engine_args} | tuning.baseline_engine_args
    changes = {"engine_args": args, "batch_size": tuning.requests, "submit": "refill", "engines": 1}
    return EngineProfile.model_validate(base.model_dump() | changes)


def key_of(profile: EngineProfile, cell: Cell | Window | None, requests: int) -> str:
    """Identifies a measurement, so that an interrupted run finds what it has."""
    values = profile.model_dump(exclude={"name", "lineage", "start_timeout_s", "stall_timeout_s", "lease_wait_s"})
    return digest([values, asdict(cell) if cell else None, requests])
