"""Commands of tuning: `run` measures, `trial` is one engine of it, `ceilings` measures the device, `quality` compares the
finalists' copy with the incumbent's, `steps` profiles the fastest, `report` writes a run's page, `promote` and `roll-back` change the profile in force;
`compare` asks the same prompts of Hugging Face `generate`, of the worker's engine and of `vllm serve`.

A run needs prompts: `--run-dir` of finished nightly runs, or `--prompts`, a JSON Lines file of chat messages.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from include.commands import command_line, count
from include.generation.child import run_child
from include.settings import EngineProfile, SettingsError, load_settings

ARMS = ("generate", "offline", "serve")


def add_window_options(parser: argparse.ArgumentParser) -> None:
    """What a comparison measures, and how long; the names are those of `compare.compare`."""
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=ARMS)
    parser.add_argument("--batches", nargs="+", type=count, default=[1, 8, 32], help="sizes of static batches")
    parser.add_argument(
        "--concurrency", nargs="+", type=count, default=[1, 8, 32, 128], help="requests at a time, of serve"
    )
    parser.add_argument(
        "--rounds", type=count, default=64, help="most times that a batch or a concurrency is filled in one measurement"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m include.tuning", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="measure baseline, candidates and finalists; goes on where it stopped")
    run.add_argument("--dir", type=Path, required=True, help="folder of this tuning run")
    run.add_argument("--task", required=True, help="enhancement task whose engine profile is tuned")
    run.add_argument(
        "--run-dir", action="append", default=[], help="finished nightly run whose prompts count; repeatable"
    )
    run.add_argument("--prompts", type=Path, help="JSON Lines file of prompts instead")
    run.add_argument(
        "--synthetic", type=count, help="measure this many made-up prompts like them, where few are at hand"
    )
    run.add_argument("--config", type=Path, help="another tuning.yaml")
    run.add_argument("--seed", type=int, default=7)
    trial = commands.add_parser("trial", help="one engine under test; started by `run`")
    trial.add_argument("--dir", type=Path, required=True)
    trial.add_argument("--profile", type=Path, required=True)
    trial.add_argument("--arm", default="offline")
    compare = commands.add_parser(
        "compare", help="latency and throughput of static batches, offline vLLM and vllm serve"
    )
    compare.add_argument("--prompts", type=Path, required=True, help="JSON Lines file of prompts")
    compare.add_argument("--task", required=True, help="enhancement task whose sampling parameters count")
    compare.add_argument("--profile", help="engine profile as configured; default: the task's, as it is in force")
    compare.add_argument("--out", type=Path, required=True, help="folder of compare.json and compare.html")
    compare.add_argument("--rows", type=count, help="so many prompts from the file's beginning; default: all")
    add_window_options(compare)
    ceilings = commands.add_parser("ceilings", help="measure the device's ceilings under load")
    ceilings.add_argument("--out", type=Path)
    report = commands.add_parser("report", help="write report.html, one page, into the folder of a finished tuning run")
    report.add_argument("--dir", type=Path, required=True, help="folder of the tuning run")
    steps = commands.add_parser(
        "steps", help="profile steps of the fastest finalist: kernels by kind, waits for the host"
    )
    steps.add_argument("--dir", type=Path, required=True, help="folder of a finished tuning run")
    quality = commands.add_parser(
        "quality", help="compare the copy of finalists and incumbent; goes on where it stopped"
    )
    quality.add_argument("--dir", type=Path, required=True, help="folder of the tuning run")
    quality.add_argument("--run-dir", action="append", required=True, help="finished nightly run; repeatable")
    quality.add_argument("--seed", type=int, default=8, help="of the draw of held-out listings")
    quality.add_argument("--held-out", type=count, help="listings to compare, where tuning.yaml's number was too small")
    promote = commands.add_parser("promote", help="put the fastest finalist whose quality holds in force")
    promote.add_argument("--dir", type=Path, required=True, help="folder of the tuning run")
    promote.add_argument("--approved-by", default=os.environ.get("USER", "unknown"), help="who decided")
    back = commands.add_parser("roll-back", help="put back the profile before the promoted one")
    back.add_argument("--task", required=True, help="enhancement task, such as title")
    back.add_argument("--device", help="such as 'NVIDIA H200'; default: every device with a promotion")
    return parser


def _run(options: argparse.Namespace) -> dict[str, Any]:
    from include.generation.leases import device_name
    from include.promotions import in_force
    from include.tuning.plan import load_tuning
    from include.tuning.run import TuningRun, open_folder
    from include.tuning.workload import capped, read_requests, requests_of_runs, synthetic

    settings, tuning = load_settings(), load_tuning(options.config)
    task, going_on = settings.task(options.task), (options.dir / "plan.json").exists()  # which keeps its prompts
    try:
        if file := options.dir / "workload.jsonl" if going_on else options.prompts:
            requests = read_requests(file)
        else:
            requests = requests_of_runs(options.run_dir, task.name, settings, limit=tuning.requests, seed=options.seed)
    except ValueError as error:
        raise SettingsError(str(error)) from error
    if not requests:
        raise SettingsError("no prompts: name a finished run with --run-dir, or a file with --prompts")
    if options.synthetic and not going_on:
        requests = list(synthetic(requests, options.synthetic, options.seed))
    base, device = capped(settings.engines[task.engine], requests, task), device_name()
    incumbent = in_force(settings, base.name, device)
    open_folder(options.dir, options.task, base, tuning, requests, incumbent=incumbent, device=device)
    run = TuningRun(options.dir)
    if not (options.dir / "ceilings.json").exists():
        from include.tuning.trials import write_json

        write_json(options.dir / "ceilings.json", _in_child(["ceilings"]))
    return run.run()


def _steps(options: argparse.Namespace) -> dict[str, Any]:
    from include.tuning.run import read_run
    from include.tuning.steps import profile_steps
    from include.tuning.trials import write_json
    from include.tuning.workload import read_requests

    _, result = read_run(options.dir)
    best = EngineProfile.model_validate((result["finalists"] or [result["baseline"]])[0]["profile"])
    found = profile_steps(best, read_requests(options.dir / "workload.jsonl"), count=2 * best.batch_size)
    write_json(options.dir / "steps.json", found)
    return found


def _in_child(arguments: Sequence[str]) -> dict[str, Any]:
    """A command's JSON from a process of its own, which gives the device back when it ends. Raises RuntimeError."""
    import subprocess

    done = subprocess.run(  # noqa: S603 - our own module
        [sys.executable, "-m", "include.tuning", *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments)} ended with status {done.returncode}: {done.stderr[-2000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _trial(options: argparse.Namespace) -> int:
    from include.generation.engine import EngineError
    from include.tuning.trial import emit, offline, serve
    from include.tuning.workload import read_requests

    profile = EngineProfile.model_validate_json(options.profile.read_text(encoding="utf-8"))
    arm = offline
    if options.arm != "offline":
        from include.tuning import arms

        arm = getattr(arms, options.arm)
    try:
        serve(profile, read_requests(options.dir / "workload.jsonl"), arm)
    except EngineError as error:
        emit(error=str(error), kind=error.kind)
        return 1
    return 0


@command_line
def _report(options: argparse.Namespace) -> int:
    from include.tuning.report import write_report

    print(write_report(options.dir))
    return 0


@command_line
def _change(options: argparse.Namespace) -> int:
    from include.tuning.promotion import promote_best, roll_back_task

    settings = load_settings()
    if options.command == "promote":
        print(promote_best(options.dir, settings, options.approved_by))
    else:
        print("\n".join(roll_back_task(settings, options.task, options.device)))
    return 0


def _quality(options: argparse.Namespace) -> dict[str, Any]:
    from include.tuning.quality import compare_quality

    return compare_quality(options.dir, load_settings(), options.run_dir, options.seed, options.held_out)


def _compare(options: argparse.Namespace) -> dict[str, Any]:
    from include.generation.leases import device_name
    from include.promotions import in_force
    from include.tuning.compare import common_profile, compare, greedy_requests
    from include.tuning.workload import read_requests

    settings = load_settings()
    task = settings.task(options.task)
    name = options.profile or task.engine
    if name not in settings.engines:
        raise SettingsError(f"no engine profile {name!r}; there are {', '.join(sorted(settings.engines))}")
    profile = settings.engines[name] if options.profile else in_force(settings, name, device_name())
    try:
        requests = greedy_requests(read_requests(options.prompts)[: options.rows], task, profile)
    except ValueError as error:
        raise SettingsError(str(error)) from error
    common = common_profile(profile, options.arms)
    return compare(
        options.out,
        common,
        requests,
        arms=options.arms,
        batches=options.batches,
        concurrency=options.concurrency,
        rounds=options.rounds,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0: done; 75: failed, a retry goes on where it stopped; 78: a retry will not help; 2: no report, or refused."""
    options = _parser().parse_args(arguments)
    if options.command == "trial":
        return _trial(options)
    if options.command == "report":
        return _report(options)
    if options.command in ("promote", "roll-back"):
        return _change(options)
    if options.command in ("quality", "steps", "compare"):
        return run_child(lambda: {"quality": _quality, "steps": _steps, "compare": _compare}[options.command](options))
    if options.command == "ceilings":
        from include.tuning.ceilings import measure_ceilings

        found = asdict(measure_ceilings())
        if options.out:
            options.out.write_text(json.dumps(found, indent=2), encoding="utf-8")
        print(json.dumps(found))
        return 0
    return run_child(lambda: _run(options))


if __name__ == "__main__":
    sys.exit(main())
