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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from include.generation.engine import EngineDeadError, EngineStartError, Request
from include.generation.failures import explain
from include.generation.processes import child_pids, end_processes
from include.generation.prompts import rendered
from include.generation.vllm_engine import ENVIRONMENT, engine_flags
from include.settings import EngineProfile
from include.tuning.trial import Measure, quantiles, taken

WARM_UP = 8
_CLI = (sys.executable, "-m", "include.generation.vllm_cli")
_QUIET = ("--uvicorn-log-level", "warning", "--disable-uvicorn-access-log")


@contextmanager
def generate(profile: EngineProfile, requests: Sequence[Request]) -> Iterator[tuple[dict[str, Any], Measure]]:
    """Hugging Face `generate`: one static batch after the other, each until its longest answer has ended.

    Every request of a batch has its answer when the batch ends; its first token is there when the batch's is. Raises
    EngineDeadError.
    """
    import torch
    import transformers

    auto: Any = transformers
    began, failure = time.monotonic(), "generate did not start"
    device = "cuda" if torch.cuda.is_available() else "cpu"
    path, args = profile.model_path(), profile.engine_args
    dtype = args.get("dtype", "auto")
    try:
        tokenizer = auto.AutoTokenizer.from_pretrained(path, revision=profile.revision, padding_side="left")
        tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
        if args.get("load_format") == "dummy":
            config = auto.AutoConfig.from_pretrained(path)
            with torch.device(device):
                model = auto.AutoModelForCausalLM.from_config(config, dtype=config.dtype if dtype == "auto" else dtype)
        else:
            model = auto.AutoModelForCausalLM.from_pretrained(path, revision=profile.revision, dtype=dtype).to(device)
        batches = _Batches(model.eval(), tokenizer, requests)
        batches.measure({"batch_size": 1}, 1)
        described = {"engine": "transformers", "device": device, "dtype": str(model.dtype)}
        failure = "generate"
        yield {"start_s": time.monotonic() - began, "engine": described}, batches.measure
    except (RuntimeError, OSError, ValueError) as error:
        raise explain(error, EngineDeadError, prefix=failure) from error


class _Batches:
    """Static batches of a transformers model."""

    def __init__(self, model: Any, tokenizer: Any, requests: Sequence[Request]) -> None:
        self.model, self.tokenizer, self.requests = model, tokenizer, requests
        ends = model.generation_config.eos_token_id
        self.ends = {tokenizer.eos_token_id, *(ends if isinstance(ends, list) else [ends])}

    def measure(self, cell: dict[str, Any] | None, count: int) -> dict[str, Any]:
        """`padded_share`: of the tokens that went through the model, those before a shorter prompt or after an answer's end."""
        size, rows = int((cell or {})["batch_size"]), list(taken(self.requests, count))
        waits: list[float] = []
        firsts: list[float] = []
        prompt_tokens = output_tokens = computed = 0
        began = time.monotonic()
        for start in range(0, count, size):
            batch = rows[start : start + size]
            asked = time.monotonic()
            answers, lengths, first = self._answer(batch)
            waits += [time.monotonic() - asked] * len(batch)
            firsts += [first - asked] * len(batch)
            prompt_tokens += sum(lengths)
            computed += len(batch) * max(lengths) + sum(map(len, answers))
            output_tokens += sum(map(self._length, batch, answers))
        seconds = time.monotonic() - began
        return {
            "requests": count,
            "errors": 0,
            "seconds": round(seconds, 3),
            "requests_per_s": round(count / seconds, 3),
            "prompt_tokens": prompt_tokens,
            "output_tokens": output_tokens,
            "padded_share": round(1 - (prompt_tokens + output_tokens) / computed, 4),
            **quantiles("latency", waits),
            **quantiles("ttft", firsts),
        }

    def _answer(self, batch: Sequence[Request]) -> tuple[list[list[int]], list[int], float]:
        """(answers' token ids, all as long as the longest, prompts' lengths, when the first tokens were there)."""
        import torch

        texts = rendered(self.tokenizer, batch)
        inputs = self.tokenizer(texts, add_special_tokens=False, padding=True, return_tensors="pt").to(
            self.model.device
        )
        longest = max(int(request.sampling_params["max_tokens"]) for request in batch)
        times: list[float] = []

        def clock(ids: Any, _scores: Any, **_: Any) -> Any:
            if not times:
                ids[0, -1].item()  # waits for the device
                times.append(time.monotonic())
            return torch.zeros(len(ids), dtype=torch.bool, device=ids.device)

        with torch.inference_mode():
            found = self.model.generate(
                **inputs,
                do_sample=False,
                repetition_penalty=1.0,
                max_new_tokens=longest,
                min_new_tokens=longest if batch[0].sampling_params["ignore_eos"] else 0,
                pad_token_id=self.tokenizer.pad_token_id,
                stopping_criteria=[clock],
            )
        answers = found[:, inputs["input_ids"].shape[1] :].tolist()
        self.tokenizer.batch_decode(answers, skip_special_tokens=True)  # the other arms answer in text, too
        return answers, inputs["attention_mask"].sum(dim=1).tolist(), times[0]

    def _length(self, request: Request, answer: Sequence[int]) -> int:
        """Tokens up to the answer's end, which counts as vLLM counts it."""
        limit = int(request.sampling_params["max_tokens"])
        if request.sampling_params["ignore_eos"]:
            return limit
        return next((place for place, token in enumerate(answer[:limit], start=1) if token in self.ends), limit)


@contextmanager
def serve(profile: EngineProfile, requests: Sequence[Request]) -> Iterator[tuple[dict[str, Any], Measure]]:
    """`vllm serve` on a free local port, asked by `vllm bench serve` at each concurrency.

    Prompts are rendered beforehand, since that client knows no system message. Raises EngineStartError or EngineDeadError with
    the last lines of the server.
    """
    from transformers import AutoTokenizer

    began = time.monotonic()
    tokenizer = AutoTokenizer.from_pretrained(profile.model_path(), revision=profile.revision)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, **ENVIRONMENT, **profile.environment, "VLLM_SERVER_DEV_MODE": "1"}  # its cache resets
    with tempfile.TemporaryDirectory(prefix="compare-") as name:
        folder = Path(name)
        flags = ["--host", "127.0.0.1", "--port", str(port), *_QUIET, *engine_flags(profile)]
        with (folder / "server.log").open("wb") as log:
            command = [*_CLI, "serve", profile.model_path(), *flags]
            server = subprocess.Popen(command, env=environment, stdout=log, stderr=log)  # noqa: S603
        try:
            client = _Client(
                server, folder, f"http://127.0.0.1:{port}", rendered(tokenizer, requests), requests, profile
            )
            client.wait()
            started = time.monotonic() - began
            client.measure({"batch_size": WARM_UP}, WARM_UP)
            yield {"start_s": started, "engine": {"engine": "vllm serve"}}, client.measure
        finally:
            end_processes(child_pids(), grace_seconds=15.0)


class _Client:
    """The client of one server; see `serve`."""

    def __init__(
        self,
        server: subprocess.Popen[bytes],
        folder: Path,
        url: str,
        prompts: Sequence[str],
        requests: Sequence[Request],
        profile: EngineProfile,
    ) -> None:
        self.server, self.folder, self.url, self.profile = server, folder, url, profile
        self.rows = [
            {"prompt": prompt, "output_tokens": request.sampling_params["max_tokens"]}
            for prompt, request in zip(prompts, requests, strict=True)
        ]
        self.flags = ["--ignore-eos"] if requests[0].sampling_params["ignore_eos"] else []

    def wait(self) -> None:
        """Until the server is healthy. Raises EngineStartError when it has died or takes longer than the profile allows."""
        until = time.monotonic() + self.profile.start_timeout_s
        while not self._healthy():
            if self.server.poll() is not None or time.monotonic() > until:
                raise explain(RuntimeError(self._last_lines()), EngineStartError, prefix="vllm serve did not start")
            time.sleep(0.5)

    def _healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5):  # noqa: S310 - our own server
                return True
        except OSError:
            return False

    def _last_lines(self) -> str:
        return (self.folder / "server.log").read_text(encoding="utf-8", errors="replace")[-2000:].strip()

    def measure(self, cell: dict[str, Any] | None, count: int) -> dict[str, Any]:
        """`count` requests, `batch_size` of them at a time, from an empty prefix cache. Raises EngineDeadError."""
        rows = [self.rows[number % len(self.rows)] for number in range(count)]
        prompts, result = self.folder / "prompts.jsonl", self.folder / "result.json"
        prompts.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        result.unlink(missing_ok=True)
        model = self.profile.model_path()
        command = [
            *_CLI, "bench", "serve", "--backend", "openai", "--base-url", self.url, "--endpoint", "/v1/completions",
            "--model", model, "--tokenizer", model, "--dataset-name", "custom", "--dataset-path", str(prompts),
            "--custom-output-len", "-1", "--skip-chat-template", "--disable-shuffle", "--num-prompts", str(count),
            "--max-concurrency", str((cell or {})["batch_size"]), "--temperature", "0", *self.flags,
            "--extra-body", json.dumps({"add_special_tokens": False}), "--disable-tqdm",
            "--percentile-metrics", "ttft,e2el", "--metric-percentiles", "50,95",
            "--save-result", "--result-dir", str(self.folder), "--result-filename", result.name,
        ]  # fmt: skip
        reset = urllib.request.Request(f"{self.url}/reset_prefix_cache", method="POST")  # noqa: S310
        try:
            with urllib.request.urlopen(reset, timeout=60):  # noqa: S310
                pass
        except OSError as error:
            raise self._dead(str(error)) from error
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
        if self.server.poll() is not None or not result.exists():
            raise self._dead(done.stderr[-2000:])
        found = json.loads(result.read_text(encoding="utf-8"))
        return {
            "requests": count,
            "errors": found["failed"],
            "seconds": round(found["duration"], 3),
            "requests_per_s": round(found["request_throughput"], 3),
            "prompt_tokens": found["total_input_tokens"],
            "output_tokens": found["total_output_tokens"],
            **{
                f"{name}_{place}_s": round(found[f"{place}_{metric}_ms"] / 1000, 4)
                for name, metric in (("latency", "e2el"), ("ttft", "ttft"))
                for place in ("p50", "p95")
            },
        }

    def _dead(self, client: str) -> EngineDeadError:
        told = self._last_lines() if self.server.poll() is not None else client
        return explain(RuntimeError(told), EngineDeadError, prefix="vllm serve")
