"""Asking people for labels through Airflow's human-in-the-loop task, and the other Python tasks of `calibrate_judge`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.operators.hitl import HITLOperator
from airflow.sdk import get_current_context
from airflow.sdk.exceptions import AirflowFailException

if TYPE_CHECKING:
    from airflow.sdk import Context

CALIBRATION_DOC = """
### Calibrate the judge

Measures the judge against human labels, and puts the calibration in force for one enhancement task if the judge is good
enough. Without a calibration in force a calibrated gate refuses to publish.

- **run_dir**: a finished run. Each of its uncertain and disputed texts is asked about twice (*Required Actions* in the UI; answer with
  two people); pairs with equal answers become labels. A question that nobody answers in a week counts as "cannot tell".
- **labels**: a JSONL file of `source`, `output`, `label` (1 = consistent) to use as well, or instead.
"""
OPTIONS = ["pass", "fail", "cannot tell"]


def batch_of(run_id: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]", "_", run_id)


class LabelPairOperator(HITLOperator):
    """Asks one person whether one offered pair is faithful; the pair is read when the task runs, never from XCom.

    :param index: the pair's place among the batch's offers.
    :param labeller: "first" or "second"; each pair is asked about twice, without the judge's word or the other answer in sight.
    """

    def __init__(self, *, index: int, labeller: str, **kwargs: Any) -> None:
        super().__init__(subject="label", options=OPTIONS, defaults="cannot tell", **kwargs)
        self.index, self.labeller = index, labeller

    def execute(self, context: Context) -> Any:
        from include.judging.labelling import labels_store, question
        from include.settings import load_settings

        batch = batch_of(context["run_id"])
        offer = labels_store(load_settings()).read_json(f"{batch}/offers.json")[self.index]
        subject, self.body = question(offer)
        self.subject = f"{subject} – {self.labeller} labeller"
        return super().execute(context)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        answer = super().execute_complete(context, event)
        by = answer["responded_by_user"] or {}
        return {"index": self.index, "answer": answer["chosen_options"][0], "by": by.get("id")}


def offer_pairs() -> list[int]:
    """Mines pairs of the given run and stores them for the labellers; returns their indexes (none without a run)."""
    from include.judging.labelling import all_labels, mine, production_mix, write_offers
    from include.runs import Run
    from include.settings import load_settings

    context = get_current_context()
    params, settings = context["params"], load_settings()
    task = params["enhancement_task"]
    if not params["run_dir"]:
        if not params["labels"]:
            raise AirflowFailException("nothing to calibrate on: give run_dir, labels, or both")
        return []
    run = Run.open(params["run_dir"])
    known = [row["id"] for row in all_labels(settings)]
    offers = mine(run, task, params["pairs"], known)
    write_offers(settings, batch_of(context["run_id"]), offers, production_mix(run, task))
    return list(range(len(offers)))


def collect_labels(first: Iterable[Any] | None, second: Iterable[Any] | None) -> list[str]:
    """Stores the labels that both people agree on, and returns the arguments of the calibration's command."""
    from include.judging.labelling import collect, labels_store, merge_labels, write_labels
    from include.settings import load_settings

    context = get_current_context()
    params, settings, batch = context["params"], load_settings(), batch_of(context["run_id"])
    store, task = labels_store(settings), params["enhancement_task"]
    offers: Sequence[dict[str, Any]] = store.read_json(f"{batch}/offers.json") or []
    ones, others = list(first or []), list(second or [])
    rows, report = collect(
        offers,
        {offers[found["index"]]["id"]: found["answer"] for found in ones},
        {offers[found["index"]]["id"]: found["answer"] for found in others},
    )
    people = {found["by"] for found in [*ones, *others]}
    same = sum(one["by"] == other["by"] for one, other in zip(ones, others, strict=False))
    write_labels(settings, batch, rows, report | {"people": len(people), "pairs_by_one_person": same})
    labels = merge_labels(settings, batch, params["labels"])
    arguments = [
        "include.judging",
        "calibrate",
        "--labels",
        labels,
        "--out",
        store.child(batch, "calibration.json").url,
    ]
    if store.exists(f"{batch}/production.json"):
        arguments += ["--production", store.child(batch, "production.json").url]
    return [*arguments, *(["--store", task] if params["put_in_force"] else [])]
