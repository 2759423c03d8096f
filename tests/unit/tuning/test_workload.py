"""Workloads: files of prompts, prompts like them, and their figures."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from include.generation.engine import Request
from include.tuning.trial import taken
from include.tuning.workload import Lengths, describe, read_requests, synthetic, write_requests


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
