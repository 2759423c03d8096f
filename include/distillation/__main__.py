"""Commands of the distillation stage: training pairs, training, copies by a trained adapter, evaluation and registry."""

from __future__ import annotations

import argparse
import json
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from include.commands import command_line
from include.settings import PROJECT_ROOT, load_settings

TASKS = ("title", "description", "judge")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m include.distillation", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    sample = commands.add_parser("sample", help="write the sample catalog as CSV")
    sample.add_argument("--out", type=Path, default=PROJECT_ROOT / "include" / "samples" / "listings.csv")

    pairs = commands.add_parser("pairs", help="training pairs, from any of these sources together")
    pairs.add_argument("--world", type=int, default=0, help="pairs of the synthetic world")
    pairs.add_argument("--jsonl", type=Path, nargs="*", default=[], help="lines of source and output")
    pairs.add_argument("--batch", type=Path, nargs=2, metavar=("RESULTS", "SOURCES"), help="a hosted batch's results")
    pairs.add_argument("--run-dir", nargs="*", default=[], help="finished runs whose accepted copy is taken")
    pairs.add_argument("--rewrites", type=Path, nargs="*", default=[], help="for a judge: files written by `rewrite`")
    pairs.add_argument("--balanced", action="store_true", help="of the rewrites, as many faithful ones as faulty ones")
    pairs.add_argument("--split", choices=("train", "held_out"), default="train")
    pairs.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    pairs.add_argument("--seed", type=int, default=1)

    train = commands.add_parser("train", help="fine-tune; needs requirements-train.txt (or LISTING_TRAIN_PYTHON)")
    train.add_argument("--pairs", type=Path, required=True)
    train.add_argument("--recipe", type=json.loads, default={}, help="JSON object over the recipe's defaults")

    rewrite = commands.add_parser("rewrite", help="copies of world listings by an adapter, to train a judge on")
    rewrite.add_argument("--adapter", type=Path)
    rewrite.add_argument("--base-model", default=".models/smollm2-135m-instruct")
    rewrite.add_argument("--split", choices=("train", "held_out"), default="train")
    rewrite.add_argument("--count", type=int, default=1000)
    rewrite.add_argument("--seed", type=int, default=5)
    rewrite.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 0.7, 1.0, 1.3])

    labels = commands.add_parser("labels", help="oracle-labelled pairs of rewrites, to calibrate a judge on")
    labels.add_argument("--rewrites", type=Path, nargs="+", required=True, help="files written by `rewrite`")
    labels.add_argument("--out", type=Path, required=True)

    evaluate = commands.add_parser("evaluate", help="a candidate against the incumbent on the held-out pairs")
    evaluate.add_argument("--pairs", type=Path, required=True)
    evaluate.add_argument("--candidate", required=True, help="adapter folder")
    evaluate.add_argument("--held-out-share", type=float, default=0.02)
    evaluate.add_argument("--limit", type=int, default=200)

    register = commands.add_parser("register", help="store a trained model with its hashes; promote it if no worse")
    register.add_argument("--model", type=Path, required=True)
    register.add_argument("--pairs", type=Path, required=True)
    register.add_argument("--evaluation", type=Path, required=True)
    for command in (pairs, train, rewrite, evaluate, register):
        command.add_argument("--task", choices=TASKS, required=True)
    for command in (pairs, train, rewrite, evaluate):
        command.add_argument("--out", type=Path, required=True)
    return parser


def parse(arguments: Sequence[object] | None = None) -> argparse.Namespace:
    """The command line, or the same as a list of plain values."""
    return _parser().parse_args(None if arguments is None else [str(argument) for argument in arguments])


def make_pairs(args: argparse.Namespace) -> dict[str, Any]:
    """Writes the pairs of every source that is asked for. Raises ValueError when there is none."""
    from include.distillation import harvest, pairs

    def harvested() -> Iterator[dict[str, Any]]:
        for path in args.jsonl:
            yield from pairs.read_jsonl(path)
        if args.batch:
            yield from harvest.from_batch(*args.batch)
        for run_dir in args.run_dir:
            yield from harvest.from_run(run_dir, args.task)

    def rows() -> Iterator[dict[str, Any]]:
        if args.world:
            yield from pairs.from_world(args.task, args.world, args.seed, args.split, args.workers)
        if args.task != "judge":
            yield from harvest.to_pairs(harvested(), load_settings(), args.task)
        for path in args.rewrites:
            yield from pairs.judge_pairs(path, args.balanced)

    count = pairs.write_jsonl(args.out, rows())
    if not count:
        raise ValueError("no pair is left to train on: give other sources, or see the reasons above")
    return {"pairs": count, "out": str(args.out)}


def _train(args: argparse.Namespace) -> dict[str, Any]:
    from include.distillation.training import Recipe, train

    metrics = train(args.pairs, args.out, Recipe.model_validate(args.recipe))
    return {name: value for name, value in metrics.items() if name != "history"} | {"out": str(args.out)}


def _rewrite(args: argparse.Namespace) -> dict[str, Any]:
    from include.distillation import pairs
    from include.distillation.rewriting import Writer, rewrite_world

    writer = Writer(args.base_model, args.adapter)
    made = rewrite_world(writer, args.task, args.split, args.count, args.seed, args.temperatures)
    return {"copies": pairs.write_jsonl(args.out, map(pairs.to_row, made)), "out": str(args.out)}


def _evaluate(args: argparse.Namespace) -> dict[str, Any]:
    from include.distillation.evaluation import evaluate

    found = evaluate(args.task, args.pairs, args.candidate, load_settings(), args.held_out_share, args.limit)
    args.out.write_text(json.dumps(found, indent=2), encoding="utf-8")
    return found


def register_model(args: argparse.Namespace) -> dict[str, Any]:
    """Stores a trained model; returns its version, its folder and whether it was promoted."""
    from include.distillation.registry import register

    evaluation = json.loads(args.evaluation.read_text(encoding="utf-8"))
    record = register(load_settings(), args.task, args.model, args.pairs, evaluation)
    return {name: record[name] for name in ("task", "version", "path", "promoted")}


@command_line
def main() -> int:
    """Exit status 0: done; 2: an error on stderr. Training and engines end as every GPU stage does."""
    args = parse()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    children: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
        "train": _train,
        "rewrite": _rewrite,
        "evaluate": _evaluate,
    }
    if args.command in children:
        from include.generation.child import run_child, run_child_in

        if args.command == "evaluate":
            run_child(lambda: _evaluate(args))
        run_child_in("train", ("trl", "peft"), "include.distillation", lambda: children[args.command](args))
    if args.command == "sample":
        from include.distillation.merchants import write_sample

        print(f"{write_sample(args.out)} listings written to {args.out}")
    elif args.command == "labels":
        from include.distillation import pairs

        rows = (pairs.labelled_row(rewrite) for path in args.rewrites for rewrite in pairs.from_rows(path))
        print(f"{pairs.write_jsonl(args.out, rows)} labelled pairs written to {args.out}")
    else:
        print(json.dumps((make_pairs if args.command == "pairs" else register_model)(args)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
