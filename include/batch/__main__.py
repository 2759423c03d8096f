"""Commands for request files of OpenAI's Batch API.

`run` answers one on our own engine; `export` writes a run's work as request files for the hosted API; `shadow` compares a
run's copy with the hosted API's stored results.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from include.commands import command_line, count


def _shadow(options: argparse.Namespace) -> dict[str, Any]:
    from include.batch.shadow import shadow
    from include.judging.costs import load_comparison
    from include.runs import Run

    found = shadow(
        Run.open(options.run_dir), options.task, options.incumbent, options.out, load_comparison(),
        listings=options.listings, mapping=options.map, seed=options.seed,
    )  # fmt: skip
    return {"verdict": found["verdict"], "why": "; ".join(found["why"]), "report": str(options.out / "shadow.html")}


@command_line
def main(arguments: list[str] | None = None) -> int:
    """Exit status 0: done; 2: an error on stderr; `run` and `shadow` also 75: failed, a retry may help; 78: none will."""
    parser = argparse.ArgumentParser(prog="python -m include.batch", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="answer a request file; run it again to do what is missing")
    run.add_argument("--in", required=True, type=Path, dest="source", help="request file (JSONL)")
    run.add_argument("--out", required=True, type=Path, help="result file; its manifest is <out>.manifest.json")
    run.add_argument("--errors", required=True, type=Path, help="error file")
    run.add_argument("--engine", required=True, help="engine profile, a file of include/config/engines")
    run.add_argument(
        "--model-alias",
        action="append",
        default=[],
        help="model name that the file may ask for; repeatable; default: any one",
    )
    export = commands.add_parser("export", help="write a run's work items as request files")
    export.add_argument("--run-dir", required=True, help="folder or URL of the run")
    export.add_argument("--task", required=True, help="enhancement task")
    export.add_argument(
        "--out", required=True, type=Path, help="request file; numbered when the API's limits need several"
    )
    export.add_argument("--model", required=True, help="model name for the hosted API")
    shadow = commands.add_parser("shadow", help="compare a run's copy with stored results of the same texts")
    shadow.add_argument("--run-dir", required=True, help="folder or URL of the run, or of its work items alone")
    shadow.add_argument("--task", required=True, help="enhancement task")
    shadow.add_argument("--incumbent", required=True, type=Path, help="result file of the Batch API (JSONL)")
    shadow.add_argument("--map", type=Path, help="JSONL of custom_id and text_id, where they differ")
    shadow.add_argument("--out", required=True, type=Path, help="folder of shadow.html and shadow.json")
    shadow.add_argument("--listings", type=count, help="texts to compare at most; default: held_out of tuning.yaml")
    shadow.add_argument("--seed", type=int, default=8, help="of the draw")
    options = parser.parse_args(arguments)
    if options.command == "export":
        from include.batch.export import export_requests
        from include.runs import Run

        for path in export_requests(Run.open(options.run_dir), options.task, options.out, options.model):
            print(path)
        return 0

    if options.command == "shadow":
        from include.generation.child import run_child

        return run_child(lambda: _shadow(options))

    from include.batch.run import run_batch
    from include.generation.child import run_child
    from include.settings import load_settings

    def stage() -> dict[str, Any]:
        return run_batch(
            load_settings(), options.engine, options.source, options.out, options.errors, options.model_alias
        )

    return run_child(stage)


if __name__ == "__main__":
    sys.exit(main())
