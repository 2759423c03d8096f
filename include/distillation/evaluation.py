"""A candidate against the incumbent, on held-out merchants, with the product's own engine, validators and judge."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from include.distillation.harvest import as_listing
from include.distillation.pairs import FIELDS, held_out, read_jsonl
from include.generation.engine import Engine, Output, Request, open_engine
from include.generation.window import run_window
from include.judging.agreement import kappa
from include.judging.rubric import judge_messages, judge_values, read_answer
from include.judging.scoring import sampling_params
from include.records import JudgeVerdict, SampledText
from include.settings import EngineProfile, JudgeSettings, Settings
from include.validation.checker import Checker
from include.validation.view import Source

log = logging.getLogger(__name__)

TOLERANCE = 0.02  # a candidate may be this much worse on one measure before it is refused


def ask(engine: Engine, prompts: Sequence[Any], params: Mapping[str, Any], adapter: str | None) -> list[Output]:
    """One answer per prompt, in order, by one adapter of the engine (None: its base model)."""
    requests = (
        Request(id=str(index), messages=prompt, sampling_params=params, adapter=adapter)
        for index, prompt in enumerate(prompts)
    )
    found = {int(output.id): output for output in run_window(engine, requests)}
    return [found[index] for index in range(len(prompts))]


def judged(engine: Engine, judge: JudgeSettings, adapter: str | None, prompts: Sequence[Any]) -> list[JudgeVerdict]:
    """The judge's verdicts, with its answer schema enforced."""
    params = {name: value for name, value in sampling_params(judge).items() if name != "logprobs"}
    return [read_answer(output.text, judge).verdict for output in ask(engine, prompts, params, adapter)]


def compared(truth: Iterable[bool], said: Iterable[JudgeVerdict]) -> dict[str, float]:
    """Agreement of a judge with known labels: Cohen's kappa over the verdicts that could be read, and what lies behind."""
    pairs = list(zip(truth, said, strict=True))
    both = Counter((t, s is JudgeVerdict.PASS) for t, s in pairs if s is not JudgeVerdict.ERROR)
    rows, faulty = max(1, both.total()), both[False, False] + both[False, True]
    return {
        "kappa": kappa([[both[label, verdict] for verdict in (False, True)] for label in (False, True)]),
        "agreement": (both[True, True] + both[False, False]) / rows,
        "faults_caught": both[False, False] / max(1, faulty),
        "faithful_share": 1 - faulty / rows,
        "pass_share": (both[True, True] + both[False, True]) / rows,
        "rows": len(pairs),
        "errors": len(pairs) - both.total(),
    }


def evaluate(task: str, pairs: Path, candidate: str, settings: Settings, share: float, limit: int) -> dict[str, Any]:
    """Figures of the candidate and the incumbent (the adapter in the engine profile, or its base model), and `better`.

    A title or description model is measured by validators and judge, a judge by its agreement with the pairs' labels.
    Raises ValueError when no pair is held out, EngineStartError when the engine does not start.
    """
    rows = [row for row in read_jsonl(pairs) if held_out(str(row["group"]), share)][:limit]
    if not rows:
        raise ValueError(f"{pairs}: no held-out pair; raise held_out_share or give pairs of more merchants")
    profile = settings.engines[settings.judge.engine if task == "judge" else settings.task(task).engine]
    judge = settings.engines[settings.judge.engine]
    with_judge = task != "judge" and judge.kind == profile.kind and judge.model_path() == profile.model_path()
    adapters = [candidate, *filter(None, (profile.lora, judge.lora if with_judge else None))]
    base = profile.model_copy(update={"lora": None})
    result: dict[str, Any] = {"task": task, "rows": len(rows), "incumbent_model": profile.lora or profile.model}
    with open_engine(base, adapters=adapters) as engine:
        for name, adapter in (("candidate", candidate), ("incumbent", profile.lora)):
            if task == "judge":
                verdicts = [json.loads(row["completion"][0]["content"])["verdict"] == "pass" for row in rows]
                said = judged(engine, settings.judge, adapter, [row["prompt"] for row in rows])
                result[name] = compared(verdicts, said)
            else:
                result[name] = _writer(engine, task, rows, adapter, settings, judge if with_judge else None)
            log.info("%s: %s", name, json.dumps(result[name]))
    measures = ("kappa",) if task == "judge" else ("validator_pass_rate", "judge_pass_rate")
    result["better"] = all(
        result["candidate"][m] >= result["incumbent"][m] - TOLERANCE for m in measures if m in result["candidate"]
    )
    return result


def _writer(
    engine: Engine,
    task: str,
    rows: Sequence[dict[str, Any]],
    adapter: str | None,
    settings: Settings,
    judge: EngineProfile | None,
) -> dict[str, Any]:
    checker, enhancement = Checker.of(settings, task), settings.task(task)
    outputs = ask(engine, [row["prompt"] for row in rows], enhancement.sampling_params, adapter)
    outcomes = [
        checker.check(Source.from_json(row["source"]), output.text, output.finish_reason)
        for row, output in zip(rows, outputs, strict=True)
    ]
    figures: dict[str, Any] = {
        "validator_pass_rate": sum(outcome.ok for outcome in outcomes) / len(outcomes),
        "mean_words": sum(len(output.text.split()) for output in outputs) / len(outputs),
    }
    if judge is not None:
        prompts = []
        for row, outcome in zip(rows, outcomes, strict=True):
            listing = as_listing(row["source"])
            fields = {name: str(getattr(listing, name)) for name in (*FIELDS, "locale")}
            text = SampledText(text_id="", stratum="", weight=1.0, listings=1, output=outcome.output, **fields)
            if outcome.ok:
                prompts.append(judge_messages(judge_values(text, enhancement.output_field), settings.judge))
        verdicts = judged(engine, settings.judge, judge.lora, prompts)
        passed = sum(verdict is JudgeVerdict.PASS for verdict in verdicts)
        figures["judge_pass_rate"] = passed / len(outcomes)  # of all rows: a rejected text did not pass
    return figures
