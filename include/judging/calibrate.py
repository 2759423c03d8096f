"""Calibrating the configured judge on a file of labelled pairs: answers, fit, report and plots."""

from __future__ import annotations

import json
import logging
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from include.judging.calibration import Calibration
from include.judging.fitting import fit, flips, judged_rows, stored_verdicts
from include.judging.labels import LabelledPair, LabelsError, read_labels, reweighted
from include.judging.plots import calibration_plot
from include.judging.rubric import rubric_version
from include.judging.sampling import draw_key
from include.judging.scoring import OpenJudge, judge_fingerprint, judge_parts, open_judge
from include.partitions import Store
from include.records import JudgeScore, JudgeVerdict
from include.settings import Settings

log = logging.getLogger(__name__)

FLIPPED_PAIRS = 100
_REVERSED = "#reversed"
_SENTENCE = re.compile(r"(?<=[.!?])\s+")


def reversed_source(values: Mapping[str, str]) -> dict[str, str]:
    """The same facts in another order: lines (or sentences) and attributes last to first."""
    lines = values["description"].splitlines()
    parts, glue = (lines, "\n") if len(lines) > 1 else (_SENTENCE.split(values["description"]), " ")
    attributes = "; ".join(reversed(values["attributes"].split("; ")))
    return {**values, "description": glue.join(reversed(parts)), "attributes": attributes}


def answers(
    pairs: Sequence[LabelledPair], store: Store, settings: Settings, opener: OpenJudge
) -> tuple[dict[str, JudgeScore], dict[str, JudgeScore], dict[str, Any]]:
    """The judge's answers by pair id: as given, with reversed sources for a seeded subset, and its speed.

    Answers are kept in `store`, so that a second calibration of the same judge asks for new pairs only.
    """
    texts = {pair.id: pair.values() for pair in pairs}
    ranked = sorted(texts, key=lambda key: draw_key("flips", key))
    texts |= {key + _REVERSED: reversed_source(texts[key]) for key in ranked[:FLIPPED_PAIRS]}

    def rows_of(key: str) -> list[JudgeScore]:
        return [JudgeScore(text_id=key, stratum="", weight=1.0, verdict=JudgeVerdict.ERROR)]

    tally, session = judge_parts(store, "answers", texts, rows_of, settings, judge_fingerprint(settings), opener)
    found = {row.text_id: row for row in store.read_rows("answers", JudgeScore) if row.text_id in texts}
    plain = {key: row for key, row in found.items() if not key.endswith(_REVERSED)}
    other = {key.removesuffix(_REVERSED): row for key, row in found.items() if key.endswith(_REVERSED)}
    speed = {"asked": tally["asked"], "retried": tally["retried"], "pairs_per_s": session.get("requests_per_s")}
    return plain, other, speed


def calibrate(
    labels: str,
    out: str,
    settings: Settings,
    *,
    stored_judge: str | None = None,
    production: Mapping[str, float] | None = None,
    limit: int | None = None,
    opener: OpenJudge = open_judge,
) -> Calibration:
    """Measures a judge against labelled pairs and writes the calibration to `out`, with `.md` and `.png` beside it.

    The judge is the configured one, or, with `stored_judge`, one whose labels are stored with the pairs. `production`
    gives the share of each cell `<locale>/<pass|fail>` of the judged sample, to weight the pairs by. Raises LabelsError
    for unusable labels, and EngineStartError when the judge does not start.
    """
    pairs, problems = read_labels(labels)
    for problem in problems[:20]:
        log.warning("%s: %s; the row is left out", labels, problem)
    if limit is not None:
        pairs = sorted(pairs, key=lambda pair: draw_key("limit", pair.id))[:limit]
    extra: dict[str, Any] = {"rows_left_out": len(problems)}
    if stored_judge is not None:
        scores = stored_verdicts(pairs, stored_judge)
        if not scores:
            known = sorted({name for pair in pairs for name in pair.judges})
            raise LabelsError(f"{labels} holds no labels of judge {stored_judge!r}; there are {known}")
        pairs = [pair for pair in pairs if pair.id in scores]
        model, rubric = stored_judge, "stored"
    else:
        store, stem = _place(out)
        scores, reordered, speed = answers(pairs, store.child(f"{stem}.answers"), settings, opener)
        extra |= {"speed": speed, "flips": flips(pairs, scores, reordered)}
        model, rubric = settings.engines[settings.judge.engine].lineage, rubric_version(settings.judge)
    if production is not None:
        pairs, extra["uncovered_cells"] = _to_production(pairs, scores, production)
    found = fit(pairs, scores, settings, judge_model=model, rubric=rubric, extra=extra)
    _write(found, pairs, scores, out)
    return found


def production_cell(locale: str, verdict: JudgeVerdict) -> str:
    """The cell of the production mix that a judged text belongs to."""
    return f"{locale}/{verdict.value}"


def _to_production(
    pairs: Sequence[LabelledPair], scores: Mapping[str, JudgeScore], production: Mapping[str, float]
) -> tuple[list[LabelledPair], list[str]]:
    """Weights pairs to the mix by locale and verdict, or by verdict alone when some pair has no locale."""
    by_locale = all(pair.locale for pair in pairs)
    mix: defaultdict[str, float] = defaultdict(float)
    for cell, share in production.items():
        locale, _, verdict = cell.rpartition("/")
        mix[production_cell(locale if by_locale else "", JudgeVerdict(verdict))] += share
    judged = [pair for pair in pairs if pair.id in scores]
    return reweighted(
        judged, lambda pair: production_cell(pair.locale if by_locale else "", scores[pair.id].verdict), mix
    )


def _place(out: str) -> tuple[Store, str]:
    folder, _, name = out.rpartition("/")
    return Store(folder or "."), name.removesuffix(".json")


def _write(found: Calibration, pairs: Sequence[LabelledPair], scores: Mapping[str, JudgeScore], out: str) -> None:
    store, stem = _place(out)
    store.write_bytes(f"{stem}.json", (found.model_dump_json(indent=2) + "\n").encode())
    store.write_bytes(f"{stem}.md", report_text(found).encode())
    store.write_bytes(f"{stem}.png", calibration_plot(judged_rows(pairs, scores), found.threshold, found.report))


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def _with_interval(report: Mapping[str, Any], name: str, form: str = ".1%") -> str:
    interval = report[f"{name}_ci95"]
    value = "–" if report[name] is None else f"{report[name]:{form}}"
    return value + (f" ({interval[0]:{form}} to {interval[1]:{form}})" if interval else "")


def report_text(found: Calibration) -> str:
    """The calibration for people, as Markdown."""
    report = found.report
    lines = [
        f"# Calibration {found.version} of judge {found.judge_model}",
        "",
        f"{report['judged']} of {report['pairs']} labelled pairs from {report['documents']} documents; "
        f"judge answers: {json.dumps(report['verdicts'])}. Threshold on the score: {found.threshold:.3f}.",
        "",
        "| figure | value (95% interval) |",
        "|---|---|",
        *(f"| {name} | {_with_interval(report, name)} |" for name in ("agreement", "sensitivity", "specificity")),
        f"| Cohen's kappa | {_with_interval(report, 'kappa', '.3f')} |",
        f"| pass rate by people / judge | {_percent(report['human_pass_rate'])} / {_percent(report['judge_pass_rate'])} |",
        f"| verdicts that flip when the source is reordered | {_percent((report.get('flips') or {}).get('share'))} |",
        f"| length against judge's leniency (Spearman) | {report['length_bias']['spearman'] or 0:.3f} |",
        f"| two people agree | {_percent(report['labellers']['agreement'])} of {report['labellers']['pairs']} |",
        "",
    ]
    for title, key in (("By origin", "origins"), ("By locale", "locales"), ("Stored judges", "published_judges")):
        if report[key]:
            lines += [f"## {title}", "", "| | pairs | kappa | sensitivity | specificity |", "|---|---|---|---|---|"]
            for name, row in report[key].items():
                kappa = "–" if row["kappa"] is None else f"{row['kappa']:.3f}"
                rates = f"{_percent(row['sensitivity'])} | {_percent(row['specificity'])}"
                lines.append(f"| {name} | {row['pairs']} | {kappa} | {rates} |")
            lines.append("")
    if report["error_kinds"]:
        lines += ["## Faults that people found", "", "| kind | pairs | the judge fails them too |", "|---|---|---|"]
        lines += [f"| {kind} | {r['pairs']} | {_percent(r['caught'])} |" for kind, r in report["error_kinds"].items()]
        lines.append("")
    verdict = "This judge may gate." if not report["refusals"] else "REFUSED: " + "; ".join(report["refusals"])
    return "\n".join([*lines, verdict, ""])
