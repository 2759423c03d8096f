"""Training pairs: chat prompt and wanted completion, as JSON Lines that TRL reads as they are.

A line is {"prompt": [messages], "completion": [message], "group": text, "source": listing}; `group` decides the split, so
that one merchant never stands in both the training and the held-out part.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from include.distillation import copywriting, merchants, oracle
from include.distillation.copywriting import Labelled
from include.distillation.world import Product, Quantity, Split, sample_product
from include.extraction.cleaning import clean, plain_text
from include.generation.prompts import listing_values, messages
from include.judging.rubric import judge_values
from include.records import Listing, SampledText

Task = Literal["title", "description", "judge"]
WRITERS = ("title", "description")
FIELDS = ("title", "description", "brand", "category", "attributes")
MAX_CLAIMS = 3


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A copy of one listing by a writer, with the facts that it must agree with."""

    task: str
    listing: Listing
    product: Product
    text: str


def as_extracted(listing: Listing) -> Listing:
    """The listing as prompts see it: cleaned, without markup."""
    return replace(listing, title=plain_text(clean(listing.title)), description=plain_text(clean(listing.description)))


def writer_prompt(
    task: str, listing: Listing, template: str = "", fields: tuple[str, ...] = FIELDS
) -> list[dict[str, str]]:
    return messages(template or f"{task}.j2", **listing_values(as_extracted(listing), fields))


def judge_prompt(task: str, listing: Listing, text: str) -> list[dict[str, str]]:
    clean = as_extracted(listing)
    fields = {name: str(getattr(clean, name)) for name in (*FIELDS, "locale")}
    sampled = SampledText(text_id="", stratum="", weight=1.0, listings=1, output=text, **fields)
    return messages("judge.j2", **judge_values(sampled, task))


def judge_answer(found: Labelled) -> str:
    """The answer that the judge shall give, in the schema of the rubric."""
    lists = {
        kind: [claim[:80] for claim in getattr(found, kind)[:MAX_CLAIMS]]
        for kind in ("unsupported", "contradictory", "omitted")
    }
    return json.dumps({**lists, "verdict": "pass" if found.faithful else "fail"}, ensure_ascii=False)


def pair(prompt: list[dict[str, str]], completion: str, group: str, listing: Listing) -> dict[str, Any]:
    names = ("merchant_id", "title", "description", "brand", "category", "locale", "attributes")
    source = {name: getattr(listing, name) for name in names}
    answer = [{"role": "assistant", "content": completion}]
    return {"prompt": prompt, "completion": answer, "group": group, "source": source}


def _writer_chunk(task: str, split: Split, count: int, seed: int) -> list[dict[str, Any]]:
    rng = random.Random(seed)  # noqa: S311
    return [
        pair(
            writer_prompt(task, listing),
            copywriting.write(task, product, rng, split),
            f"world-{seed}-{index // 25}",
            listing,
        )
        for index, (listing, product) in enumerate(merchants.examples(seed, count, split))
    ]


def _judge_chunk(split: Split, count: int, seed: int) -> list[dict[str, Any]]:
    """Planted faults: half of the copies are faulty, and a few belong to another listing."""
    rng = random.Random(seed)  # noqa: S311
    made = []
    for index, (listing, product) in enumerate(merchants.examples(seed, count, split)):
        task = rng.choice(WRITERS)
        shown = sample_product(rng, split, product.locale) if rng.random() < 0.04 else product
        text = copywriting.labelled_copy(task, shown, rng, split, faulty=rng.random() < 0.55).text
        made.append(judge_pair(Rewrite(task, listing, product, text), f"world-{seed}-{index // 25}"))
    return made


def check_rewrite(rewrite: Rewrite) -> Labelled:
    """The oracle's answer about a rewrite."""
    return oracle.check(rewrite.product, as_extracted(rewrite.listing), rewrite.text)


def judge_pair(rewrite: Rewrite, group: str) -> dict[str, Any]:
    """A judge's pair, labelled by the oracle."""
    prompt = judge_prompt(rewrite.task, rewrite.listing, rewrite.text)
    return pair(prompt, judge_answer(check_rewrite(rewrite)), group, rewrite.listing)


def labelled_row(rewrite: Rewrite) -> dict[str, Any]:
    """A line of `python -m include.judging calibrate --labels`, labelled by the oracle."""
    listing, found = as_extracted(rewrite.listing), check_rewrite(rewrite)
    kinds = [kind for kind in ("unsupported", "contradictory") if getattr(found, kind)]
    return {
        "document": listing.listing_id,
        "source": {name: getattr(listing, name) for name in FIELDS},
        "output": rewrite.text,
        "label": int(found.faithful),
        "locale": listing.locale,
        "kind": rewrite.task,
        "error_type": " and ".join(kinds),
    }


def judge_pairs(path: Path, balanced: bool) -> Iterator[dict[str, Any]]:
    """Judge's pairs of rewrites that `to_row` wrote; balanced: a faithful one for every faulty one so far, no more."""
    spare = 0
    for index, rewrite in enumerate(from_rows(path)):
        found = judge_pair(rewrite, f"{path.name}-{index // 50}")
        faithful = '"verdict": "pass"' in found["completion"][0]["content"]
        spare += -1 if faithful else 1
        if balanced and faithful and spare < 0:
            spare = 0
            continue
        yield found


def from_world(
    task: Task, count: int, seed: int, split: Split = "train", workers: int = 1, chunk: int = 500
) -> Iterator[dict[str, Any]]:
    """Pairs from the synthetic world; the same for the same seed, whatever the number of workers."""
    make: Callable[[int, int], list[dict[str, Any]]]
    make = partial(_judge_chunk, split) if task == "judge" else partial(_writer_chunk, task, split)
    sizes = [min(chunk, count - start) for start in range(0, count, chunk)]
    seeds = [seed * 1_000_003 + index for index in range(len(sizes))]
    if workers == 1:
        for size, chunk_seed in zip(sizes, seeds, strict=True):
            yield from make(size, chunk_seed)
        return
    with ProcessPoolExecutor(workers) as pool:
        for made in pool.map(make, sizes, seeds):
            yield from made


def write_jsonl(path: Path, rows: Iterable[Any]) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    count = 0
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
            count += 1
    return count


def read_jsonl(path: Path) -> Iterator[Any]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    yield json.loads(line)
                except ValueError as error:
                    raise ValueError(f"{path} line {number} is not JSON: {error}; mend or remove the line") from error


def held_out(group: str, share: float) -> bool:
    """Whether a group (a merchant) belongs to the held-out part: by hash, so that it stays there when data grows."""
    return int(sha256(group.encode()).hexdigest()[:8], 16) < share * 2**32


def to_row(rewrite: Rewrite) -> dict[str, Any]:
    listing = asdict(rewrite.listing) | {"source_updated_at": rewrite.listing.source_updated_at.isoformat()}
    return {"task": rewrite.task, "listing": listing, "product": asdict(rewrite.product), "text": rewrite.text}


def from_rows(path: Path) -> Iterator[Rewrite]:
    """Rewrites that `to_row` wrote to JSON Lines."""
    for row in read_jsonl(path):
        listing = {**row["listing"], "source_updated_at": datetime.fromisoformat(row["listing"]["source_updated_at"])}
        facts: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in row["product"].items()}
        facts["quantities"] = tuple(Quantity(**q) for q in facts["quantities"])
        yield Rewrite(row["task"], Listing(**listing), Product(**facts), row["text"])
