"""The way out: work items as request files that the hosted API takes, and that our own command takes back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from include.batch import export as export_module
from include.batch.__main__ import main
from include.batch.export import body_of, export_requests
from include.batch.requests import parsed, request_of
from include.settings import SettingsError
from tests.batching import rows_of
from tests.generating import item, make_run


@pytest.fixture
def run(tmp_path: Path) -> Any:
    twice = item(3, merchant_id="m2", text_id=item(2).text_id)
    sampling = {"temperature": 0.0, "max_tokens": 48, "repetition_penalty": 1.1}
    return make_run(tmp_path / "data", [*map(item, range(5)), twice], model=str(tmp_path), sampling_params=sampling)


def test_each_distinct_text_is_one_request_under_its_text_id(
    run: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / "new" / "requests.jsonl"
    assert export_requests(run, "title", out, "gpt-x") == [out]
    rows = rows_of(out)
    assert sorted(row["custom_id"] for row in rows) == sorted(item(n).text_id for n in range(5))
    assert "repetition_penalty" in caplog.text
    for raw, row in zip(out.read_bytes().splitlines(), rows, strict=True):
        assert set(row["body"]) == {"model", "messages", "temperature", "max_completion_tokens"}
        request = request_of(1, parsed(raw).body, {}, lambda schema: None)
        assert request.sampling_params == {"temperature": 0.0, "max_tokens": 48}
        assert "Ceramic mug" in request.messages[1]["content"]


@pytest.mark.parametrize("limit", [{"MAX_REQUESTS": 2}, {"MAX_BYTES": 5_000}])
def test_a_file_ends_at_the_limits_of_the_api(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: dict[str, int]
) -> None:
    out = tmp_path / "requests.jsonl"
    export_requests(run, "title", out, "gpt-x")
    size = max(map(len, out.read_bytes().splitlines(keepends=True)))
    for name, value in limit.items():
        monkeypatch.setattr(export_module, name, value if name == "MAX_REQUESTS" else 2 * size)
    files = export_requests(run, "title", out, "gpt-x")
    assert [path.name for path in files] == [f"requests-{n:05d}.jsonl" for n in (1, 2, 3)]
    assert [len(rows_of(path)) for path in files] == [2, 2, 1]
    assert sorted(path.name for path in tmp_path.glob("requests*")) == [path.name for path in files]
    monkeypatch.undo()
    assert export_requests(run, "title", out, "gpt-x") == [out]
    assert [path.name for path in tmp_path.glob("requests*")] == ["requests.jsonl"]


def test_a_schema_goes_out_as_a_response_format() -> None:
    schema = {"type": "object"}
    form = body_of([], {"json_schema": schema}, "gpt-x")["response_format"]
    assert form == {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


def test_the_command_prints_the_files_and_names_what_is_wrong(
    run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--out", str(tmp_path / "r.jsonl"), "--model", "gpt-x", "--run-dir"]
    assert main(["export", "--task", "title", *options, run.store.url]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'r.jsonl'}\n"
    with pytest.raises(SettingsError):
        export_requests(run, "none", tmp_path / "r.jsonl", "gpt-x")
    assert main(["export", "--task", "title", *options, "/nowhere"]) == 2
    assert "start with `python -m include.runs open`" in capsys.readouterr().err
