"""Measures the generation worker: its speed against vLLM's own ways to run a batch, and its memory over many rows.

`python -m benchmarks.generation` answers the same real prompts, under the same engine settings, with our worker (parts
written to disk and all), with `LLM.generate` given the whole list, with `LLM.generate` in chunks of max_num_seqs, and with
`vllm run-batch`. Each arm is a process with one engine; the arms take turns, so that a slow minute of the machine hits all;
the median over the repeats counts. Prefix caches are emptied between repeats. Engine starts are not counted.

Real prompts come from the listings beside the project (../shared/data); without them the project's sample listings are
repeated, and the result says so. Writes build/bench/generation.json.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from benchmarks import dummy_model
from include.records import WorkItem
from include.runs import Run, RunSpec, interval_of
from include.settings import PROJECT_ROOT, Settings, digest, load_settings

ARMS = ("worker", "llm_generate", "llm_generate_chunked", "run_batch")
DATA = PROJECT_ROOT.parent / "shared" / "data"
FILES = ("listings_multimerchant_ccby.jsonl", "listings_amazon2020_cc0.jsonl")
SAMPLES = PROJECT_ROOT / "include" / "samples" / "listings.csv"
DAY = date(2026, 3, 1)
SEED = 20260301
LENGTHS = {"title": (12, 20), "description": (96, 160)}  # output tokens, for models without weights
TARGET_RATIO, TARGET_GROWTH_MB = 0.97, 30.0
MAX_CHARS = 2_500  # of a description, so that no prompt is over the default profile's limit


def _items(listings: Iterator[dict[str, Any]]) -> Iterator[WorkItem]:
    for number, row in enumerate(listings):
        yield WorkItem(
            merchant_id=str(row["merchant_id"]),
            listing_id=str(row["listing_id"]),
            title=row["title"] or "",
            description=row["description"] or "",
            brand=row.get("brand") or "",
            category=row.get("category") or "",
            source_updated_at=datetime(2026, 3, 1, tzinfo=UTC),
            text_id=digest([number, row["title"], row["description"]]),
            content_hash=str(number),
            staleness_key=str(number),
        )


def work_items(rows: int, data: Path = DATA) -> tuple[list[WorkItem], str]:
    """(`rows` work items, where they come from): a seeded draw of real listings, or the project's samples, repeated."""
    found: list[dict[str, Any]] = []
    for name in FILES:
        if (data / name).is_file():
            with (data / name).open("rb") as file:
                found += [json.loads(line) for line in file if line.strip()]
    usable = [r for r in found if r["title"] and r["description"] and len(r["description"]) <= MAX_CHARS]
    if len(usable) >= rows:
        return list(_items(iter(random.Random(SEED).sample(usable, rows)))), f"{rows} real listings of {data}"
    from include.extraction.seed import read_csv  # a GPU host may lack SQLAlchemy, which it pulls in

    samples = [r for r in read_csv(SAMPLES, datetime.now(UTC)) if len(str(r["description"])) <= MAX_CHARS]
    repeated = (samples[n % len(samples)] for n in range(rows))
    return list(_items(iter(repeated))), f"no listings in {data}: {len(samples)} sample listings, repeated"


def fixed_lengths(items: list[WorkItem], task: str) -> Iterator[WorkItem]:
    """The items with an output length drawn for each, since a model without weights never ends by itself."""
    draw = random.Random(SEED)
    for item in items:
        yield replace(item, category=f"tokens={draw.randint(*LENGTHS[task])}")


def make_run(folder: Path, items: list[WorkItem], task: str, profile: str, changes: dict[str, Any]) -> Run:
    """A run with one bin of these items. Answers are asked once, so that every arm does the same work."""
    values = load_settings().model_dump()
    values["pipeline"] |= {"data_url": str(folder)}
    values["engines"][profile] |= changes
    values["tasks"][task] |= {"engine": profile, "attempts": 1}
    start, end = interval_of(DAY)
    spec = RunSpec(
        run_id="bench",
        partition_date=DAY,
        interval_start=start,
        interval_end=end,
        enhancement_tasks=(task,),
        settings=Settings.model_validate(values),
    )
    run = Run.create(spec)
    run.store.write_part(f"{Run.work(task, 0)}/part-00000.parquet", WorkItem, items)
    run.store.write_json(Run.plan(task), {"bins": [[0]], "rows": [len(items)], "counts": {}})
    return run


class Arm:
    """One arm's process: it starts its engine, then answers every line on its input with one measured repeat."""

    def __init__(self, name: str, run: Run, task: str) -> None:
        self.name = name
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.generation_arms", name, run.store.url, task],
            cwd=PROJECT_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def result(self) -> dict[str, Any]:
        """The next result line. Raises RuntimeError when the process ended instead."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("RESULT "):
                return dict(json.loads(line.removeprefix("RESULT ")))
            print(f"  [{self.name}] {line.rstrip()}", flush=True)
        raise RuntimeError(f"arm {self.name} ended with status {self.process.wait()}")

    def start(self, what: str) -> None:
        """Starts one repeat."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()

    def measure(self, what: str) -> dict[str, Any]:
        """One repeat from start to result."""
        self.start(what)
        return self.result()

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=120)


def host_of(arm: str) -> str:
    """`llm_generate*` share one process and engine."""
    return "llm_generate" if arm.startswith("llm_generate") else arm


def compare(run: Run, task: str, arms: list[str], repeats: int, *, together: bool = True) -> dict[str, Any]:
    """Requests per second of each arm and repeat.

    `together`: all engines are up and the arms take turns. Otherwise one engine after the other, for a GPU that holds one.
    """
    rates: dict[str, list[float]] = {name: [] for name in arms}
    details: dict[str, Any] = {}
    hosts = list(dict.fromkeys(map(host_of, arms)))
    for group in [hosts] if together else [[host] for host in hosts]:
        processes: dict[str, Arm] = {}
        turn = [name for name in arms if host_of(name) in group]
        try:
            for host in group:
                processes[host] = Arm(host, run, task)
                details[host] = processes[host].result()  # ready; one at a time, since starts disturb each other
                print(f"{host}: engine ready after {details[host]['start_s']:.0f} s", flush=True)
            for repeat in range(repeats):
                for name in turn[repeat % len(turn) :] + turn[: repeat % len(turn)]:
                    found = processes[host_of(name)].measure(name)
                    rates[name].append(found["requests"] / found["seconds"])
                    print(f"repeat {repeat + 1}, {name}: {rates[name][-1]:.2f} requests/s, {found}", flush=True)
                    details.setdefault("last", {})[name] = found
        finally:
            for arm in processes.values():
                arm.close()
    return {"rates": rates, "details": details}


def side_by_side(run: Run, task: str, engines: int, repeats: int) -> dict[str, Any]:
    """Requests per second of several workers at once, each on a device of its own, and of one of them alone."""
    workers = []
    try:
        for number in range(engines):
            workers.append(Arm("worker", copy_of(run, task, number), task))
            workers[-1].result()
        alone = statistics.median(_rate([workers[0]]) for _ in range(repeats))
        together = statistics.median(_rate(workers) for _ in range(repeats))
    finally:
        for arm in workers:
            arm.close()
    return {"engines": engines, "one": alone, "all": together, "scaling": round(together / alone, 3)}


def _rate(workers: list[Arm]) -> float:
    """Requests per second from the first start to the last end."""
    began = time.monotonic()
    for arm in workers:
        arm.start("worker")
    rows: int = sum(arm.result()["requests"] for arm in workers)
    return rows / (time.monotonic() - began)


def copy_of(run: Run, task: str, number: int) -> Run:
    """The same work in a folder of its own, so that workers do not find each other's parts."""
    items = list(run.store.read_rows(run.work_parts(task, 0), WorkItem))
    store = run.store.child(f"copy-{number}")
    store.write_bytes("run.json", run.spec.model_dump_json().encode())
    store.write_part(f"{Run.work(task, 0)}/part-00000.parquet", WorkItem, items)
    store.write_json(Run.plan(task), {"bins": [[0]], "rows": [len(items)], "counts": {}})
    return Run.open(store.url)


def memory_growth() -> dict[str, float]:
    """Growth of a worker's own process, by the real loop over a stub engine; see benchmarks/generation_memory.py."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.generation_memory"], cwd=PROJECT_ROOT, capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", default="cpu-smollm2")
    parser.add_argument("--changes", type=json.loads, default={}, help="JSON of engine profile fields to change")
    parser.add_argument("--task", default="title")
    parser.add_argument("--rows", type=int, default=400)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--arms", nargs="*", choices=ARMS, default=list(ARMS))
    parser.add_argument("--dummy", action="store_true", help="a model of Qwen3-4B's shape without weights, on a GPU")
    parser.add_argument("--engines", type=int, default=1, help="also this many workers side by side")
    parser.add_argument("--skip-memory", action="store_true")
    parser.add_argument("--out", type=Path, default=PROJECT_ROOT / "build" / "bench" / "generation.json")
    options = parser.parse_args()
    items, source = work_items(options.rows)
    print(f"{source}; profile {options.profile}, task {options.task}", flush=True)
    folder = options.out.parent / f"generation-{time.time_ns()}"
    changes = options.changes
    if options.dummy:
        model = dummy_model.make(options.out.parent / "qwen3-4b-shape")
        base = load_settings().engines[options.profile].engine_args | changes.get("engine_args", {})
        changes |= {"model": str(model), "revision": None, "engine_args": base | {"load_format": "dummy"}}
        items = list(fixed_lengths(items, options.task))
    run = make_run(folder, items, options.task, options.profile, changes)
    found = compare(run, options.task, options.arms, options.repeats, together=not options.dummy)
    medians = {name: statistics.median(rates) for name, rates in found["rates"].items()}
    others = [rate for name, rate in medians.items() if name != "worker"]
    result: dict[str, Any] = {
        "source": source,
        "rows": options.rows,
        "repeats": options.repeats,
        "requests_per_s": {name: round(rate, 3) for name, rate in medians.items()},
        "requests_per_s_all": {name: [round(r, 3) for r in rates] for name, rates in found["rates"].items()},
        "ratio_to_best": round(medians["worker"] / max(others), 4) if others and "worker" in medians else None,
        "profile": run.spec.settings.engines[options.profile].model_dump(),
        "task": options.task,
        "details": found["details"],
    }
    if options.engines > 1:
        result["side_by_side"] = side_by_side(run, options.task, options.engines, options.repeats)
    if not options.skip_memory:
        result |= memory_growth()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=2))
    print(json.dumps({k: v for k, v in result.items() if k not in ("profile", "details")}, indent=2))
    met = (result["ratio_to_best"] or 1.0) >= TARGET_RATIO and result.get("client_growth_mb", 0.0) <= TARGET_GROWTH_MB
    print(f"targets {'met' if met else 'MISSED'}: ratio >= {TARGET_RATIO}, growth <= {TARGET_GROWTH_MB} MB")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
