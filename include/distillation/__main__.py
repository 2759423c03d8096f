"""Commands of the distillation stage: the synthetic world, training data, training, evaluation."""

from __future__ import annotations

import argparse
from pathlib import Path

from include.distillation import merchants


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m include.distillation", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    sample = commands.add_parser("sample", help="write the sample catalog as CSV")
    sample.add_argument("--out", type=Path, default=Path("include/samples/listings.csv"))
    args = parser.parse_args()
    if args.command == "sample":
        print(f"{merchants.write_sample(args.out)} listings written to {args.out}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
