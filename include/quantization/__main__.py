"""`python -m include.quantization make`: a quantized checkpoint of a task model, for `tune_task_model` to try.

It runs in an environment of its own (`make quantize-env`), since llm-compressor asks for other versions than the engine.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from include.generation.child import run_child
from include.quantization.making import make
from include.quantization.recipes import SCHEMES
from include.settings import PROJECT_ROOT, SettingsError

PYTHON_VARIABLE = "LISTING_QUANTIZE_PYTHON"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m include.quantization", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("make", help=f"needs requirements-quantize.txt (or {PYTHON_VARIABLE})")
    one.add_argument("--model", required=True, help="model folder, or Hugging Face id")
    one.add_argument("--revision", help="of a Hugging Face id")
    one.add_argument("--adapter", type=Path, help="LoRA folder to fold in first, as an engine with merge_lora does")
    one.add_argument("--prompts", type=Path, required=True, help="workload file, such as a tuning run's workload.jsonl")
    one.add_argument("--scheme", choices=SCHEMES, required=True)
    one.add_argument("--samples", type=int, default=512, help="most prompts that calibrate")
    one.add_argument("--seed", type=int, default=7, help="of the draw of prompts")
    one.add_argument("--out", type=Path, required=True, help="folder of the new checkpoint")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Ends as every GPU stage does. Exit status 0: done; 75: failed, worth a retry; 78: mend what it says first."""
    values = vars(_parser().parse_args(arguments))
    del values["command"]
    missing = not find_spec("llmcompressor")
    python = Path(os.environ.get(PYTHON_VARIABLE) or PROJECT_ROOT / ".venv-quantize" / "bin" / "python")
    if (
        missing and python.is_file() and python.absolute() != Path(sys.executable).absolute()
    ):  # venvs resolve to one file
        os.execv(python, [str(python), "-m", "include.quantization", *sys.argv[1:]])  # noqa: S606

    def stage() -> dict[str, Any]:
        if missing:
            raise SettingsError(
                f"llm-compressor is not installed: `make quantize-env`, or set {PYTHON_VARIABLE} to an interpreter that "
                "has requirements-quantize.txt"
            )
        return make(**values)

    run_child(stage)


if __name__ == "__main__":
    main()
