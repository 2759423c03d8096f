"""Figures of a shadow run: how far the two sides' wording lies apart, and what each costs."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from include.batch.joining import Pair
from include.judging.costs import ComparisonSettings, price_per_million
from include.runs import Run

Row = dict[str, Any]
_WORD = re.compile(r"\w+")


def paired_mean(ours: Sequence[float], theirs: Sequence[float]) -> Row:
    """Means of both sides and the mean difference with its 95% interval: Student's paired t (1908); None below two pairs."""
    from scipy.stats import t

    if not ours:
        return {"ours": None, "incumbent": None, "difference": None, "ci95": None}
    differences, count = [a - b for a, b in zip(ours, theirs, strict=True)], len(ours)
    mean = statistics.fmean(differences)
    bounds: list[float] | None = None
    if count > 1:
        half = float(t.ppf(0.975, count - 1)) * statistics.stdev(differences) / math.sqrt(count)
        bounds = [mean - half, mean + half]
    return {"ours": statistics.fmean(ours), "incumbent": statistics.fmean(theirs), "difference": mean, "ci95": bounds}


def overlap(one: str, other: str) -> float:
    """Share of all distinct words, lower case, that both texts have: Jaccard (1912, "The distribution of the flora")."""
    a, b = (set(_WORD.findall(text.lower())) for text in (one, other))
    return len(a & b) / len(a | b) if a | b else 1.0


def drift(texts: Sequence[tuple[str, str]]) -> Row:
    """Lengths and overlap of (ours, incumbent's) texts, over the listings where both have one. Words are split by blanks."""
    both = [(one, other) for one, other in texts if one and other]
    ours, theirs = [one for one, _ in both], [other for _, other in both]
    return {
        "pairs": len(both),
        "words": paired_mean([len(text.split()) for text in ours], [len(text.split()) for text in theirs]),
        "characters": paired_mean([len(text) for text in ours], [len(text) for text in theirs]),
        "word_overlap": statistics.fmean(overlap(*pair) for pair in both) if both else None,
        "identical": sum(one == other for one, other in both) / len(both) if both else None,
    }


def cost_figures(
    run: Run, task: str, pairs: Sequence[Pair], accepted: Mapping[str, int], prices: ComparisonSettings
) -> Row:
    """What both sides cost for the listings of the sample, in the currency of `tuning.yaml`; None where a price is unknown.

    Ours are the busy seconds of the run's engines, shared evenly over their requests, times the GPUs of an engine: engine
    starts and idle time come on top. An accepted listing is one that the validators let pass.
    """
    settings = run.spec.settings
    manifests = [run.store.read_json(run.manifest(task, "generate", b)) or {} for b in run.own_bins(task)]
    requests, busy = (sum(float(m.get(name) or 0) for m in manifests) for name in ("requests", "busy_s"))
    gpus = settings.engines[settings.task(task).engine].devices
    rate = requests / busy if busy and requests else None
    asked = [pair.ours for pair in pairs if pair.ours is not None]
    sent = sum(answer.attempts for answer in asked)
    gpu, million = prices.gpu_hour_price or None, prices.hosted_price_per_million.get(task) or None
    ours = price_per_million(gpu, gpus, rate) / 1e6 * sent / len(asked) if gpu and rate and asked else None
    theirs = million / 1e6 if million else None

    def side(name: str, price: float | None, answers: Sequence[Any]) -> Row:
        total = price * len(answers) if price is not None else None
        return {
            "listings": len(answers),
            "prompt_tokens": sum(answer.prompt_tokens for answer in answers),
            "output_tokens": sum(answer.output_tokens for answer in answers),
            "price_per_million": price * 1e6 if price is not None else None,
            "accepted": accepted[name],
            "price_per_million_accepted": total / accepted[name] * 1e6
            if total is not None and accepted[name]
            else None,
        }

    daily = gpu * gpus * 24 if gpu else None
    return {
        "ours": side("ours", ours, asked) | {"gpu_seconds": sent * gpus / rate if rate else None},
        "incumbent": side("incumbent", theirs, [pair.theirs for pair in pairs]),
        "gpus": gpus,
        "gpu_price_per_day": daily,
        "break_even_listings_per_day": daily / theirs if daily and theirs else None,
        "listings_per_day_of_an_engine": rate * 86_400 * len(asked) / sent if rate and sent else None,
        "gpu_hour_price": gpu,
        "gpu_hour_price_source": prices.gpu_hour_price_source,
        "hosted_price_per_million": million,
        "hosted_price_source": prices.hosted_price_source,
    }
