"""The arms of the generation benchmark: `python -m benchmarks.generation_arms ARM RUN_DIR TASK`.

An arm starts its engine, warms it up, prints `RESULT {...}`, and then measures one repeat for every line on its input.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from include.generation import worker as worker_module
from include.generation.answers import first_request
from include.generation.engine import Request
from include.generation.prompts import rendered
from include.generation.session import Session
from include.generation.vllm_engine import ENVIRONMENT, engine_arguments, engine_flags
from include.generation.worker import BinWorker
from include.records import Generation, WorkItem
from include.runs import Run
from include.settings import EngineProfile, TaskSettings

WARM_UP = 16


def emit(**values: Any) -> None:
    print("RESULT " + json.dumps(values), flush=True)


def request_of(item: WorkItem, task: TaskSettings, profile: EngineProfile) -> Request:
    """The item's request. A category like `tokens=17` fixes its output length, for models of random weights."""
    request = first_request(item, task, profile)
    if item.category.startswith("tokens="):
        tokens = int(item.category.removeprefix("tokens="))
        sampling = {**request.sampling_params, "max_tokens": tokens, "ignore_eos": True}
        request = Request(id=request.id, messages=request.messages, sampling_params=sampling)
    return request


class Bench:
    """The run's requests and profile."""

    def __init__(self, run_dir: str, task: str) -> None:
        self.run, self.name = Run.open(run_dir), task
        settings = self.run.spec.settings
        self.task = settings.task(task)
        self.profile: EngineProfile = settings.engines[self.task.engine]
        parts = self.run.work_parts(task, 0)
        self.requests = [
            request_of(item, self.task, self.profile) for item in self.run.store.read_rows(parts, WorkItem)
        ]

    def sampling(self, request: Request) -> dict[str, Any]:
        return {**self.profile.sampling_params, **request.sampling_params}


def prepare_environment(profile: EngineProfile) -> None:
    os.environ |= ENVIRONMENT | profile.environment | {"HF_HUB_OFFLINE": "1"}


def lines() -> Iterator[str]:
    for line in sys.stdin:
        yield line.strip()


def worker(bench: Bench) -> None:
    """Our worker, whole: reads parts, renders, tokenizes, generates, writes parts."""
    worker_module.first_request = request_of  # type: ignore[attr-defined]  # what the module asks for each row
    started = time.monotonic()
    with Session(bench.profile) as session:
        list(session.run(bench.requests[:WARM_UP]))
        emit(start_s=time.monotonic() - started)
        for _ in lines():
            engine: Any = session._engine
            engine._engine.reset_prefix_cache()
            bench.run.store.remove(Run.generated(bench.name, 0))
            began = time.monotonic()
            BinWorker(bench.run, bench.name, 0).generate(session)
            seconds = time.monotonic() - began
            rows = list(bench.run.store.read_rows(Run.generated(bench.name, 0), Generation))
            assert len(rows) == len(bench.requests), f"{len(rows)} answers for {len(bench.requests)} requests"
            report = session.report()
            emit(
                requests=len(rows),
                seconds=seconds,
                output_tokens=sum(row.output_tokens for row in rows),
                prefix_cache_hit_rate=report["prefix_cache_hit_rate"],
                roofline_share=report["roofline_share"],
                peak_gpu_memory_mb=report["peak_gpu_memory_mb"],
            )


def llm_generate(bench: Bench) -> None:
    """`LLM.generate`, given the whole list, or chunk by chunk when told so; prompts are tokenized beforehand."""
    from vllm import LLM, SamplingParams, TokensPrompt

    started = time.monotonic()
    llm = LLM(**engine_arguments(bench.profile))
    tokenizer = llm.get_tokenizer()
    texts = rendered(tokenizer, bench.requests)
    prompts = [TokensPrompt(prompt_token_ids=tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts]
    sampling = [SamplingParams(**bench.sampling(r)) for r in bench.requests]
    llm.generate(prompts[:WARM_UP], sampling[:WARM_UP], use_tqdm=False)
    emit(start_s=time.monotonic() - started)
    for line in lines():
        size = int(bench.profile.engine_args.get("max_num_seqs", 256)) if "chunked" in line else len(prompts)
        llm.reset_prefix_cache()
        began = time.monotonic()
        outputs = []
        for first in range(0, len(prompts), size):
            chunk = slice(first, first + size)
            outputs += llm.generate(prompts[chunk], sampling[chunk], use_tqdm=False)
        seconds = time.monotonic() - began
        tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
        emit(requests=len(outputs), seconds=seconds, output_tokens=tokens)


def run_batch(bench: Bench) -> None:
    """`vllm run-batch`, by its own function, over one engine client."""
    try:  # moved in vLLM 0.31
        from vllm.entrypoints.launchers import run_batch as module
        from vllm.entrypoints.launchers.api_server.entry import build_async_engine_client
    except ImportError:
        from vllm.entrypoints.openai import run_batch as module  # type: ignore[no-redef]
        from vllm.entrypoints.openai.api_server import build_async_engine_client
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    folder = Path(bench.run.store.root)
    model = bench.profile.model_path()
    flags = ["--model", model, *engine_flags(bench.profile)]

    def arguments(requests: list[Request], name: str) -> Namespace:
        rows = (
            {
                "custom_id": r.id,
                "method": "POST",
                "url": "/v1/chat/completions",
                "body": {"model": model, "messages": [dict(m) for m in r.messages], **bench.sampling(r)},
            }
            for r in requests
        )
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        files = ["-i", str(folder / f"{name}.jsonl"), "-o", str(folder / f"{name}.out.jsonl")]
        parser = module.make_arg_parser(FlexibleArgumentParser())  # type: ignore[no-untyped-call]
        parsed: Namespace = parser.parse_args([*files, "--disable-log-stats", *flags])
        return parsed

    async def serve() -> None:
        started = time.monotonic()
        async with build_async_engine_client(arguments(bench.requests[:1], "start")) as client:
            await module.run_batch(client, arguments(bench.requests[:WARM_UP], "warm"))
            emit(start_s=time.monotonic() - started)
            while await asyncio.to_thread(sys.stdin.readline):
                await client.reset_prefix_cache()
                args = arguments(bench.requests, "all")
                began = time.monotonic()
                await module.run_batch(client, args)
                seconds = time.monotonic() - began
                answers = [json.loads(line) for line in Path(args.output_file).read_text().splitlines()]
                failed = [a for a in answers if a.get("error") or a["response"]["status_code"] != 200]
                assert not failed, failed[0]
                tokens = sum(a["response"]["body"]["usage"]["completion_tokens"] for a in answers)
                emit(requests=len(answers), seconds=seconds, output_tokens=tokens)

    asyncio.run(serve())


if __name__ == "__main__":
    arm, run_dir, task = sys.argv[1:]
    bench = Bench(run_dir, task)
    prepare_environment(bench.profile)
    {"worker": worker, "llm_generate": llm_generate, "run_batch": run_batch}[arm](bench)
