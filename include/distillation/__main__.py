"""Commands of the distillation stage: the synthetic world, training pairs, training, and copies by a trained adapter."""

from __future__ import annotations

import argparse
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from include.distillation import merchants, pairs

BASE = ".models/smollm2-135m-instruct"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m include.distillation", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    sample = commands.add_parser("sample", help="write the sample catalog as CSV")
    sample.add_argument("--out", type=Path, default=Path("include/samples/listings.csv"))

    made = commands.add_parser("pairs", help="training pairs from the synthetic world, and for the judge from rewrites")
    made.add_argument("--task", choices=("title", "description", "judge"), required=True)
    made.add_argument("--count", type=int, required=True)
    made.add_argument("--seed", type=int, default=1)
    made.add_argument("--split", choices=("train", "held_out"), default="train")
    made.add_argument("--rewrites", type=Path, nargs="*", default=[], help="JSON Lines written by `rewrite`")
    made.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    made.add_argument("--out", type=Path, required=True)

    train = commands.add_parser("train", help="fine-tune one task model; needs requirements-train.txt")
    train.add_argument("--task", choices=("title", "description", "judge"), required=True)
    train.add_argument("--pairs", type=Path, required=True)
    train.add_argument("--out", type=Path, required=True)
    train.add_argument("--recipe", type=json.loads, default={}, help="JSON object over the recipe's defaults")

    rewrite = commands.add_parser("rewrite", help="copies of world listings by an adapter")
    rewrite.add_argument("--task", choices=("title", "description"), required=True)
    rewrite.add_argument("--adapter", type=Path)
    rewrite.add_argument("--base-model", default=BASE)
    rewrite.add_argument("--split", choices=("train", "held_out"), default="train")
    rewrite.add_argument("--count", type=int, default=1000)
    rewrite.add_argument("--seed", type=int, default=5)
    rewrite.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 0.8, 1.2])
    rewrite.add_argument("--out", type=Path, required=True)

    agreement = commands.add_parser("agreement", help="a judge adapter against the oracle, on rewrites")
    agreement.add_argument("--adapter", type=Path, required=True)
    agreement.add_argument("--base-model", default=BASE)
    agreement.add_argument("--rewrites", type=Path, nargs="+", required=True)
    return parser


def _judge_rows(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Pairs of rewrites, grouped by their place, so that some are held out."""
    for path in args.rewrites:
        for index, rewrite in enumerate(pairs.from_rows(path)):
            yield pairs.judge_pair(rewrite, f"{path.name}-{index // 50}")


def main() -> int:
    args = _parser().parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    if args.command == "sample":
        print(f"{merchants.write_sample(args.out)} listings written to {args.out}")
    elif args.command == "pairs":
        world = pairs.from_world(args.task, args.count, args.seed, args.split, args.workers)
        rows = (row for source in (world, _judge_rows(args)) for row in source)
        print(f"{pairs.write_jsonl(args.out, rows)} pairs written to {args.out}")
    elif args.command == "train":
        from include.distillation.training import Recipe, train

        print(json.dumps(train(args.pairs, args.out, Recipe.model_validate(args.recipe)), indent=2))
    elif args.command == "rewrite":
        from include.distillation.rewriting import Writer, rewrite_world

        made = rewrite_world(
            Writer(args.base_model, args.adapter), args.task, args.split, args.count, args.seed, args.temperatures
        )
        print(f"{pairs.write_jsonl(args.out, map(pairs.to_row, made))} copies written to {args.out}")
    elif args.command == "agreement":
        from include.distillation.rewriting import Writer, judge_agreement

        for path in args.rewrites:
            print(path, json.dumps(judge_agreement(Writer(args.base_model, args.adapter), list(pairs.from_rows(path)))))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
