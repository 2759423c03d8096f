"""Offline vLLM behind the engine interface. This module is the only importer of vLLM; it runs on vLLM 0.25 to 0.32.

`LLMEngine.add_request` and `step` are used, not `LLM.generate`: they give answers as they finish and let the window be
topped up between steps, while the engine core works on in its own process.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from include.generation import console, cpu_lora
from include.generation.engine import (
    EngineDeadError,
    EngineMetrics,
    EngineStartError,
    Output,
    Request,
    TokenLogprob,
)
from include.generation.failures import explain
from include.generation.leases import is_cpu_build, visible_gpus
from include.generation.merging import merged_model
from include.generation.processes import child_pids, deadline, end_processes
from include.generation.prompts import rendered
from include.settings import EngineProfile, resolve_path

log = logging.getLogger(__name__)

SHUTDOWN_SECONDS = 15.0
METRICS_EVERY_SECONDS = 5.0
_COUNTERS = {
    "vllm:prefix_cache_queries": "prefix_cache_queries",
    "vllm:prefix_cache_hits": "prefix_cache_hits",
    "vllm:num_preemptions": "preemptions",
    "vllm:spec_decode_num_drafts": "drafts",
    "vllm:spec_decode_num_accepted_tokens": "accepted_draft_tokens",
}
# Ours before the profile's: one process group (spawn, no CUDA touched before a fork), no home calls, no progress bars.
ENVIRONMENT = {
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "PYTHONWARNINGS": "ignore",
    "TQDM_DISABLE": "1",
    "TOKENIZERS_PARALLELISM": "true",  # our processes are spawned, never forked
}


def engine_arguments(profile: EngineProfile) -> dict[str, Any]:
    """What the profile's engine is started with, by vLLM's names."""
    return {
        "trust_remote_code": False,
        "load_format": "safetensors",
        "use_tqdm_on_load": False,
        **profile.engine_args,
        "model": profile.model_path(),
        "revision": profile.revision,
    }


def engine_flags(profile: EngineProfile) -> list[str]:
    """`engine_arguments` for vLLM's command lines, all but the model, which they take in several ways."""
    flags = []
    for name, value in engine_arguments(profile).items():
        if name == "model":
            continue
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            if value or name != "disable_log_stats":  # this one has no opposite
                flags.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, list | tuple):
            flags += [f"--{flag}", *map(str, value)]
        elif value is not None:
            flags += [f"--{flag}", json.dumps(value) if isinstance(value, dict) else str(value)]
    return flags


def lora_rank(adapter: str) -> int:
    """Rank of a PEFT adapter folder. Raises EngineStartError when it is not one."""
    path = Path(adapter) / "adapter_config.json"
    try:
        return int(json.loads(path.read_text())["r"])
    except (OSError, ValueError, KeyError) as error:
        raise EngineStartError(
            f"{adapter} is no LoRA adapter folder ({error}): set `lora` of the engine profile to a folder with "
            "adapter_config.json and adapter_model.safetensors",
            kind="model_not_found",
            retryable=False,
        ) from error


# What vLLM must read an answer's text for as it grows. Without these it is decoded once, at the end: token by token costs
# the client a third more of its own time, and a GPU waits for a slow client.
_READ_AS_TEXT = {
    "stop",
    "logprobs",
    "include_stop_str_in_output",
    "skip_special_tokens",
    "spaces_between_special_tokens",
}


@cache
def json_grammar(schema: str) -> str:
    """EBNF of a JSON schema, spaced as `json.dumps` writes it.

    vLLM's own choices are worse: with free whitespace a model can loop on newlines until max_tokens, and with none at all
    it must write a layout that models rarely saw. Raises RuntimeError for a schema that xgrammar cannot read.
    """
    import xgrammar

    return str(xgrammar.Grammar.from_json_schema(schema, any_whitespace=False, separators=(", ", ": ")))


class VllmEngine:
    """One vLLM engine of one profile, with its LoRA adapters. See include.generation.engine.Engine."""

    _limits: Path | None = None  # file of an adjustable scheduler's limits

    def __init__(self, profile: EngineProfile, *, adapters: Sequence[str] = (), adjustable: bool = False) -> None:
        """Starts the engine core, within `profile.start_timeout_s`. Raises EngineStartError with vLLM's own reason.

        With `adjustable`, `limit` may lower the scheduler's limits later.
        """
        self.profile = profile
        if adjustable:
            self._limits = Path(tempfile.mkstemp(prefix="engine-limits-")[1])
        self._engine: Any = None
        self._others = child_pids()
        self._merged: str | None = None
        self._adapters = self._adapter_requests_needed(profile, adapters)
        os.environ |= {**ENVIRONMENT, **{k: v for k, v in os.environ.items() if k in ENVIRONMENT}}
        os.environ |= profile.environment
        warnings.filterwarnings("ignore", module=r"vllm\.")  # of its own dependencies' deprecations
        started = time.monotonic()
        console.forget()
        try:
            with deadline(profile.start_timeout_s, "engine start"):
                self._start()
        except BaseException as error:
            self.shutdown()
            if isinstance(error, EngineStartError) or not isinstance(error, Exception):
                raise
            raise explain(error, EngineStartError, prefix=f"engine {profile.name!r} did not start") from error
        self._metrics = EngineMetrics(start_seconds=time.monotonic() - started, description=self._describe())
        self._baseline: dict[str, int] = {}
        self._last_sample = 0.0
        self._sample_metrics()
        self._baseline = {name: getattr(self._metrics, name) or 0 for name in _COUNTERS.values()}
        log.info("engine %s started in %.1f s", profile.name, self._metrics.start_seconds)

    @staticmethod
    def _adapter_requests_needed(profile: EngineProfile, adapters: Sequence[str]) -> dict[str, int]:
        named = [*([profile.lora] if profile.lora else []), *adapters]
        return {path: number for number, path in enumerate(dict.fromkeys(map(resolve_path, named)), start=1)}

    def _start(self) -> None:
        import vllm
        from vllm import EngineArgs, LLMEngine
        from vllm.usage.usage_lib import UsageContext

        arguments = engine_arguments(self.profile)
        if self.profile.merge_lora and self.profile.lora and len(self._adapters) == 1:  # the base answers nobody
            (adapter,) = self._adapters
            arguments["model"] = merged_model(arguments["model"], adapter, arguments.get("dtype", "bfloat16"))
            self._merged, self._adapters = adapter, {}
        if self._adapters:
            rank = max(lora_rank(path) for path in self._adapters)
            ranks = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # vLLM takes these only
            arguments = {
                "enable_lora": True,
                "max_loras": len(self._adapters),
                "max_lora_rank": next(r for r in ranks if r >= rank),
                **arguments,
            }
            if is_cpu_build():  # vLLM's own operations apply an adapter to requests that have none
                cpu_lora.install()
        # The context of `LLM`, whose defaults are made for throughput.
        config = EngineArgs(**arguments).create_engine_config(UsageContext.LLM_CLASS)
        if self._limits is not None:
            from include.generation import adjustable

            os.environ[adjustable.LIMITS_VARIABLE] = str(self._limits)
            scheduler = config.scheduler_config
            scheduler.scheduler_cls = (
                adjustable.AdjustableAsyncScheduler if scheduler.async_scheduling else adjustable.AdjustableScheduler
            )
        self._engine = LLMEngine.from_vllm_config(config, usage_context=UsageContext.LLM_CLASS)
        self._version = vllm.__version__
        self._tokenizer = self._engine.get_tokenizer()
        self._max_model_len = int(self._engine.model_config.max_model_len)

    def _describe(self) -> dict[str, Any]:
        config, scheduler = self._engine.model_config, self._engine.vllm_config.scheduler_config
        return {
            "engine": "vllm",
            "version": self._version,
            "model": self.profile.model,
            "device": ", ".join(gpu.name for gpu in visible_gpus()) or "cpu",
            "dtype": str(config.dtype),
            "quantization": config.quantization,
            "max_model_len": self._max_model_len,
            "max_num_seqs": scheduler.max_num_seqs,
            "max_num_batched_tokens": scheduler.max_num_batched_tokens,
            "adapters": [Path(path).name for path in self._adapters],
        }

    def encode(self, requests: Sequence[Request]) -> list[list[int]]:
        texts = rendered(self._tokenizer, requests)
        return list(self._tokenizer(texts, add_special_tokens=False)["input_ids"]) if texts else []

    def submit(self, request: Request, tokens: list[int] | None = None) -> Output | None:
        from vllm import TokensPrompt

        sampling = {**self.profile.sampling_params, **request.sampling_params}
        tokens = self.encode([request])[0] if tokens is None else tokens
        limit = self._max_model_len - int(sampling.get("max_tokens", 1))
        if len(tokens) > limit:
            return Output(
                id=request.id,
                prompt_tokens=len(tokens),
                error="input_too_long",
                detail=f"{len(tokens)} prompt tokens, {limit} fit beside the answer",
                token_limit=limit,
                row_at_fault=True,
            )
        try:
            self._engine.add_request(
                request.id,
                TokensPrompt(prompt_token_ids=tokens),
                self._sampling_params(sampling),
                lora_request=self._lora(request.adapter),
            )
        except Exception as error:
            if not isinstance(error, _refusals()):
                raise explain(error, EngineDeadError, prefix=f"engine {self.profile.name!r} died") from error
            return Output(
                id=request.id,
                prompt_tokens=len(tokens),
                error="request_rejected",
                detail=str(error).splitlines()[0][:300],
                row_at_fault=True,
            )
        return None

    @staticmethod
    def _sampling_params(values: Mapping[str, Any]) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

        values = dict(values)
        schema = values.pop("json_schema", None)
        if schema is not None:
            values["structured_outputs"] = StructuredOutputsParams(grammar=json_grammar(json.dumps(schema)))
        if not values.keys() & _READ_AS_TEXT:
            values["detokenize"] = False
        return SamplingParams(**values, output_kind=RequestOutputKind.FINAL_ONLY)

    def _lora(self, adapter: str | None) -> Any:
        path = resolve_path(adapter) if adapter else next(iter(self._adapters), None) if self.profile.lora else None
        if path is None or path == self._merged:
            return None
        from vllm.lora.request import LoRARequest

        return LoRARequest(Path(path).name, self._adapters[path], path)

    def finished(self) -> list[Output]:
        try:
            with deadline(self.profile.stall_timeout_s, "engine step"):
                outputs = self._engine.step()
        except Exception as error:
            raise explain(error, EngineDeadError, prefix=f"engine {self.profile.name!r} died") from error
        if time.monotonic() - self._last_sample > METRICS_EVERY_SECONDS:
            self._sample_metrics()
        return [self._output(found) for found in outputs if found.finished]

    def _output(self, found: Any) -> Output:
        completion = found.outputs[0]
        failed = completion.finish_reason in ("abort", "error")
        return Output(
            id=found.request_id,
            text=completion.text or self._text(completion),
            finish_reason=completion.finish_reason or "",
            prompt_tokens=len(found.prompt_token_ids or ()),
            output_tokens=len(completion.token_ids),
            cached_tokens=found.num_cached_tokens or 0,
            logprobs=tuple(map(_token, completion.token_ids, completion.logprobs)) if completion.logprobs else (),
            error="engine_failed" if failed else "",
            detail=f"finish_reason {completion.finish_reason}" if failed else "",
        )

    def _text(self, completion: Any) -> str:
        """An answer's text without what ended it, a token or a part of a letter; vLLM leaves that out, too."""
        if isinstance(completion.stop_reason, str):  # a stop string at once: vLLM read the text, and it is empty
            return ""
        ids = completion.token_ids[:-1] if completion.finish_reason == "stop" else completion.token_ids
        text = str(self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))
        return text.rstrip("\ufffd") if completion.finish_reason == "length" else text

    def _sample_metrics(self) -> None:
        """Never raises: a run without metrics is still a run."""
        self._last_sample = time.monotonic()
        values = self._metrics
        try:
            found = {metric.name: metric.value for metric in self._engine.get_metrics() if hasattr(metric, "value")}
            for name, field in _COUNTERS.items():
                if name in found:
                    setattr(values, field, int(found[name]) - self._baseline.get(field, 0))
            if (use := found.get("vllm:kv_cache_usage_perc")) is not None:
                values.kv_cache_use_peak = max(values.kv_cache_use_peak or 0.0, float(use))
            if gpus := visible_gpus():
                values.peak_gpu_memory_mb = max(values.peak_gpu_memory_mb or 0.0, *(gpu.used_mb for gpu in gpus))
        except Exception as error:
            log.debug("metrics unavailable: %s", error)

    def limit(self, max_num_seqs: int | None, max_num_batched_tokens: int | None) -> None:
        if self._limits is not None:
            values = {"max_num_seqs": max_num_seqs, "max_num_batched_tokens": max_num_batched_tokens}
            self._limits.write_text(json.dumps(values), encoding="utf-8")
        self._engine.reset_prefix_cache()

    def trace(self, on: bool) -> None:
        (self._engine.start_profile if on else self._engine.stop_profile)()

    def metrics(self) -> EngineMetrics:
        self._sample_metrics()
        return self._metrics

    def pids(self) -> set[int]:
        """The engine's own processes."""
        return child_pids() - self._others

    def shutdown(self) -> None:
        engine, self._engine = self._engine, None
        pids = self.pids()
        if self._limits is not None:
            self._limits.unlink(missing_ok=True)
        if engine is not None:
            try:
                with deadline(SHUTDOWN_SECONDS, "engine shutdown"):
                    engine.engine_core.shutdown(timeout=SHUTDOWN_SECONDS / 2)
            except Exception as error:
                log.warning("engine shutdown: %s", error)
        end_processes(pids, grace_seconds=2.0)


def _refusals() -> tuple[type[Exception], ...]:
    """What vLLM raises for one request that it does not take, while the engine lives on. VLLMClientError is newer."""
    from vllm import exceptions

    return ValueError, TypeError, getattr(exceptions, "VLLMClientError", ValueError)


def _token(token_id: int, place: Mapping[int, Any]) -> TokenLogprob:
    chosen = place[token_id]
    top = {found.decoded_token or "": found.logprob for found in place.values()}
    return TokenLogprob(chosen.decoded_token or "", chosen.logprob, top)
