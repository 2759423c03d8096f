"""`python -m include.warehouse …`: the warehouse's schema, loads and leases. Its URL comes from ADS_WAREHOUSE_URL."""

from __future__ import annotations

import argparse
import json
import sys
from datetime import date
from typing import Any

from include.partitions import TornPartError, plain_json
from include.records import AccountingError
from include.runs import WAREHOUSE_URL_VARIABLE, Run, url_from_environment
from include.settings import SettingsError, load_settings
from include.warehouse import leases
from include.warehouse.database import UnreachableError
from include.warehouse.load import LoadRefusedError, load, reconcile
from include.warehouse.migrate import OldSchemaError, migrate

_ERRORS = (
    UnreachableError, LoadRefusedError, OldSchemaError, AccountingError, TornPartError, FileNotFoundError, SettingsError,
    leases.LeaseHeldError,
)  # fmt: skip


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
    return parser


def _run(args: argparse.Namespace, url: str) -> Any:
    if args.command == "migrate":
        return {"schema": migrate(url)}
    if args.command == "release":
        tasks = [args.task] if args.task else sorted(load_settings().tasks)
        return {"released": [task for task in tasks if leases.release_any(args.date, task, warehouse_url=url)]}
    stage = load if args.command == "load" else reconcile
    return stage(Run.open(args.run_dir), args.task, warehouse_url=url)


def main(argv: list[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    try:
        result = _run(args, url_from_environment(WAREHOUSE_URL_VARIABLE))
    except _ERRORS as error:
        print(f"error: {error.args[0] if error.args else error}", file=sys.stderr)
        return 2
    print(json.dumps(plain_json(result), indent=2, ensure_ascii=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
