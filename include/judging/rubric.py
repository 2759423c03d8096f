"""The judge's rubric: prompt, answer schema, and the strict reading of an answer.

An answer counts only if it is one JSON object that matches the schema exactly; everything else is a judge error and never
a pass. The verdict is recomputed from the lists of claims, so that a judge cannot list a fault and still say "pass".
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NoReturn

import jsonschema

from include.extraction.cleaning import plain_text
from include.generation.prompts import messages, neutralise
from include.records import JudgeVerdict, SampledText
from include.settings import JudgeSettings, digest, template_version

KINDS = ("unsupported", "contradictory", "omitted")
_FENCE = re.compile(r"\A```(?:json)?\s*\n?(.*?)\s*```\Z", re.DOTALL)
_WORD = re.compile(r"\w")


def answer_schema(max_claims: int, max_claim_chars: int) -> dict[str, Any]:
    """JSON schema of an answer, in the order in which the judge must write: the claims first, the verdict from them."""
    claims = {
        "type": "array",
        "maxItems": max_claims,
        "items": {"type": "string", "minLength": 1, "maxLength": max_claim_chars},
    }
    return {
        "type": "object",
        "properties": {**dict.fromkeys(KINDS, claims), "verdict": {"type": "string", "enum": ["pass", "fail"]}},
        "required": [*KINDS, "verdict"],
        "additionalProperties": False,
    }


def rubric_version(judge: JudgeSettings) -> str:
    """Version of what the judge is asked and how its answer is bounded; a calibration holds for one version."""
    return digest([template_version(judge.template), answer_schema(judge.max_claims, judge.max_claim_chars)], 12)


@dataclass(frozen=True, slots=True)
class Answer:
    """One judge answer after strict reading. `stated` is the model's own verdict, `error` why there is none."""

    verdict: JudgeVerdict
    unsupported: tuple[str, ...] = ()
    contradictory: tuple[str, ...] = ()
    omitted: tuple[str, ...] = ()
    stated: str = ""
    error: str = ""


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice")
    return found


@cache
def _validator(max_claims: int, max_claim_chars: int) -> jsonschema.protocols.Validator:
    return jsonschema.Draft202012Validator(answer_schema(max_claims, max_claim_chars))


def load_strict(text: str) -> Any:
    """The value of a text that is one JSON value, bare or in a code fence; without NaN, repeats or anything around it.

    Raises ValueError.
    """
    body = text.strip()
    if fence := _FENCE.match(body):
        body = fence.group(1)
    try:
        return json.loads(body, parse_constant=_refuse_constant, object_pairs_hook=_unique)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_answer(text: str, judge: JudgeSettings) -> Answer:
    """Reads one answer strictly: bare or fenced JSON, exact keys, exact verdict words, bounded lists, no NaN.

    Never raises; what cannot be read is JudgeVerdict.ERROR with the reason.
    """
    try:
        value = load_strict(text)
    except ValueError as error:
        return Answer(JudgeVerdict.ERROR, error=f"not JSON: {error}"[:200])
    fault = jsonschema.exceptions.best_match(_validator(judge.max_claims, judge.max_claim_chars).iter_errors(value))
    if fault is not None:
        return Answer(JudgeVerdict.ERROR, error=f"not the schema: {fault.message}"[:200])
    claims = {kind: tuple(claim.strip() for claim in value[kind]) for kind in KINDS}
    if not all(claim for kind in KINDS for claim in claims[kind]):
        return Answer(JudgeVerdict.ERROR, error="a claim is blank")
    faulty = bool(claims["unsupported"] or claims["contradictory"])
    return Answer(
        JudgeVerdict.FAIL if faulty else JudgeVerdict.PASS,
        claims["unsupported"],
        claims["contradictory"],
        claims["omitted"],
        stated=value["verdict"],
    )


def not_evaluable(values: Mapping[str, str]) -> bool:
    """Whether there is nothing to check (a copy without a word) or nothing to check it against (an empty source)."""
    source = any(_WORD.search(values[name]) for name in ("title", "description", "brand", "attributes"))
    return not source or not _WORD.search(values["copy"])


def judge_values(text: SampledText, kind: str) -> dict[str, str]:
    """Template values of one text, plain as the writer saw it: merchant text and copy cannot close tags or forge a turn."""
    try:
        pairs = dict(json.loads(text.attributes or "{}"))
    except ValueError:
        pairs = {"attributes": text.attributes}
    names = ("title", "description", "brand", "category")
    fields = {name: neutralise(plain_text(str(getattr(text, name)))) for name in names}
    return fields | {
        "attributes": neutralise(plain_text("; ".join(f"{key}: {value}" for key, value in pairs.items()))),
        "locale": re.sub(r"[^\w.-]", " ", text.locale),
        "kind": kind,
        "copy": neutralise(text.output),
    }


def judge_messages(values: Mapping[str, str], judge: JudgeSettings) -> list[dict[str, str]]:
    """The judge's prompt: the rubric as a stable prefix, then one listing and its copy."""
    return messages(judge.template, **values)
