"""`python -m include.warehouse …`: the warehouse's schema, loads and leases. Its URL comes from ADS_WAREHOUSE_URL."""

from __future__ import annotations

import argparse
import json
import sys
from datetime import UTC, date, datetime
from typing import Any

from include.commands import command_line
from include.partitions import plain_json
from include.runs import WAREHOUSE_URL_VARIABLE, Run, url_from_environment
from include.settings import load_settings, resolve_path
from include.warehouse import leases
from include.warehouse.load import load, reconcile
from include.warehouse.migrate import migrate
from include.warehouse.revert import revert
from include.warehouse.upkeep import clean_parts, clean_warehouse, pin


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m include.warehouse", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("migrate", help="bring the schema up to date")
    for name, text in (
        ("load", "stage, audit and publish the accepted copy"),
        ("reconcile", "read the counts back and mark the run published"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("--run-dir", required=True)
        command.add_argument("--task", required=True)
    command = commands.add_parser("release", help="remove the leases of a dead run")
    command.add_argument("--date", required=True, type=date.fromisoformat)
    command.add_argument("--task", help="one enhancement task; default: all")
    command = commands.add_parser("revert", help="take one run's copy back: every listing gets what stood before")
    command.add_argument("--run-id", required=True)
    command.add_argument("--task", required=True)
    for name, text in (("pin", "keep a person's copy from being overwritten"), ("unpin", "let runs write it again")):
        command = commands.add_parser(name, help=text)
        for option in ("--merchant", "--listing", "--task"):
            command.add_argument(option, required=True)
        if name == "pin":
            command.add_argument("--text", help="copy to publish in place of the live one")
    command = commands.add_parser("clean", help="remove history, quarantine, runs and run folders that are old")
    command.add_argument("--days", type=int, required=True)
    return parser


def _run(args: argparse.Namespace, url: str) -> Any:
    if args.command == "migrate":
        return {"schema": migrate(url)}
    if args.command == "release":
        tasks = [args.task] if args.task else sorted(load_settings().tasks)
        return {"released": [task for task in tasks if leases.release_any(args.date, task, warehouse_url=url)]}
    if args.command == "revert":
        return revert(args.run_id, args.task, warehouse_url=url)
    if args.command in ("pin", "unpin"):
        text, on = getattr(args, "text", None), args.command == "pin"
        pin(args.merchant, args.listing, args.task, warehouse_url=url, text=text, on=on)
        return {"pinned": on}
    if args.command == "clean":
        if args.days < 1:
            raise ValueError(f"--days is {args.days}: give 1 or more, the days that are kept")
        data_url, cleaned = (
            resolve_path(load_settings().pipeline.data_url),
            clean_warehouse(args.days, warehouse_url=url),
        )
        return cleaned | {"run_folders": clean_parts(data_url, args.days, datetime.now(UTC).date())}
    stage = load if args.command == "load" else reconcile
    return stage(Run.open(args.run_dir), args.task, warehouse_url=url)


@command_line
def main(argv: list[str] | None = None) -> int:
    result = _run(_parser().parse_args(argv), url_from_environment(WAREHOUSE_URL_VARIABLE))
    print(json.dumps(plain_json(result), indent=2, ensure_ascii=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
