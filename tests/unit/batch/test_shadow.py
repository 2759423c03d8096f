"""A shadow run on a fake judge: verdicts, what becomes of every custom id, costs, escaping, and what a second call does."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from include.batch import __main__ as commands
from include.batch import shadow as shadow_module
from include.batch.figures import overlap, paired_mean
from include.batch.joining import stored
from include.batch.requests import LineError
from include.batch.results import completion, error_line, result_line
from include.batch.shadow import decided, shadow
from include.batch.shadow_report import write_report
from include.generation import child
from include.generation.engine import EngineDeadError, Output
from include.judging.costs import ComparisonSettings, load_comparison
from include.judging.scoring import JudgeError
from include.records import Generation
from include.runs import Run
from include.settings import SettingsError, load_settings
from tests.batching import jsonl
from tests.generating import item, make_run

PRICES = ComparisonSettings(
    gpu_hour_price=3.6, gpu_hour_price_source="an offer", hosted_price_per_million={"title": 100.0}, hosted_price_source="a list"
)  # fmt: skip


class Judge:
    """Fails what it finds to be for tea; ends after `dies_after` answers as an engine does that dies."""

    def __init__(self, dies_after: int | None = None, unreadable: bool = False) -> None:
        self.asked = 0
        self.dies_after, self.unreadable = dies_after, unreadable

    @contextmanager
    def __call__(self, settings: Any) -> Any:
        yield self.Ask(self)

    class Ask:
        def __init__(self, judge: Judge) -> None:
            self.judge = judge

        def __call__(self, prompts: Iterable[Any], sampling_params: Any, progress: Any = None) -> Any:
            for key, messages in prompts:
                if self.judge.asked == self.judge.dies_after:
                    raise EngineDeadError("gone", kind="engine_failed")
                self.judge.asked += 1
                bad = ["for tea"] if "mug for tea number" in str(messages) else []
                answer = {"unsupported": bad, "contradictory": [], "omitted": [], "verdict": "fail" if bad else "pass"}
                yield Output(id=key, text="?" if self.judge.unreadable else json.dumps(answer))

        def report(self) -> dict[str, Any]:
            return {"requests_per_s": 1.0}


def good(number: int) -> str:
    return f"Blue ceramic mug number {number}"


def run_of(folder: Path, ours: Callable[[int], str | None], count: int = 60, mode: str = "demo", **changes: Any) -> Run:
    """A finished night of `count` texts, one of which two listings share; `ours` is None where the engine gave none."""
    gate = load_settings().task("title").gate.model_dump() | {"mode": mode}
    items = [item(n, **changes) for n in range(count)] + [item(0, listing_id="twin", **changes)]
    run = make_run(folder / "data", items, model=str(folder), gate=gate)
    rows = [
        Generation(text_id=item(n).text_id, text=text or "", finish_reason="stop", prompt_tokens=90, output_tokens=9,
                   error="" if text is not None else "engine_failed")
        for n in range(count) for text in [ours(n)]
    ]  # fmt: skip
    run.store.write_part(f"{run.generated('title', 0)}/part-00000.parquet", Generation, rows)
    run.store.write_json(run.manifest("title", "generate", 0), {"requests": count, "busy_s": 6.0})
    return run


def line(custom_id: str, text: str, finish_reason: str = "stop") -> dict[str, Any]:
    output = Output(id="1", text=text, finish_reason=finish_reason, prompt_tokens=100, output_tokens=10)
    return result_line("x", custom_id, completion(output, "gpt-x", "x", "f"))


def results(folder: Path, *extra: Any, count: int = 60, theirs: Callable[[int], str] = good) -> Path:
    path = folder / "results.jsonl"
    path.write_bytes(jsonl(*(line(item(n).text_id, theirs(n)) for n in range(count)), *extra))
    return path


def compare(folder: Path, run: Run, path: Path, judge: Judge | None = None, **options: Any) -> dict[str, Any]:
    prices = options.pop("prices", PRICES)
    return shadow(run, "title", path, folder / "out", prices, judge_opener=judge or Judge(), **options)


def test_equal_copy_is_not_worse_and_each_text_is_judged_once(tmp_path: Path) -> None:
    judge = Judge()
    found = compare(tmp_path, run_of(tmp_path, good), results(tmp_path), judge)
    assert (found["verdict"], found["why"]) == ("not_worse", ["no fall beyond the margin of 20 points"])
    assert (found["judge"]["pairs"], found["validators"]["all"]["pairs"], judge.asked) == (60, 60, 60)
    assert (found["listings"], found["texts"], found["custom_ids"]) == (60, {"both": 60}, {"answered": 60})
    assert (found["drift"]["identical"], found["drift"]["word_overlap"]) == (1.0, 1.0)
    assert found["drift"]["words"]["ci95"] == [0.0, 0.0]
    assert found["disagreements"] == []
    stored_json = json.loads((tmp_path / "out" / "shadow.json").read_text())
    assert stored_json["verdict"] == "not_worse"
    page = (tmp_path / "out" / "shadow.html").read_text()
    assert "not worse" in page
    assert not [word for word in ("http:", "https:", "src=") if word in page]  # self-contained


def test_a_run_that_was_generated_in_part_is_refused(tmp_path: Path) -> None:
    run, path = run_of(tmp_path, good), results(tmp_path)
    plan = run.store.read_json(run.plan("title"))
    run.store.write_json(run.plan("title"), plan | {"bins": [[0], [1]], "rows": [31, 30]})
    with pytest.raises(SettingsError, match=r"bins \[1\] of title were not generated .* --task title --bin 1`"):
        compare(tmp_path, run, path)
    run.store.write_json(run.plan("title"), plan)
    run.store.remove(run.manifest("title", "generate", 0))  # its engine died: there are answers, and no manifest
    with pytest.raises(SettingsError, match=r"bins \[0\] of title were not generated"):
        compare(tmp_path, run, path)
    run.store.write_json(run.manifest("title", "generate", 0), {"stopped": "by the circuit breaker"})
    with pytest.raises(SettingsError, match=r"bins \[0\] of title were not generated"):
        compare(tmp_path, run, path)


def test_bins_of_a_hosted_api_are_not_ours(tmp_path: Path) -> None:
    run = run_of(tmp_path, good)
    plan = run.store.read_json(run.plan("title"))
    run.store.write_json(
        run.plan("title"), plan | {"bins": [[0], [1]], "rows": [31, 30], "engines": ["stub", "hosted"]}
    )
    found = compare(tmp_path, run, results(tmp_path))
    assert (found["texts"], found["custom_ids"]) == ({"both": 30}, {"answered": 30, "unknown": 30})


@pytest.mark.parametrize(
    ("ours", "blamed"),
    [
        (lambda n: f"Blue mug number 9{n}999", "number_not_in_source"),
        (lambda n: f"**Blue** ceramic mug number {n}", "markdown"),
        (lambda n: f"Blue mug for tea number {n}", "judge pass rate"),
        (lambda n: good(n) if n % 10 else None, ""),
        (lambda n: f"Blue mug 杯子 number {n}" if n == 7 else good(n), "script_leak in 1 texts"),
    ],
)  # fmt: skip
def test_a_planted_fault_is_worse(tmp_path: Path, ours: Callable[[int], str | None], blamed: str) -> None:
    found = compare(tmp_path, run_of(tmp_path, ours), results(tmp_path))
    if not blamed:  # a tenth without an answer: a fall, but within the margin
        assert found["verdict"] == "not_worse"
        assert found["validators"]["no_answer"]["lost"] == found["texts"]["only_incumbent"] == 6
        return
    assert found["verdict"] == "worse"
    assert blamed in "; ".join(found["why"])
    row = found["disagreements"][0]
    assert (row["ours"]["ok"], row["incumbent"]["ok"]) == (False, True)
    if "judge" in blamed:
        assert row["ours"]["why"] == "unsupported: “for tea”"
    else:
        assert blamed.split()[0] in row["ours"]["why"]


def test_copy_that_is_cut_off_is_worse_and_the_other_way_round_it_is_not(tmp_path: Path) -> None:
    run = run_of(tmp_path, good)
    rows = [Generation(text_id=item(n).text_id, text="Blue ceramic mug num", finish_reason="length") for n in range(60)]
    path = f"{run.generated('title', 0)}/part-00000.parquet"
    kept = list(run.store.read_rows([path], Generation))
    run.store.write_part(path, Generation, rows)
    found = compare(tmp_path, run, results(tmp_path))
    assert found["verdict"] == "worse"
    assert found["drift"]["words"]["difference"] == pytest.approx(-1.0)
    run.store.write_part(path, Generation, kept)
    cut = [line(item(n).text_id, "Blue ceramic mug num", "length") for n in range(60)]
    found = compare(tmp_path, run, results(tmp_path, *cut, count=0))
    assert found["validators"]["all"]["gained"] == 60
    assert found["verdict"] == "undecided"  # no pair is left for the judge


def test_too_few_are_undecided_and_so_is_a_judge_that_is_refused(tmp_path: Path) -> None:
    found = compare(tmp_path, run_of(tmp_path, good, count=4), results(tmp_path, count=4))
    assert found["verdict"] == "undecided"
    assert "too few pairs, 4 of about" in found["why"][0]
    run = run_of(tmp_path, good, mode="calibrated")
    judge = run.spec.settings.judge.model_copy(update={"calibration": None})
    pipeline = run.spec.settings.pipeline.model_copy(update={"state_url": str(tmp_path / "state")})
    settings = run.spec.settings.model_copy(update={"judge": judge, "pipeline": pipeline})
    run.spec = run.spec.model_copy(update={"settings": settings})
    found = compare(tmp_path, run, results(tmp_path))
    assert found["verdict"] == "undecided"
    assert found["why"][0].startswith("judge refused: the judge has no calibration")


def test_every_custom_id_is_counted_and_named(tmp_path: Path) -> None:
    ids = [item(n).text_id for n in range(60)]
    refused = LineError("invalid_value", "too hot", answered=True)
    silent = line(ids[54], "")
    silent["response"]["body"]["choices"][0]["message"] |= {"content": None, "refusal": "I cannot"}
    extra = [
        line(ids[0], "Another text"), line("other-shop", good(1)), error_line("x", 3, ids[50], refused),
        error_line("x", 4, ids[51], refused), line(ids[51], good(51)), error_line("x", 5, ids[52], LineError("engine_failed", "x")),
        silent, b"no json", {"response": None}, b"\xff",
    ]  # fmt: skip
    found = compare(tmp_path, run_of(tmp_path, good), results(tmp_path, *extra, count=50))
    assert found["custom_ids"] == {
        "answered": 50,
        "failed": 4,
        "duplicated": 2,
        "unknown": 1,
        "unreadable": 3,
        "missing": 6,
    }
    assert found["texts"] == {"both": 51, "only_ours": 9}
    assert found["named"]["failed"] == [ids[n] for n in (50, 51, 52, 54)]
    assert found["named"]["unknown"] == ["other-shop"]
    assert found["named"]["duplicated"] == [ids[0], ids[51]]
    rows = [json.loads(row) for row in (tmp_path / "out" / "custom_ids.jsonl").read_text().splitlines()]
    assert len(rows) == 16
    assert {row["custom_id"] for row in rows if row["fault"] == "missing"} == {ids[n] for n in (53, 55, 56, 57, 58, 59)}
    told = {row["custom_id"]: row["detail"] for row in rows if row["fault"] == "failed"}
    assert told[ids[50]].startswith("status 400: invalid_value: line 3: too hot")
    assert "I cannot" in told[ids[54]]
    assert found["listings"] == 51
    assert found["drift"]["identical"] == 1.0  # the first answer counts
    page = (tmp_path / "out" / "shadow.html").read_text()
    assert "other-shop" in page


def test_ids_of_their_own_come_with_a_map_and_none_that_fits_is_refused(tmp_path: Path) -> None:
    run = run_of(tmp_path, good)
    own = [line(f"shop/{n}", good(n)) for n in range(60)]
    path = results(tmp_path, *own, count=0)
    with pytest.raises(SettingsError, match="custom ids that are no text ids need --map"):
        compare(tmp_path, run, path)
    mapping = tmp_path / "map.jsonl"
    mapping.write_bytes(jsonl(*({"custom_id": f"shop/{n}", "text_id": item(n).text_id} for n in range(60))))
    assert compare(tmp_path, run, path, mapping=mapping)["texts"] == {"both": 60}
    mapping.write_text('{"custom_id": "a"}\n')
    with pytest.raises(SettingsError, match="line 1"):
        compare(tmp_path, run, path, mapping=mapping)


def test_the_sample_is_seeded_and_bounded(tmp_path: Path) -> None:
    run, path = run_of(tmp_path, lambda n: f"Blue mug for tea number {n}"), results(tmp_path)
    drawn = [
        [row["text_id"] for row in compare(tmp_path, run, path, listings=20, seed=seed)["disagreements"]]
        for seed in (1, 1, 2)
    ]
    assert [len(ids) for ids in drawn] == [20, 20, 20]
    assert drawn[0] == drawn[1] != drawn[2]


def test_what_merchants_and_models_write_is_escaped(tmp_path: Path) -> None:
    attack = "<script>alert(1)</script>"
    run = run_of(tmp_path, lambda n: f"{attack} mug number {n}", description=f"A blue ceramic mug {attack}")
    found = compare(tmp_path, run, results(tmp_path, line(attack, "x")))
    assert found["disagreements"]
    page = (tmp_path / "out" / "shadow.html").read_text()
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)" in page


def test_an_interrupted_run_asks_for_the_rest_and_a_second_one_for_nothing(tmp_path: Path) -> None:
    run, path = run_of(tmp_path, lambda n: good(n) if n % 5 else f"Blue mug for tea number {n}"), results(tmp_path)
    with pytest.raises(EngineDeadError):
        compare(tmp_path, run, path, Judge(dies_after=30))
    judge = Judge()
    first = compare(tmp_path, run, path, judge)
    assert judge.asked == 72 - 30  # sixty of theirs, twelve of ours that differ
    content = (tmp_path / "out" / "shadow.json").read_bytes()
    assert compare(tmp_path, run, path, Judge(dies_after=0)) == first
    assert (tmp_path / "out" / "shadow.json").read_bytes() == content
    page = (tmp_path / "out" / "shadow.html").read_bytes()
    assert write_report(tmp_path / "out").read_bytes() == page
    with pytest.raises(FileNotFoundError, match="goes on with it"):
        write_report(tmp_path)


def test_a_judge_that_cannot_be_read_decides_nothing(tmp_path: Path) -> None:
    with pytest.raises(JudgeError, match="60 of 60"):
        compare(tmp_path, run_of(tmp_path, good), results(tmp_path), Judge(unreadable=True))


def test_a_run_without_answers_writes_the_sample_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, asked = run_of(tmp_path, lambda n: None), list[str]()

    def generate(*command: str) -> None:
        own = Run.open(command[command.index("--run-dir") + 1])
        asked.extend(row.text_id for row in shadow_items(own))
        rows = [Generation(text_id=key, text=good(int(key, 16)), finish_reason="stop") for key in asked]
        own.store.write_part(f"{own.generated('title', 0)}/part-00000.parquet", Generation, rows)
        own.store.write_json(own.manifest("title", "generate", 0), {"requests": len(rows), "busy_s": 2.0})

    monkeypatch.setattr(shadow_module, "run_stage", generate)
    found = compare(tmp_path, run, results(tmp_path), listings=40)
    assert (found["verdict"], found["texts"], len(asked)) == ("not_worse", None, 40)
    assert found["costs"]["ours"]["gpu_seconds"] == pytest.approx(2.0)
    assert "written for the sample only" in (tmp_path / "out" / "shadow.html").read_text()


def shadow_items(run: Run) -> Iterable[Any]:
    from include.records import WorkItem

    return run.store.read_rows(run.work_parts("title", 0), WorkItem)


def test_costs_by_hand(tmp_path: Path) -> None:
    """Ten requests a second at 3.6 an hour: 0.0001 a listing, as the hosted API; a day of the GPU is 864,000 listings."""
    some = lambda n: good(n) if n % 2 else f"**Blue** mug number {n}"  # noqa: E731
    costs = compare(tmp_path, run_of(tmp_path, some), results(tmp_path))["costs"]
    assert costs["ours"] == {
        "listings": 60, "prompt_tokens": 5400, "output_tokens": 540, "gpu_seconds": pytest.approx(6.0), "accepted": 30,
        "price_per_million": pytest.approx(100.0), "price_per_million_accepted": pytest.approx(200.0),
    }  # fmt: skip
    assert (costs["incumbent"]["prompt_tokens"], costs["incumbent"]["output_tokens"]) == (6000, 600)
    assert costs["incumbent"]["price_per_million_accepted"] == pytest.approx(100.0)
    assert costs["break_even_listings_per_day"] == pytest.approx(864_000)
    assert costs["listings_per_day_of_an_engine"] == pytest.approx(864_000)
    page = (tmp_path / "out" / "shadow.html").read_text()
    assert "864,000" in page
    assert "(an offer)" in page


def test_a_price_that_is_not_given_is_told_and_never_zero(tmp_path: Path) -> None:
    found = compare(tmp_path, run_of(tmp_path, good), results(tmp_path), prices=ComparisonSettings())
    costs = found["costs"]
    assert costs["ours"]["price_per_million"] is costs["incumbent"]["price_per_million"] is None
    assert costs["break_even_listings_per_day"] is None
    page = (tmp_path / "out" / "shadow.html").read_text()
    assert page.count("not configured") == 8
    assert load_comparison().held_out == 300


def test_figures_by_hand() -> None:
    found = paired_mean([3, 5, 7], [1, 4, 6])  # differences 2, 1, 1: mean 4/3, deviation 1/sqrt(3), t of 2 is 4.3027
    assert found["difference"] == pytest.approx(4 / 3)
    assert found["ci95"] == pytest.approx([4 / 3 - 4.3027 / 3, 4 / 3 + 4.3027 / 3], abs=1e-4)
    assert paired_mean([1], [2])["ci95"] is None
    assert overlap("Blue mug", "blue MUG, new") == pytest.approx(2 / 3)
    assert overlap("", "") == 1.0


def test_a_verdict_needs_every_rate_and_a_refused_judge_has_no_say() -> None:
    holds, open_, worse = (
        {"holds": a, "worse": b, "why": w} for a, b, w in ((True, False, ""), (False, False, "few"), (False, True, "fell"))
    )  # fmt: skip
    assert decided([holds, holds], [], 20)[0] == "not_worse"
    assert decided([holds, open_], [], 20) == ("undecided", ["few"])
    assert decided([worse, holds, open_], [], 20) == ("worse", ["fell"])
    assert decided([worse, holds], ["old"], 20)[0] == "undecided"
    assert decided([holds, worse], ["old"], 20)[0] == "worse"


@pytest.mark.parametrize("raw", [None, b"", b"[]", b"null", b"{", b'{"custom_id": "a"}', b'{"custom_id": "a", "response": 3}',
                                 b'{"custom_id": "a", "error": "x"}', b'{"custom_id": "a", "response": {"status_code": 200, "body": {"choices": []}}}'])  # fmt: skip
def test_no_line_raises(raw: bytes | None) -> None:
    assert stored(raw).fault


def test_the_command_hands_its_options_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, seen = run_of(tmp_path, good), dict[str, Any]()

    def fake(*arguments: Any, **options: Any) -> dict[str, Any]:
        seen.update(options, task=arguments[1], results=arguments[2])
        return {"verdict": "not_worse", "why": ["a", "b"]}

    monkeypatch.setattr(shadow_module, "shadow", fake)
    monkeypatch.setattr(child, "run_child", lambda stage: seen.update(result=stage()) or 0)
    common = ["shadow", "--run-dir", run.store.url, "--task", "title", "--incumbent", "r.jsonl", "--out", str(tmp_path)]
    assert commands.main([*common, "--listings", "50", "--map", "m.jsonl"]) == 0
    assert (seen["task"], seen["listings"], seen["mapping"], seen["seed"]) == ("title", 50, Path("m.jsonl"), 8)
    assert seen["result"] == {"verdict": "not_worse", "why": "a; b", "report": str(tmp_path / "shadow.html")}
    with pytest.raises(SystemExit):
        commands.main([*common, "--listings", "0"])
