"""A gradual switch from a hosted API to our own engine, over the stages; the test serves both endpoints over HTTP."""

from __future__ import annotations

import json
import os
import re
from datetime import timedelta
from pathlib import Path

from include.extraction.keys import route_of
from include.generation.endpoint import ENDPOINT_VARIABLE
from include.generation.worker import generate_bins
from include.judging.gate import decide
from include.judging.scoring import score
from include.judging.stage import sample
from include.records import Generation
from include.reporting.report import write_report
from include.reporting.summary import summarise
from include.reporting.text import summary_text
from include.settings import Settings, load_settings
from include.validation.stage import validate
from include.warehouse.load import load, reconcile
from listing_operators import stages
from tests.integration.warehouse_runs import DAY, open_run, rows, run_extract, seed, work
from tests.serving import completion, serving

TASK = "title"
COUNT = 80
LONG_AGO = f"{DAY - timedelta(days=30)}T10:00:00Z"  # no windowed read reaches it
DESCRIPTION = "A blue ceramic mug for tea. It holds 350 ml. It is safe for the dishwasher."
LENIENT = {"mode": "demo", "baseline": 0.5, "margin": 0.4, "min_validator_pass_rate": 0.5, "max_reason_share": {}}
VERDICT = {"unsupported": [], "contradictory": [], "omitted": [], "verdict": "pass"}


def answering(form):
    """A model that puts the listing's number into `form`; asked for JSON, it is a judge that is content."""

    def reply(body):
        if "response_format" in body:
            return 200, completion(json.dumps(VERDICT))
        return 200, completion(form.format(re.findall(r"mug number (\d+)", str(body["messages"]))[-1]))

    return reply


def settings_of(folder, share):
    values = load_settings().model_dump()
    for name, arguments in (("own", {}), ("hosted", {"hosted": True})):
        values["engines"][name] = {
            "name": name, "kind": "openai", "model": f"{name}-model", "lineage": f"{name}-1", "batch_size": 4,
            "connection": f"{name}_api", "engine_args": arguments,
        }  # fmt: skip
    values["tasks"][TASK] |= {"engine": "own", "routing": {"hosted": "hosted", "share": share}}
    values["tasks"][TASK]["gate"] |= LENIENT
    values["judge"] |= {"engine": "own", "calibration": None}
    values["pipeline"] |= {"state_url": str(folder / "state"), "min_rows_per_bin": 10, "rows_per_shard": 10}
    values["pipeline"]["catalog"]["read"] = "window"  # what moves is read although it has not changed
    return Settings.model_validate(values)


def expected(settings):
    """Engine profile by listing, as the shares want it."""
    routing = settings.task(TASK).routing
    return {f"l{i}": ("own", "hosted")[route_of("m1", f"l{i}", routing)] for i in range(COUNT)}


def standing(url):
    found = rows(url, "SELECT listing_id, engine_profile, model, text FROM listing_copy")
    assert all(model == f"{engine}-model" for _, engine, model, _ in found)
    assert all(text.startswith({"own": "Ceramic", "hosted": "Blue"}[engine]) for _, engine, _, text in found)
    return {listing: engine for listing, engine, _, _ in found}


def test_listings_move_by_share_and_back_and_no_others_are_written(warehouse_url, tmp_path, monkeypatch):
    lines = [
        ["m1", f"l{i}", f"Ceramic mug number {i // 2}", DESCRIPTION, LONG_AGO] for i in range(COUNT)
    ]  # pairs are equal
    seed(warehouse_url, tmp_path, lines)
    addresses, seen = {}, {}

    def night(number, share):
        settings = settings_of(tmp_path, share)
        run = open_run(tmp_path, f"run-{number}", DAY + timedelta(days=number), settings=settings)
        run_extract(run, warehouse_url)
        for name, hosted in (("own", False), ("hosted", True)):
            monkeypatch.setenv(ENDPOINT_VARIABLE, addresses[name])
            for bin_index in stages.plan_bins(run.store.url, TASK, hosted):
                assert run.engines(TASK)[bin_index] == name
                manifest = generate_bins(run, [TASK], bin_index)[TASK]
                assert manifest["engine_profile"] == validate(run, TASK, bin_index)["engine"] == name
        asked = {name: [body for body in seen[name] if "response_format" not in body] for name in seen}
        monkeypatch.setenv(ENDPOINT_VARIABLE, addresses["own"])
        sample(run, TASK)
        score(run, TASK)
        decided = decide(run, TASK)
        assert decided["status"] in ("passed", "empty"), decided["reasons"]
        load(run, TASK, warehouse_url=warehouse_url)
        reconcile(run, TASK, warehouse_url=warehouse_url)
        for bodies in seen.values():
            bodies.clear()
        return run, asked

    with serving(answering("Ceramic mug number {}, blue"), monkeypatch) as seen["own"]:
        addresses["own"] = os.environ[ENDPOINT_VARIABLE]
        with serving(answering("Blue ceramic mug number {}"), monkeypatch) as seen["hosted"]:
            addresses["hosted"] = os.environ[ENDPOINT_VARIABLE]

            first, asked = night(0, {"*": 0.4})
            before = expected(first.spec.settings)
            assert standing(warehouse_url) == before
            for name in ("own", "hosted"):  # a prompt goes once to each engine whose listings have it
                assert len(asked[name]) == len({int(key[1:]) // 2 for key, engine in before.items() if engine == name})
            texts = [
                {row.text_id for b in stages.plan_bins(first.store.url, TASK, hosted)
                 for row in first.store.read_rows(first.generated(TASK, b), Generation)}
                for hosted in (False, True)
            ]  # fmt: skip
            assert texts[0].isdisjoint(texts[1])
            found = summarise(first)["tasks"][TASK]
            for name, row in found["routes"].items():
                count = sum(engine == name for engine in before.values())
                assert row == {"planned": count, "answered": count, "accepted": count, "pass_rate": 1.0}
            assert found["requests"] == len(asked["own"])  # engine figures are those of our own
            assert f"title by engine: own: {found['routes']['own']['planned']} listings" in summary_text(
                summarise(first)
            )
            assert "By engine: own: " in Path(write_report(first)).read_text(encoding="utf-8")

            second, asked = night(1, {"*": 0.7})
            after = expected(second.spec.settings)
            moved = sorted(key for key in after if after[key] != before[key])
            assert moved
            assert {after[key] for key in moved} == {"own"}
            assert work(second) == moved
            assert asked["hosted"] == []
            assert standing(warehouse_url) == after
            history = (
                "SELECT listing_id, engine_profile, model, ended_by, end_reason FROM copy_history ORDER BY listing_id"
            )
            assert rows(warehouse_url, history) == [
                (key, "hosted", "hosted-model", "run-1", "replaced") for key in moved
            ]

            back, asked = night(2, {"*": 0.4})
            assert work(back) == moved
            assert asked["own"] == []
            assert standing(warehouse_url) == before
            ended = "SELECT listing_id, engine_profile FROM copy_history WHERE ended_by = 'run-2' ORDER BY listing_id"
            assert rows(warehouse_url, ended) == [(key, "own") for key in moved]

            quiet, asked = night(3, {"*": 0.4})
            assert (work(quiet), asked) == ([], {"own": [], "hosted": []})
            assert quiet.store.read_json(quiet.manifest(TASK, "extract"))["counts"]["extracted"] == 0  # a windowed read
