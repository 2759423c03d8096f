"""A run's summary (`show`), its HTML report (`report`), copy before and after (`preview`), and whether it is late (`watch`)."""

from __future__ import annotations

import argparse
import json
import os
import sys
from datetime import UTC, date, datetime
from pathlib import Path

from include.commands import command_line
from include.reporting.preview import preview
from include.reporting.report import write_report
from include.reporting.summary import latest_run, summarise
from include.reporting.text import summary_text
from include.reporting.watch import trouble_of, troubles
from include.runs import CATALOG_URL_VARIABLE, WAREHOUSE_URL_VARIABLE, Run, url_from_environment
from include.settings import load_settings


def _watch(day: str | None) -> int:
    """Status 1 and the alerts for a date, default the last days in UTC, whose run is late or silent; 0 without a word otherwise."""
    settings, now = load_settings(), datetime.now(UTC)
    found = [trouble_of(settings, date.fromisoformat(day), now)] if day else troubles(settings, now)
    bodies = [trouble.body for trouble in found if trouble is not None]
    if bodies:
        print("\n\n".join(bodies))
    return int(bool(bodies))


@command_line
def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m include.reporting", description=__doc__)
    parser.add_argument("command", choices=["show", "report", "preview", "watch"])
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--run-dir", help="folder or URL of a run")
    chosen.add_argument("--date", help="partition date; its newest run is taken")
    parser.add_argument("--out", help="also write the summary as JSON (show) or the page (report) to this file")
    parser.add_argument("--rows", type=int, default=5, help="listings that preview shows")
    args = parser.parse_args(argv)
    if args.command == "watch":
        return _watch(args.date)
    if args.command != "preview" and not (args.run_dir or args.date):
        parser.error("name a run with --run-dir or --date")
    if args.command == "preview":
        catalog, warehouse = map(url_from_environment, (CATALOG_URL_VARIABLE, WAREHOUSE_URL_VARIABLE))
        print(preview(load_settings(), catalog_url=catalog, warehouse_url=warehouse, rows=args.rows))
        return 0
    run = Run.open(args.run_dir) if args.run_dir else latest_run(args.date)
    if args.command == "report":
        print(write_report(run, args.out, os.environ.get(WAREHOUSE_URL_VARIABLE, "")))
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
