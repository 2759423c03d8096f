"""Commands of the validation stage; see `python -m include.validation --help`."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import sys
from collections.abc import Sequence

from include.commands import command_line
from include.runs import Run
from include.settings import load_settings
from include.validation import pairs, stage, suite


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m include.validation", description="Check generated copy against its source."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    check = commands.add_parser(
        "check", help='pairs as JSON Lines {"id", "source", "output", "finish_reason"} to verdicts'
    )
    check.add_argument("--task", required=True, help="enhancement task, such as title")
    check.add_argument("--input", default="-", help="file of pairs; standard input when absent")
    run = commands.add_parser("run", help="validate one bin of a run")
    gate = commands.add_parser("suite", help="run the expectation suite over a run's aggregate")
    for sub in (run, gate):
        sub.add_argument("--run-dir", required=True, help="folder or URL of the run")
        sub.add_argument("--task", required=True, help="enhancement task, such as title")
    run.add_argument("--bin", type=int, required=True, dest="bin_index", help="number of the bin")
    return parser


@command_line
def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command. Exit status: 0 done, 1 some pairs could not be read or a suite did not pass, 2 an error on stderr."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    if options.command == "check":
        return _check(options.task, options.input)
    opened = Run.open(options.run_dir)
    if options.command == "run":
        print(json.dumps(stage.validate(opened, options.task, options.bin_index)["counts"]))
        return 0
    result = suite.check(opened, options.task)
    print(json.dumps(result))
    return 0 if result["status"] in ("passed", "empty") else 1


def _check(task: str, path: str) -> int:
    settings = load_settings()
    settings.task(task)
    unread = 0
    with contextlib.ExitStack() as files:
        lines = sys.stdin.buffer if path == "-" else files.enter_context(open(path, "rb"))
        for verdict in pairs.check_lines(lines, settings, task):
            unread += "error" in verdict
            sys.stdout.write(pairs.to_line(verdict) + "\n")
    return 1 if unread else 0


if __name__ == "__main__":
    sys.exit(main())
