"""Commands of the judging stage: sample, score and gate for one run, calibrate for a judge, compare for two prompts."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from typing import Any

import fsspec

from include.commands import command_line
from include.judging.labels import LabelsError
from include.runs import Run


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m include.judging", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (
        ("sample", "draw the texts that the judge shall read"),
        ("score", "judge the sample with the judge's engine; answered texts are not asked again"),
        ("gate", "close the accounting and decide whether the copy may be published"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("--run-dir", required=True, help="folder or URL of the run")
        command.add_argument("--task", required=True, help="enhancement task, such as title")
    command = commands.add_parser("calibrate", help="measure a judge against human labels")
    command.add_argument("--labels", required=True, help="JSONL of source, output, label (1 = consistent)")
    command.add_argument("--out", required=True, help="calibration to write (JSON; .md and .png beside it)")
    command.add_argument("--stored-judge", help="calibrate a judge whose labels are stored with the pairs")
    command.add_argument("--production", metavar="FILE", help="JSON of the judged mix to weight the pairs to")
    command.add_argument("--limit", type=int, help="use a seeded part of the pairs only")
    command.add_argument("--store", metavar="TASK", nargs="?", const="all", help="put it in force for TASK (or all)")
    command = commands.add_parser("compare", help="which of two copies of each listing is truer, asked in both orders")
    command.add_argument("--pairs", required=True, help="JSONL of source, a, b")
    command.add_argument("--task", required=True, help="enhancement task that the copies are for, such as title")
    return parser


def _calibrate(options: argparse.Namespace) -> dict[str, Any]:
    from include.judging.calibrate import calibrate, report_text
    from include.judging.calibration import store_calibration
    from include.settings import load_settings

    settings, production = load_settings(), None
    if options.production:
        with fsspec.open(options.production, "rt", encoding="utf-8") as file:
            production = json.load(file)
    found = calibrate(
        options.labels,
        options.out,
        settings,
        stored_judge=options.stored_judge,
        production=production,
        limit=options.limit,
    )
    print(report_text(found))
    refused = found.report["refusals"]
    if options.store is not None:
        if refused:
            raise LabelsError(f"not put in force: {'; '.join(refused)}")
        print(f"in force for {options.store}: {store_calibration(settings, found, options.store)}")
    return {"version": found.version, "out": options.out, "refusals": refused}


def _compare(options: argparse.Namespace) -> dict[str, Any]:
    from include.judging.comparison import compare_file
    from include.settings import load_settings

    found = compare_file(options.pairs, options.task, load_settings())
    print(json.dumps(found, indent=2))
    return found


def _score(options: argparse.Namespace) -> dict[str, Any]:
    from include.judging.scoring import score

    return score(Run.open(options.run_dir), options.task)


WITH_ENGINE = {"score": _score, "calibrate": _calibrate, "compare": _compare}


@command_line
def main(arguments: list[str] | None = None) -> int:
    """Exit status 0: done (and, for `gate`, copy may be published); 1: refused; 2: an error on stderr.

    The commands that own an engine end as every such process does: 75 when a retry may help, 78 when it will not.
    """
    options = _parser().parse_args(arguments)
    if command := WITH_ENGINE.get(options.command):
        from include.generation.child import run_child

        run_child(lambda: command(options))
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    run = Run.open(options.run_dir)
    if options.command == "sample":
        from include.judging.stage import sample

        result = sample(run, options.task)
    else:
        from include.judging.gate import decide

        result = decide(run, options.task)
    print(json.dumps(result, indent=2, sort_keys=True, default=str, ensure_ascii=False))
    return 0 if result.get("status") not in ("failed", "broken") else 1


if __name__ == "__main__":
    sys.exit(main())
