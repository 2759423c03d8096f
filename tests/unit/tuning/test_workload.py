"""Workloads: files of prompts, prompts like them, and their figures."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from include.generation.engine import Request
from include.settings import SettingsError, load_settings
from include.tuning.__main__ import main
from include.tuning.trial import taken
from include.tuning.workload import Lengths, capped, describe, read_requests, synthetic, write_requests
from tests.generating import profile


def prompts(count: int) -> list[Request]:
    for_all = "Rewrite the listing below. Listing: "
    return [
        Request(
            id=str(n),
            messages=[
                {"role": "system", "content": "Be short."},
                {"role": "user", "content": for_all + "red mug " * n},
            ],
            sampling_params={"max_tokens": 8},
        )
        for n in range(1, count + 1)
    ]


def test_a_file_gives_back_what_was_written(tmp_path: Path) -> None:
    write_requests(tmp_path / "w.jsonl", prompts(3))
    assert read_requests(tmp_path / "w.jsonl") == prompts(3)


@pytest.mark.parametrize("line", ['{"messages": "hello"}', "[1]", '{"messages": [{"role": "user"}]}', "{"])
def test_a_line_that_is_no_prompt_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "w.jsonl"
    path.write_text(json.dumps({"messages": [{"role": "user", "content": "a"}]}) + "\n" + line + "\n")
    with pytest.raises(ValueError, match="line 2"):
        read_requests(path)


def test_synthetic_prompts_keep_the_fixed_part_and_the_lengths() -> None:
    made = list(synthetic(prompts(20), 500, seed=1))
    assert len({request.id for request in made}) == 500
    bodies = [str(request.messages[-1]["content"]) for request in made]
    assert all(body.startswith("Rewrite the listing below. Listing: ") for body in bodies)
    words = [len(body.split()) for body in bodies]
    wanted = sum(len(str(p.messages[-1]["content"]).split()) for p in prompts(20)) / 20
    assert sum(words) / 500 == pytest.approx(wanted, rel=0.1)
    assert list(synthetic(prompts(20), 500, seed=1)) == made


def test_fewer_prompts_than_asked_are_repeated_under_new_ids() -> None:
    ids = [request.id for request in taken(prompts(2), 5)]
    assert len(set(ids)) == 5
    assert list(taken(prompts(1), 1)) == [replace(prompts(1)[0], id="1#0")]


def test_the_shared_prefix_is_counted_in_tokens() -> None:
    found = describe([[1, 2, 3, 4], [1, 2, 3, 9, 9, 9], [1, 2, 3]])
    assert found["shared_prefix_tokens"] == 3
    assert found["prompt_tokens"]["mean"] == pytest.approx(4.3, abs=0.05)
    assert Lengths.of([10, 20, 30]) == Lengths(20.0, 10, 20, 20, 30)


class Words:
    """A tokenizer of one token a word."""

    def apply_chat_template(self, messages: list[dict[str, str]], **_: Any) -> str:
        return " ".join(message["content"] for message in messages)

    def __call__(self, texts: list[str], **_: Any) -> dict[str, Any]:
        return {"input_ids": [text.split() for text in texts]}


SHORTENS = load_settings().task("title").model_copy(update={"overlong": "shorten"})


def test_a_length_that_is_left_to_the_model_is_capped_by_the_prompts(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    own = SimpleNamespace(max_position_embeddings=40_960)
    config = SimpleNamespace(get_text_config=lambda: own)
    monkeypatch.setattr("transformers.AutoConfig", SimpleNamespace(from_pretrained=lambda *_, **__: config))
    monkeypatch.setattr("transformers.AutoTokenizer", SimpleNamespace(from_pretrained=lambda *_, **__: Words()))
    base, requests = profile(sampling_params={"max_tokens": 100}), prompts(150)
    # The longest: 2 + 5 + 2 x 150 words, and 8 tokens of answer, as it asks for itself; twice that is 630.
    free = base.model_copy(update={"engine_args": {"max_num_seqs": 4, "max_model_len": None}})
    assert capped(free, requests, SHORTENS).engine_args == {"max_num_seqs": 4, "max_model_len": 768}
    longer = [replace(request, sampling_params={}) for request in requests]  # the profile's 100
    assert capped(free, longer, SHORTENS).engine_args["max_model_len"] == 1024
    given = base.model_copy(update={"engine_args": {"max_model_len": 4096}})
    assert capped(given, requests, SHORTENS) == given
    refuses = SHORTENS.model_copy(update={"overlong": "quarantine"})
    with caplog.at_level(logging.WARNING):
        assert capped(free, requests, refuses) == free
    assert "take 315 tokens: max_model_len 768 would do, but title refuses longer listings" in caplog.text
    own.max_position_embeddings = 768
    assert capped(free, requests, SHORTENS) == free


def test_a_run_that_goes_on_keeps_its_prompts_and_needs_none_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("include.tuning.run.TuningRun.run", lambda self: {"prompts": self.requests})
    monkeypatch.setattr("include.tuning.__main__._in_child", lambda _: {})
    found: list[int] = []
    monkeypatch.setattr("include.tuning.__main__.run_child", lambda stage: found.append(stage()["prompts"]))
    folder, mine = tmp_path / "run", tmp_path / "mine.jsonl"
    folder.mkdir()
    write_requests(folder / "workload.jsonl", prompts(1))  # of a start that was killed before it wrote its plan
    write_requests(mine, prompts(7))
    command = ["run", "--dir", str(folder), "--task", "title"]
    main([*command, "--prompts", str(mine)])
    assert read_requests(folder / "workload.jsonl") == prompts(7)
    mine.unlink()
    main(command)
    main([*command, "--synthetic", "50"])
    assert read_requests(folder / "workload.jsonl") == prompts(7)
    assert found == [7, 7, 7]
    with pytest.raises(SettingsError, match="no prompts: name a finished run with --run-dir"):
        main(["run", "--dir", str(tmp_path / "other"), "--task", "title"])


def test_a_model_without_a_tokenizer_is_named_before_anything_is_measured(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    nothing = profile(model=str(tmp_path / "model"))
    free = nothing.model_copy(update={"engine_args": {}})
    with pytest.raises(SettingsError, match=r"the tokenizer of .*model cannot be read, or set max_model_len"):
        capped(free, prompts(1), SHORTENS)
