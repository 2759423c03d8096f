"""What a checkpoint is made of, what is refused before anything heavy runs, and that its folder appears whole or not at all."""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from include.generation.engine import Request
from include.generation.merging import merged_model
from include.generation.model import ModelError
from include.quantization import making
from include.quantization.recipes import SCHEMES
from include.settings import SettingsError
from include.tuning.workload import write_requests


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    left = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "hashes.json")
    for name in ("config.json", "tokenizer.json", "chat_template.jinja", "special_tokens_map.json", *left):
        (folder / name).write_text(f"{name} of the base")
    return folder


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "workload.jsonl"
    write_requests(path, [Request(id=str(n), messages=[{"role": "user", "content": f"mug {n}"}]) for n in range(40)])
    return path


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, list[str], dict[str, Any]]]:
    """The calls that reach llm-compressor, which here writes weights and configuration only."""
    calls = []

    def quantize(base: Path, requests: Sequence[Request], recipe: dict[str, Any], out: Path) -> int:
        calls.append((base, [request.id for request in requests], recipe))
        out.mkdir()
        (out / "model.safetensors").write_text("smaller")
        (out / "config.json").write_text("quantized")
        return 1234

    monkeypatch.setattr(making, "quantize", quantize)
    monkeypatch.setattr(making, "version", lambda name: f"{name} 1")
    return calls


def test_the_folder_has_weights_tokenizer_and_record(
    model: Path, prompts: Path, tmp_path: Path, asked: list[Any]
) -> None:
    record = making.make(str(model), prompts, "w8a8", tmp_path / "out" / "q", samples=32)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["q"]
    found = {path.name: path.read_text() for path in (tmp_path / "out" / "q").iterdir()}
    assert json.loads(found.pop("quantization.json")) == record
    assert found == {
        "model.safetensors": "smaller",
        "config.json": "quantized",
        **{n: f"{n} of the base" for n in ("tokenizer.json", "chat_template.jinja", "special_tokens_map.json")},
    }
    ((base, ids, recipe),) = asked
    assert (base, len(set(ids)), record["samples"]) == (model, 32, 32)
    assert ids != sorted(ids, key=int)  # a draw, not the head of the file
    assert list(recipe["quantize_stage"]["quantize_modifiers"]) == ["SmoothQuantModifier", "GPTQModifier"]


def test_the_same_again_is_left_as_it_is_and_anything_else_is_refused(
    model: Path, prompts: Path, tmp_path: Path, asked: list[Any]
) -> None:
    first = making.make(str(model), prompts, "fp8", tmp_path / "q")
    assert making.make(str(model), prompts, "fp8", tmp_path / "q") == first
    assert len(asked) == 1
    for changed in ({"scheme": "nvfp4"}, {"seed": 8}, {"samples": 3}):
        with pytest.raises(SettingsError, match="was made of something else: choose a new folder"):
            making.make(str(model), prompts, **{"scheme": "fp8", "out": tmp_path / "q"} | changed)
    record = tmp_path / "q" / "quantization.json"
    whole = record.read_text()
    record.write_text(whole[:20])
    with pytest.raises(SettingsError, match="was made of something else"):
        making.make(str(model), prompts, "fp8", tmp_path / "q")
    record.write_text(whole)
    (model / "model.safetensors").write_text("trained again")
    with pytest.raises(SettingsError, match="was made of something else"):
        making.make(str(model), prompts, "fp8", tmp_path / "q")


def test_a_failure_leaves_nothing(model: Path, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def half(*arguments: Any) -> int:
        arguments[3].mkdir()
        raise SettingsError("does not fit")

    monkeypatch.setattr(making, "quantize", half)
    with pytest.raises(SettingsError, match="does not fit"):
        making.make(str(model), prompts, "fp8", tmp_path / "out" / "q")
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("scheme", SCHEMES)
def test_no_recipe_touches_the_head(scheme: str) -> None:
    (quantizer,) = (values for values in SCHEMES[scheme].values() if "scheme" in values)
    assert (quantizer["targets"], quantizer["ignore"]) == (["Linear"], ["lm_head"])


def test_what_is_wrong_is_named(model: Path, prompts: Path, tmp_path: Path, asked: list[Any]) -> None:
    with pytest.raises(SettingsError, match="nowhere is no model folder"):
        making.make("./nowhere", prompts, "fp8", tmp_path / "q")
    with pytest.raises(SettingsError, match="--samples 0: a recipe is calibrated with at least one prompt"):
        making.make(str(model), prompts, "fp8", tmp_path / "q", samples=0)
    with pytest.raises(SettingsError, match="No such file"):
        making.make(str(model), tmp_path / "absent.jsonl", "fp8", tmp_path / "q")
    prompts.write_text('{"messages": "hello"}\n')
    with pytest.raises(SettingsError, match="line 1"):
        making.make(str(model), prompts, "fp8", tmp_path / "q")
    write_requests(prompts, [Request(id="1", messages=[])])
    (model / "model.safetensors").rename(model / "model.gguf")
    with pytest.raises(SettingsError, match="only such weights can be quantized"):
        making.make(str(model), prompts, "fp8", tmp_path / "q")
    assert asked == []


def test_a_quantized_base_is_never_folded_into(model: Path, tmp_path: Path) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_model.safetensors").write_text("deltas")
    folded = making.sha256_file(adapter / "adapter_model.safetensors")
    (model / "quantization.json").write_text(json.dumps({"adapter_sha256": folded}))
    assert merged_model(str(model), str(adapter), folder=tmp_path / "merged") == str(model)
    (model / "quantization.json").write_text(json.dumps({"adapter_sha256": None}))
    with pytest.raises(ModelError, match="is quantized and takes no adapter any more: make it again with --adapter"):
        merged_model(str(model), str(adapter), folder=tmp_path / "merged")


def test_without_the_environment_the_command_says_how_to_make_it(
    monkeypatch: pytest.MonkeyPatch, model: Path, prompts: Path
) -> None:
    stages: list[Any] = []
    monkeypatch.setattr("include.generation.child.run_child", stages.append)
    monkeypatch.setenv("LISTING_QUANTIZE_PYTHON", "/nowhere/python")
    arguments = ["--model", str(model), "--prompts", str(prompts), "--scheme", "fp8", "--out", "q"]
    monkeypatch.setattr(sys, "argv", ["x", "make", *arguments])
    runpy.run_module("include.quantization", run_name="__main__")
    with pytest.raises(SettingsError, match="make quantize-env"):
        stages[0]()
    gone: list[Any] = []
    monkeypatch.setattr("include.generation.child.os.execve", lambda *command: gone.append(command))
    monkeypatch.setenv("LISTING_QUANTIZE_PYTHON", __file__)
    runpy.run_module("include.quantization", run_name="__main__")
    python, command, environment = gone[0]
    assert (python, command) == (Path(__file__), [__file__, "-m", "include.quantization", "make", *arguments])
    # that one lacks the packages, too: a wrapper script, say, around this very interpreter
    monkeypatch.setenv("LISTING_TRIED_PYTHON", environment["LISTING_TRIED_PYTHON"])
    runpy.run_module("include.quantization", run_name="__main__")
    assert len(gone) == 1
    with pytest.raises(SettingsError, match="requirements-quantize"):
        stages[-1]()
