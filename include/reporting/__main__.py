"""`python -m include.reporting show|report`: a run's summary as text and JSON, and its HTML report."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from include.reporting.report import write_report
from include.reporting.summary import latest_run, summarise
from include.reporting.text import summary_text
from include.runs import Run
from include.settings import SettingsError


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m include.reporting", description=__doc__)
    parser.add_argument("command", choices=["show", "report"])
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--run-dir", help="folder or URL of a run")
    chosen.add_argument("--date", help="partition date; its newest run is taken")
    parser.add_argument("--out", help="also write the summary as JSON (show) or the page (report) to this file")
    args = parser.parse_args(argv)
    try:
        run = Run.open(args.run_dir) if args.run_dir else latest_run(args.date)
    except (FileNotFoundError, SettingsError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if args.command == "report":
        print(write_report(run, args.out))
        return 0
    summary = summarise(run)
    print(summary_text(summary))
    if args.out:
        Path(args.out).parent.mkdir(parents=True, exist_ok=True)
        Path(args.out).write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
        print(f"\nsummary: {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
