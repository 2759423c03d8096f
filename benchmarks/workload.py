"""Prompts for tuning a model without weights: `python -m benchmarks.workload --task description --rows 3072 --out FOLDER`.

Writes FOLDER/qwen3-4b-shape, the model's folder, and FOLDER/<task>.jsonl for `python -m include.tuning run --prompts`: real listings
(see benchmarks.generation) with drawn output lengths, the tasks' fixed part cut to `--shared` tokens, since most prompts of others
share less, and each listing filled up with words of other listings to about `--tokens` a prompt.
"""

from __future__ import annotations

import argparse
import json
import os
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from benchmarks import dummy_model
from benchmarks.generation import SEED, fixed_lengths, work_items
from benchmarks.generation_arms import request_of
from include.generation.engine import Request
from include.generation.prompts import rendered
from include.settings import load_settings
from include.tuning.workload import describe, shared_prefix, write_requests

SAMPLE = 1_000  # prompts that agree on the shared part; words whose tokens decide how many are added
END = "</listing>"  # after a listing's text, in the shipped templates


def cut(request: Request, system: str, extra: Sequence[str]) -> Request:
    """The request with another system message and more words at the listing's end."""
    last = request.messages[-1]
    listing, end = str(last["content"]).rsplit(END, 1)
    content = f"{listing.rstrip()} {' '.join(extra)}\n{END}{end}"
    return replace(request, messages=[{"role": "system", "content": system}, {**last, "content": content}])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="title")
    parser.add_argument("--rows", type=int, default=6144)
    parser.add_argument("--shared", type=int, default=96)
    parser.add_argument("--tokens", type=int, default=255)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    import transformers

    model = dummy_model.make(options.out / "qwen3-4b-shape")
    tokenizer = cast("Any", transformers).AutoTokenizer.from_pretrained(model)

    def encoded(requests: Sequence[Request]) -> list[list[int]]:
        return list(tokenizer(rendered(tokenizer, requests), add_special_tokens=False)["input_ids"])

    settings = load_settings()
    task = settings.task(options.task)
    items, source = work_items(options.rows)
    requests = [request_of(item, task, settings.engines[task.engine]) for item in fixed_lengths(items, options.task)]
    texts = [str(request.messages[-1]["content"]) for request in requests]
    fixed = len(os.path.commonprefix(texts))  # noqa: RUF071 - by characters is what is wanted
    words = [word for text in texts for word in text[fixed:].rsplit(END, 1)[0].split()]
    system = str(requests[0].messages[0]["content"]).split(" ")
    sample = requests[:SAMPLE]
    while system and shared_prefix(encoded([cut(r, " ".join(system), ()) for r in sample])) > options.shared:
        system.pop()
    draw, fixed_part = random.Random(SEED), " ".join(system)
    bare = encoded([cut(request, fixed_part, ()) for request in requests])
    each = len(tokenizer(" ".join(draw.choices(words, k=SAMPLE)), add_special_tokens=False)["input_ids"]) / SAMPLE
    more = max(0, round((options.tokens - sum(map(len, bare)) / len(bare)) / each))
    found = [cut(request, fixed_part, draw.choices(words, k=more)) for request in requests]
    write_requests(options.out / f"{options.task}.jsonl", found)
    print(source)
    print(json.dumps(describe(encoded(found)), indent=2))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
