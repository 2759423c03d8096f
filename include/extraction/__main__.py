"""`python -m include.extraction …`: extract a run's work, or fill a catalog table from a CSV file.

Database URLs come from MERCHANT_CATALOG_URL and ADS_WAREHOUSE_URL.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from include.commands import command_line
from include.extraction.catalog import Catalog
from include.extraction.run import extract, read_and_write_part
from include.extraction.seed import seed_catalog
from include.partitions import plain_json
from include.runs import CATALOG_URL_VARIABLE, WAREHOUSE_URL_VARIABLE, Run, url_from_environment
from include.settings import load_settings


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m include.extraction", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("run", help="read the catalog and plan the work of every enhancement task")
    command.add_argument("--run-dir", required=True)
    command = commands.add_parser("read", help="one reader of an extraction that several share; started by `run`")
    command.add_argument("--run-dir", required=True)
    command.add_argument("--reader", required=True, type=int)
    command = commands.add_parser("seed-catalog", help="replace the catalog table's rows with a CSV file's")
    command.add_argument("--csv", required=True, type=Path)
    command.add_argument("--date", type=date.fromisoformat, help="partition date of rows without updated_at")
    commands.add_parser("newest-day", help="print the day in UTC of the catalog's latest change, else today's")
    return parser


def _run(args: argparse.Namespace) -> Any:
    catalog_url = url_from_environment(CATALOG_URL_VARIABLE)
    if args.command == "seed-catalog":
        settings = load_settings().pipeline.catalog
        return {"table": settings.table, "rows": seed_catalog(catalog_url, args.csv, settings, args.date)}
    if args.command == "newest-day":
        return Catalog(catalog_url, load_settings().pipeline.catalog).newest_day() or datetime.now(UTC).date()
    run, warehouse_url = Run.open(args.run_dir), url_from_environment(WAREHOUSE_URL_VARIABLE)
    if args.command == "read":
        read_and_write_part(run, args.reader, catalog_url=catalog_url, warehouse_url=warehouse_url)
        return {"reader": args.reader}
    return extract(run, catalog_url=catalog_url, warehouse_url=warehouse_url)


@command_line
def main(argv: list[str] | None = None) -> int:
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    result = _run(_parser().parse_args(argv))
    print(result if isinstance(result, date) else json.dumps(plain_json(result), indent=2, ensure_ascii=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
