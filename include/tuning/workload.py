"""The prompts that a tuning run answers: those of recent runs or of a file, or others like them.

A workload is a JSON Lines file of prompts, one `{"id", "messages", "sampling_params"}` a line, with what is known of it
beside: lengths in tokens, the prefix that all prompts share, and whether reading prompts or writing answers binds.
"""

from __future__ import annotations

import heapq
import json
import logging
import math
import os
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, cast

from include.generation.answers import first_request
from include.generation.engine import Request
from include.generation.prompts import rendered
from include.judging.sampling import draw_key
from include.partitions import Store, TornPartError
from include.records import WorkItem
from include.runs import Run
from include.settings import EngineProfile, Settings, SettingsError, TaskSettings, resolve_path

log = logging.getLogger(__name__)

HEADROOM = 2.0  # of max_model_len over the longest prompt at hand: those to come may be longer


def items_of_runs(run_dirs: Iterable[str], task: str, *, limit: int, seed: int) -> list[WorkItem]:
    """A seeded, even draw of `limit` work items of runs, no two of one text; all, where there are not as many.

    Keeps the texts of the smallest keyed hashes (see include.judging.sampling), so that memory holds no more than the draw.
    Raises FileNotFoundError for a folder that is no run.
    """
    if limit < 1:
        return []
    kept: dict[str, WorkItem] = {}
    order: list[tuple[int, str]] = []  # a heap, the text of the largest hash first
    for run_dir in run_dirs:
        run = Run.open(run_dir)
        for index in range(len(run.bins(task))):
            for item in run.store.read_rows(run.work_parts(task, index), WorkItem):
                entry = (-draw_key(str(seed), item.text_id), item.text_id)
                if item.text_id in kept or (len(order) == limit and entry < order[0]):
                    continue
                kept[item.text_id] = item
                if len(order) < limit:
                    heapq.heappush(order, entry)
                else:
                    del kept[heapq.heapreplace(order, entry)[1]]
    return [kept[text_id] for _, text_id in sorted(order, reverse=True)]


def requests_of_runs(run_dirs: Iterable[str], task: str, settings: Settings, *, limit: int, seed: int) -> list[Request]:
    """An even draw of prompts (see `items_of_runs`), rendered with the settings of now."""
    enhancement = settings.task(task)
    profile = settings.engines[enhancement.engine]
    items = items_of_runs(run_dirs, task, limit=limit, seed=seed)
    return [first_request(item, enhancement, profile) for item in items]


def newest_runs(settings: Settings, task: str, most: int = 7) -> list[str]:
    """Folders of the newest runs that had work for this enhancement task and came as far as its gate, newest day first.

    A run whose gate file is torn is left out, with a warning.
    """
    data, found = Store(resolve_path(settings.pipeline.data_url)), list[str]()
    for day in reversed(data.list("", suffix="")):
        for run in data.list(day, suffix="") if day.startswith("dt=") else ():
            try:
                gate = data.read_json(f"{run}/{Run.manifest(task, 'gate')}")
            except TornPartError as error:
                log.warning("%s is left out: %s", data.child(run).url, error)
                continue
            if gate and gate["status"] != "empty":
                found.append(data.child(run).url)
            if len(found) == most:
                return found
    return found


def read_requests(path: Path) -> list[Request]:
    """The prompts of a workload file. Raises ValueError, which names the line, for one that is not a prompt."""
    found = []
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            try:
                row = json.loads(line)
                request = Request(
                    id=str(row.get("id", number)),
                    messages=[{"role": str(m["role"]), "content": str(m["content"])} for m in row["messages"]],
                    sampling_params=dict(row.get("sampling_params", {})),
                    thinking=bool(row.get("thinking")),
                    adapter=row.get("adapter"),
                )
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ValueError(
                    f"{path}, line {number}: {error!r}; a line holds messages of role and content"
                ) from error
            found.append(request)
    if not found:
        raise ValueError(f"{path} holds no prompt")
    return found


def write_requests(path: Path, requests: Iterable[Request]) -> None:
    """Writes a workload file, whole or not at all."""
    hidden = path.with_name(f".{path.name}.{os.getpid()}")
    with hidden.open("w", encoding="utf-8") as file:
        for request in requests:
            row = {
                "id": request.id,
                "messages": [dict(m) for m in request.messages],
                "sampling_params": dict(request.sampling_params),
                "thinking": request.thinking,
                "adapter": request.adapter,
            }
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    os.replace(hidden, path)


def capped(profile: EngineProfile, requests: Sequence[Request], task: TaskSettings) -> EngineProfile:
    """The profile with a `max_model_len` of twice what the longest of these prompts and its answer take, to the next 256 tokens.

    Without one, every engine plans for the model's own, 40,960 tokens with Qwen3-4B. A profile that sets one keeps it, since it may
    know of longer listings; and where a task does not shorten listings that are too long, it is for a person to say from which
    length on they are refused: the number is only logged.

    Raises SettingsError where the model's tokenizer cannot be read.
    """
    if profile.engine_args.get("max_model_len"):
        return profile
    import transformers

    auto = cast("Any", transformers)
    try:
        config = auto.AutoConfig.from_pretrained(profile.model_path(), revision=profile.revision)
        tokenizer = auto.AutoTokenizer.from_pretrained(profile.model_path(), revision=profile.revision)
    except (OSError, ValueError) as error:
        raise SettingsError(
            f"the tokenizer of {profile.model} cannot be read, or set max_model_len: {error}"
        ) from error
    prompts = tokenizer(rendered(tokenizer, requests), add_special_tokens=False)["input_ids"]
    answers = ({**profile.sampling_params, **request.sampling_params}.get("max_tokens", 16) for request in requests)
    longest = max(len(tokens) + int(answer) for tokens, answer in zip(prompts, answers, strict=True))
    limit = math.ceil(HEADROOM * longest / 256) * 256
    if limit >= getattr(config.get_text_config(), "max_position_embeddings", math.inf):
        return profile
    told = "the longest prompt and its answer take %d tokens: max_model_len %d"
    if task.overlong != "shorten":
        log.warning(
            told + " would do, but %s refuses longer listings, so that the profile must set it",
            longest,
            limit,
            task.name,
        )
        return profile
    log.info(told, longest, limit)
    return profile.model_copy(update={"engine_args": profile.engine_args | {"max_model_len": limit}})


def synthetic(requests: Sequence[Request], count: int, seed: int) -> Iterator[Request]:
    """`count` prompts like the given ones: the same fixed part, lengths drawn from theirs, words drawn from all of theirs.

    Only the last message differs between prompts; its text up to where all of them agree is the fixed part.
    """
    draw = random.Random(seed)  # noqa: S311
    texts = [str(request.messages[-1]["content"]) for request in requests]
    prefix = os.path.commonprefix(texts)  # noqa: RUF071 - by characters is what is wanted
    bodies = [text[len(prefix) :].split() for text in texts]
    words = [word for body in bodies for word in body]
    for number in range(count):
        pattern = draw.choice(requests)
        body = " ".join(draw.choices(words, k=len(draw.choice(bodies)))) if words else ""
        messages = [*pattern.messages[:-1], {**pattern.messages[-1], "content": prefix + body}]
        yield replace(pattern, id=f"synthetic-{number}", messages=messages)


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens per prompt or answer: mean and quantiles."""

    mean: float
    p10: int
    p50: int
    p90: int
    longest: int

    @classmethod
    def of(cls, values: Sequence[int]) -> Lengths:
        """Raises IndexError for no values."""
        ordered = sorted(values)

        def at(share: float) -> int:
            return ordered[int(share * (len(ordered) - 1))]

        return cls(round(sum(ordered) / len(ordered), 1), at(0.1), at(0.5), at(0.9), ordered[-1])


def shared_prefix(prompts: Iterable[Sequence[int]], most: int = 1_000) -> int:
    """Tokens that the first `most` tokenized prompts begin with alike."""
    return len(os.path.commonprefix([list(tokens) for tokens in islice(prompts, most)]))  # noqa: RUF071


def describe(prompts: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Figures of a workload from its prompts' token ids: how many, how long, how much of them is one shared prefix."""
    prefix = shared_prefix(prompts)
    lengths = Lengths.of([len(tokens) for tokens in prompts])
    return {
        "prompts": len(prompts),
        "prompt_tokens": asdict(lengths),
        "shared_prefix_tokens": prefix,
        "shared_prefix_share": round(prefix / lengths.mean, 3) if lengths.mean else 0.0,
    }
