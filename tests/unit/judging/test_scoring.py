"""The judge at work against a stand-in for the engine."""

import json
from contextlib import contextmanager

import pytest

from include.generation.engine import Output
from include.judging.scoring import JudgeError, family, sampling_params, score
from include.judging.stage import sample
from include.records import JudgeScore, JudgeVerdict
from tests.unit.judging.conftest import TASK, verdict

CLEAN = json.dumps({"unsupported": [], "contradictory": [], "omitted": [], "verdict": "pass"})
CUT = '{"unsupported":' + "\n" * 900


class Judge:
    """Answers by a function of (text id, attempt) and records what it was asked; None leaves a prompt unanswered."""

    def __init__(self, reply):
        self.reply, self.asked, self.starts, self.attempt = reply, [], 0, 0

    @contextmanager
    def __call__(self, settings):
        self.starts, self.attempt = self.starts + 1, 0
        yield Asking(self)


class Asking:
    def __init__(self, judge):
        self.judge = judge

    def __call__(self, prompts, sampling_params, progress=None):
        self.judge.attempt += 1
        for key, _messages in prompts:
            self.judge.asked.append((key, self.judge.attempt))
            if (text := self.judge.reply(key, self.judge.attempt)) is not None:
                yield text if isinstance(text, Output) else Output(id=key, text=text)

    def report(self):
        return {"requests_per_s": 2.0, "device_s": 5.0}


def rows_of(run):
    return list(run.store.read_rows(run.judged(TASK), JudgeScore))


@pytest.fixture
def run(make_run):
    run = make_run([[verdict(i, text_id=f"t{i // 2}") for i in range(20)]])
    sample(run, TASK)
    return run


def test_every_sampled_text_gets_one_answer_with_its_weight(run):
    manifest = score(run, TASK, Judge(lambda key, attempt: CLEAN))
    assert manifest["sampled"] == manifest["evaluable"] == manifest["passed"] == 10
    assert sum(r.weight for r in rows_of(run)) == pytest.approx(20)


def test_a_judge_that_is_its_writer_says_so(run):
    engines = run.spec.settings.engines
    judge = engines[run.spec.settings.judge.engine]
    assert family(judge, judge) == {"self_judged": True, "same_base_model": True}
    other = judge.model_copy(update={"lora": "some/adapter"})
    assert family(judge, other) == {"self_judged": False, "same_base_model": True}
    foreign = judge.model_copy(update={"model": "Qwen/Qwen3-4B"})
    assert family(judge, foreign) == {"self_judged": False, "same_base_model": False}
    assert {"self_judged", "same_base_model"} <= set(score(run, TASK, Judge(lambda key, attempt: CLEAN)))


def test_unreadable_answers_are_asked_once_more_with_other_sampling(run):
    judge = Judge(lambda key, attempt: CLEAN if attempt == 2 or key != "t3" else CUT)
    manifest = score(run, TASK, judge)
    assert [a for k, a in judge.asked if k == "t3"] == [1, 2]
    assert manifest["errors"] == 0
    assert manifest["retried"] == 1
    first, second = (sampling_params(run.spec.settings.judge, attempt) for attempt in (1, 2))
    assert second["temperature"] > first["temperature"]
    assert second["max_tokens"] > first["max_tokens"]
    assert first["json_schema"] == second["json_schema"]


def test_too_many_errors_fail_the_step_and_the_next_call_asks_only_for_them(run):
    judge = Judge(lambda key, attempt: CUT if key in ("t1", "t2") else CLEAN)
    with pytest.raises(JudgeError, match="2 of 10 texts"):
        score(run, TASK, judge)
    assert sum(r.verdict is JudgeVerdict.ERROR for r in rows_of(run)) == 2
    better = Judge(lambda key, attempt: CLEAN)
    manifest = score(run, TASK, better)
    assert sorted(better.asked) == [("t1", 1), ("t2", 1)]
    assert (manifest["resumed"], manifest["errors"], manifest["evaluable"]) == (8, 0, 10)
    assert manifest["device_s"] == 2 * 5.0, "both calls took the device"
    assert len(rows_of(run)) == len({(r.text_id, r.stratum) for r in rows_of(run)}) == 10


def test_an_answer_that_the_engine_broke_off_says_so_in_the_error_and_in_its_row(run):
    def broken(key, attempt):
        return Output(
            id=key, text='{"unsupported": ["' + 300 * "a", error="engine_failed", detail="finish_reason error"
        )

    with pytest.raises(
        JudgeError, match=r"such as '\[engine: engine_failed, finish_reason error\] \{\"unsupported\": "
    ):
        score(run, TASK, Judge(broken))
    (raw,) = {r.raw for r in rows_of(run)}
    assert raw.startswith("[engine: engine_failed, finish_reason error] {")
    assert raw.endswith(300 * "a"), "the row keeps all of it"


def test_an_answer_that_never_comes_is_an_error(run):
    with pytest.raises(JudgeError):
        score(run, TASK, Judge(lambda key, attempt: None if key == "t0" else CLEAN))
    assert [r.text_id for r in rows_of(run) if r.verdict is JudgeVerdict.ERROR] == ["t0"]


def test_no_engine_starts_when_all_is_answered_or_nothing_is_sampled(run, make_run):
    score(run, TASK, Judge(lambda key, attempt: CLEAN))
    again = Judge(lambda key, attempt: CLEAN)
    score(run, TASK, again)
    assert (again.starts, run.store.read_json(run.manifest(TASK, "judge"))["device_s"]) == (0, 5.0)
    empty = make_run([[verdict(1, ok=False)]])
    sample(empty, TASK)
    manifest = score(empty, TASK, again)
    assert (again.starts, manifest["sampled"]) == (0, 0)


def test_another_sample_is_judged_afresh(run):
    score(run, TASK, Judge(lambda key, attempt: CLEAN))
    run.store.write_part(
        f"{run.verdicts(TASK, 0)}/part-00001.parquet", type(verdict(0)), [verdict(i + 100) for i in range(5)]
    )
    sample(run, TASK)
    judge = Judge(lambda key, attempt: CLEAN)
    assert score(run, TASK, judge)["sampled"] == 15
    assert len(judge.asked) == 15


def test_a_stop_halfway_keeps_what_was_judged(make_run):
    run = make_run([[verdict(i) for i in range(100)]], sampling={"max_size": 100}, gate={"margin": 0.01})
    sample(run, TASK)

    def stop_at(key, attempt):
        if len(halting.asked) > 80:
            raise KeyboardInterrupt
        return CLEAN

    halting = Judge(stop_at)
    with pytest.raises(KeyboardInterrupt):
        score(run, TASK, halting)
    kept = len(rows_of(run))
    assert kept == 64, "one full part of pipeline.rows_per_part"
    rest = Judge(lambda key, attempt: CLEAN)
    assert score(run, TASK, rest)["evaluable"] == 100
    assert len(rest.asked) == 100 - kept


def test_an_empty_source_is_never_asked_about_and_never_passes(make_run):
    run = make_run([[verdict(0, title="", description="", output="BPA-free steel bottle"), verdict(1)]])
    sample(run, TASK)
    judge = Judge(lambda key, attempt: CLEAN)
    manifest = score(run, TASK, judge)
    assert [key for key, _ in judge.asked] == ["t00001"]
    assert (manifest["not_evaluable"], manifest["passed"]) == (1, 1)


def test_without_a_sample_the_command_says_what_to_run(make_run):
    with pytest.raises(FileNotFoundError, match=r"include\.judging sample"):
        score(make_run([[verdict(1)]]), TASK, Judge(lambda key, attempt: CLEAN))
