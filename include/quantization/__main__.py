"""`python -m include.quantization make`: a quantized checkpoint of a task model, for `tune_task_model` to try.

It runs in an environment of its own (`make quantize-env`), since llm-compressor asks for other versions than the engine.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from include.commands import count
from include.generation.child import run_child_in
from include.quantization.making import make
from include.quantization.recipes import SCHEMES


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m include.quantization", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("make", help="needs requirements-quantize.txt (or LISTING_QUANTIZE_PYTHON)")
    one.add_argument("--model", required=True, help="model folder, or Hugging Face id")
    one.add_argument("--revision", help="of a Hugging Face id")
    one.add_argument("--adapter", type=Path, help="LoRA folder to fold in first, as an engine with merge_lora does")
    one.add_argument("--prompts", type=Path, required=True, help="workload file, such as a tuning run's workload.jsonl")
    one.add_argument("--scheme", choices=SCHEMES, required=True)
    one.add_argument("--samples", type=count, default=512, help="most prompts that calibrate")
    one.add_argument("--seed", type=int, default=7, help="of the draw of prompts")
    one.add_argument("--out", type=Path, required=True, help="folder of the new checkpoint")
    return parser


def main() -> None:
    """Ends as every GPU stage does. Exit status 0: done; 75: failed, worth a retry; 78: mend what it says first."""
    values = vars(_parser().parse_args())
    del values["command"]
    run_child_in("quantize", ("llmcompressor",), "include.quantization", lambda: make(**values))


if __name__ == "__main__":
    main()
