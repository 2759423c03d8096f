"""What the nightly worker is compared with, on the same model and prompts: static batches, and a server under load."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any, cast

from include.generation import console
from include.generation.engine import EngineDeadError, Request
from include.generation.failures import explain
from include.generation.processes import child_pids, end_processes
from include.generation.prompts import rendered
from include.generation.vllm_engine import ENVIRONMENT, engine_flags
from include.settings import EngineProfile
from include.tuning.trial import Measure, quantiles, taken

WARM_UP = 8
MOST_SECONDS = 3600.0  # of one measurement of a server: one that hangs still says that it is healthy
_CLI = (sys.executable, "-m", "include.generation.vllm_cli")


@contextmanager
def generate(profile: EngineProfile, requests: Sequence[Request]) -> Iterator[tuple[dict[str, Any], Measure]]:
    """Hugging Face `generate`: one static batch after the other. Raises EngineDeadError."""
    import torch
    import transformers

    began, auto = time.monotonic(), cast("Any", transformers)
    path, dtype = profile.model_path(), profile.engine_args.get("dtype", "auto")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        tokenizer = auto.AutoTokenizer.from_pretrained(path, revision=profile.revision, padding_side="left")
        tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
        if profile.engine_args.get("load_format") == "dummy":
            config = auto.AutoConfig.from_pretrained(path)
            with torch.device(device):
                model = auto.AutoModelForCausalLM.from_config(config, dtype=config.dtype if dtype == "auto" else dtype)
        else:
            model = auto.AutoModelForCausalLM.from_pretrained(path, revision=profile.revision, dtype=dtype).to(device)
        answer = partial(_batches, model.eval(), tokenizer, requests)
        answer({"batch_size": 1}, 1)
        yield {"start_s": time.monotonic() - began, "engine": {"dtype": str(model.dtype)}}, answer
    except (RuntimeError, OSError, ValueError) as error:
        raise explain(error, EngineDeadError, prefix="generate") from error


def _batches(
    model: Any, tokenizer: Any, requests: Sequence[Request], cell: dict[str, Any], count: int
) -> dict[str, Any]:
    """Every request of a batch has its answer when the longest has ended, and its first token when the batch has.

    `padded_share` is of the tokens that went through the model: those before a shorter prompt, or after an answer's end.
    """
    import torch

    ends = model.generation_config.eos_token_id
    ends = ends if isinstance(ends, list) else [ends]
    rows, size = list(taken(requests, count)), cell["batch_size"]
    waits, firsts, useful, computed, written = list[float](), list[float](), 0, 0, 0
    began = time.monotonic()
    for batch in (rows[start : start + size] for start in range(0, count, size)):
        asked, times = time.monotonic(), list[float]()

        def clock(ids: Any, *_: Any, times: list[float] = times, **__: Any) -> Any:
            if not times:
                ids[0, -1].item()  # waits for the device
                times.append(time.monotonic())
            return torch.zeros(len(ids), dtype=torch.bool, device=ids.device)

        texts = rendered(tokenizer, batch)
        inputs = tokenizer(texts, add_special_tokens=False, padding=True, return_tensors="pt").to(model.device)
        limits = [request.sampling_params["max_tokens"] for request in batch]
        fixed = batch[0].sampling_params["ignore_eos"]
        with torch.inference_mode():
            found = model.generate(
                **inputs, do_sample=False, repetition_penalty=1.0, pad_token_id=tokenizer.pad_token_id,
                max_new_tokens=max(limits), min_new_tokens=max(limits) if fixed else 0, stopping_criteria=[clock],
            )  # fmt: skip
        answers = found[:, inputs["input_ids"].shape[1] :].tolist()
        tokenizer.batch_decode(answers, skip_special_tokens=True)  # the other arms answer in text, too
        waits += [time.monotonic() - asked] * len(batch)
        firsts += [times[0] - asked] * len(batch)
        for answer, limit in zip(answers, limits, strict=True):  # an end counts as a token, as vLLM counts it
            stop = None if fixed else next((n for n, token in enumerate(answer[:limit], 1) if token in ends), None)
            written += stop or limit
        useful += int(inputs["attention_mask"].sum())
        computed += found.numel()
    seconds = time.monotonic() - began
    return {
        "errors": 0,
        "seconds": seconds,
        "requests_per_s": count / seconds,
        "output_tokens": written,
        "padded_share": 1 - (useful + written) / computed,
        **quantiles("latency", waits),
        **quantiles("ttft", firsts),
    }


@contextmanager
def serve(profile: EngineProfile, requests: Sequence[Request]) -> Iterator[tuple[dict[str, Any], Measure]]:
    """`vllm serve` on a free local port, asked by `vllm bench serve`. Raises EngineDeadError with what either said last."""
    from transformers import AutoTokenizer

    began, model = time.monotonic(), profile.model_path()
    tokenizer = AutoTokenizer.from_pretrained(model, revision=profile.revision)
    texts = rendered(tokenizer, requests)
    lengths = [request.sampling_params["max_tokens"] for request in requests]
    prompts = [{"prompt": text, "output_tokens": most} for text, most in zip(texts, lengths, strict=True)]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    flags = ["--host", "127.0.0.1", "--port", str(port), "--uvicorn-log-level", "warning", *engine_flags(profile)]
    environment = {**ENVIRONMENT, **os.environ, **profile.environment, "VLLM_SERVER_DEV_MODE": "1"}  # its cache resets
    with console.captured_console(), tempfile.TemporaryDirectory() as folder:
        others = child_pids()
        tokenizer.save_pretrained(Path(folder) / "tokenizer")  # the client would load an id's newest revision
        server = subprocess.Popen([*_CLI, "serve", model, *flags], env=environment)  # noqa: S603
        ask = partial(_ask, f"http://127.0.0.1:{port}", Path(folder), model, prompts, requests[0].sampling_params)
        try:
            until = time.monotonic() + profile.start_timeout_s
            while not _healthy(f"http://127.0.0.1:{port}/health"):
                if server.poll() is not None or time.monotonic() > until:
                    raise RuntimeError(f"no answer within {time.monotonic() - began:.0f} s")
                time.sleep(0.5)
            started = time.monotonic() - began
            ask({"batch_size": WARM_UP}, WARM_UP)
            yield {"start_s": started, "engine": {}}, ask
        except (RuntimeError, OSError, subprocess.SubprocessError) as error:
            told = console.last_error() or " ".join(console.last_lines())[-2000:]
            raise explain(RuntimeError(f"{error}; {told}"), EngineDeadError, prefix="vllm serve") from error
        finally:
            end_processes(child_pids() - others, grace_seconds=15.0)


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):  # noqa: S310 - our own server
            return True
    except OSError:
        return False


def _ask(
    url: str,
    folder: Path,
    model: str,
    prompts: Sequence[dict[str, Any]],
    sampling: Mapping[str, Any],
    cell: dict[str, Any],
    count: int,
) -> dict[str, Any]:
    """`count` prompts from an empty prefix cache, rendered beforehand: this client knows no system message."""
    path, result = folder / "prompts.jsonl", folder / "result.json"
    path.write_text("".join(json.dumps(row) + "\n" for row in islice(cycle(prompts), count)), encoding="utf-8")
    reset = urllib.request.Request(f"{url}/reset_prefix_cache", method="POST")  # noqa: S310 - our own server
    with urllib.request.urlopen(reset, timeout=60) as reply:  # noqa: S310
        if not json.loads(reply.read() or b"{}").get("success", True):
            raise RuntimeError("the prefix cache is still in use")
    command = [
        *_CLI, "bench", "serve", "--backend", "openai", "--base-url", url, "--endpoint", "/v1/completions", "--disable-tqdm",
        "--model", model, "--tokenizer", str(folder / "tokenizer"), "--dataset-name", "custom", "--dataset-path", str(path), "--skip-chat-template",
        "--custom-output-len", "-1", "--disable-shuffle", "--num-prompts", str(count), "--max-concurrency",
        str(cell["batch_size"]), "--temperature", "0", "--extra-body", json.dumps({"add_special_tokens": False}),
        "--percentile-metrics", "ttft,e2el", "--metric-percentiles", "50,95", "--save-result", "--result-dir", str(folder),
        "--result-filename", result.name, *(["--ignore-eos"] if sampling["ignore_eos"] else []),
    ]  # fmt: skip
    subprocess.run(command, check=True, timeout=MOST_SECONDS)  # noqa: S603
    found = json.loads(result.read_text(encoding="utf-8"))
    result.unlink()
    kinds = [
        (name, metric, place) for name, metric in (("latency", "e2el"), ("ttft", "ttft")) for place in ("p50", "p95")
    ]
    return {
        "errors": found["failed"],
        "seconds": found["duration"],
        "requests_per_s": found["request_throughput"],
        "output_tokens": found["total_output_tokens"],
        **{f"{name}_{place}_s": found[f"{place}_{metric}_ms"] / 1000 for name, metric, place in kinds},
    }
