"""Commands of the judging stage: sample, score and gate for one run and enhancement task."""

from __future__ import annotations

import argparse
import json
import logging
import sys

from include.judging.scoring import JudgeError
from include.runs import Run
from include.settings import SettingsError


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
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Exit status 0: done (and, for `gate`, copy may be published); 1: refused, with the reason on stderr."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        run = Run.open(options.run_dir)
        if options.command == "sample":
            from include.judging.stage import sample

            result = sample(run, options.task)
        elif options.command == "score":
            from include.judging.scoring import score

            result = score(run, options.task)
        else:
            from include.judging.gate import decide

            result = decide(run, options.task)
    except (FileNotFoundError, SettingsError, JudgeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(json.dumps(result, indent=2, sort_keys=True, default=str, ensure_ascii=False))
    return 0 if result.get("status") not in ("failed", "broken") else 1


if __name__ == "__main__":
    sys.exit(main())
