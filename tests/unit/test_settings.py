"""Configuration: what ships is valid, and every slip of a user is an error that names file, key and fault."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from include.settings import (
    CONFIG_DIR_VARIABLE,
    PROJECT_ROOT,
    TEMPLATES_DIR,
    SettingsError,
    digest,
    load_settings,
    resolve_path,
    template_version,
)

Change = Callable[[str, dict[str, Any]], Path]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(PROJECT_ROOT / "include" / "config", tmp_path / "config"))


@pytest.fixture
def change(folder: Path) -> Change:
    """Sets keys of one file of a copied configuration; a key may be a path such as `gate.margin`."""

    def apply(name: str, changes: dict[str, Any]) -> Path:
        values = yaml.safe_load((folder / name).read_text())
        for path, value in changes.items():
            *parents, last = path.split(".")
            target = values
            for parent in parents:
                target = target[parent]
            target[last] = value
        (folder / name).write_text(yaml.safe_dump(values))
        return folder

    return apply


def test_the_shipped_configuration_is_valid_and_complete() -> None:
    settings = load_settings()
    assert {"title", "description"} <= set(settings.tasks)
    for name, task in settings.tasks.items():
        assert task.name == name
        assert task.engine in settings.engines
        assert task.template_version == template_version(task.template)


def test_settings_survive_storage_with_a_run() -> None:
    settings = load_settings()
    assert type(settings).model_validate_json(settings.model_dump_json()) == settings


@pytest.mark.parametrize(
    ("name", "changes", "complaint"),
    [
        ("tasks/title.yaml", {"gates": {}}, "gates: Extra inputs are not permitted"),
        ("tasks/title.yaml", {"gate.margni": 0.1}, "gate.margni: Extra inputs are not permitted"),
        ("tasks/title.yaml", {"validators.length.max_char": 3}, "validators.length.max_char: Extra inputs"),
        ("engines/cpu-smollm2.yaml", {"max_num_seqs": 8}, "max_num_seqs: Extra inputs"),
        ("pipeline.yaml", {"catalog.tabel": "x"}, "catalog.tabel: Extra inputs"),
        ("judge.yaml", {"rubric": "x"}, "rubric: Extra inputs"),
        ("tasks/title.yaml", {"gate.baseline": 80}, "gate.baseline: Input should be less than or equal to 1"),
        ("tasks/title.yaml", {"gate.min_validator_pass_rate": 97}, "gate.min_validator_pass_rate: Input should be"),
        ("tasks/title.yaml", {"gate.max_reason_share": {"emoji": 5}}, "gate.max_reason_share.emoji: Input should be"),
        ("tasks/title.yaml", {"gate.baseline": 0.1, "gate.margin": 0.2}, "the gate could never fail"),
        ("tasks/title.yaml", {"validators.length.max_chars": 2}, "max_chars 2 is below min_chars 8: no text could"),
        ("tasks/title.yaml", {"output_field": "titel"}, "'titel' is no text field of a listing"),
        ("tasks/title.yaml", {"output_field": "source_updated_at"}, "is no text field of a listing"),
        ("tasks/title.yaml", {"prompt_fields": ["title", "colour"]}, "prompt_fields.1: Value error, 'colour' is no"),
        ("tasks/title.yaml", {"name": "headline"}, "name: comes from the file's name"),
        ("tasks/title.yaml", {"overlong": "truncate"}, "overlong: Input should be 'quarantine' or 'shorten'"),
        (
            "tasks/title.yaml",
            {"routing": {"hosted": "x", "share": {"m": 1.5}}},
            "routing.share.m: Input should be less",
        ),
        (
            "tasks/title.yaml",
            {"routing": {"hosted": "x", "share": {"*": -0.1}}},
            "routing.share.*: Input should be gre",
        ),
        ("tasks/title.yaml", {"routing": {"hosted": "x"}}, "routing.share: Field required"),
        ("engines/cpu-smollm2.yaml", {"batch_size": 16}, "batch_size 16 is below max_num_seqs 64"),
        ("engines/cpu-smollm2.yaml", {"batch_size": 0}, "batch_size: Input should be greater than 0"),
        ("pipeline.yaml", {"max_bins": 2000}, "max_bins: Input should be less than or equal to 1024"),
        ("pipeline.yaml", {"max_bins": 0}, "max_bins: Input should be greater than 0"),
        ("pipeline.yaml", {"holdout_share": {"*": 10}}, "holdout_share.*: Input should be less than or equal to 1"),
    ],
)
def test_a_wrong_key_or_value_names_file_key_and_fault(
    change: Change, name: str, changes: dict[str, Any], complaint: str
) -> None:
    folder = change(name, changes)
    with pytest.raises(SettingsError) as raised:
        load_settings(folder)
    assert str(folder / name) in str(raised.value)
    assert complaint in str(raised.value)


@pytest.mark.parametrize(
    ("profile", "complaint"),
    [
        (None, "tasks/title.yaml names engine profile 'hosted'; there are"),
        ({"kind": "vllm"}, "routing.hosted 'hosted' needs `kind: openai` and a `connection`"),
        ({"connection": None}, "routing.hosted 'hosted' needs"),
        ({"lineage": "smollm2-135m-title"}, "routing.hosted 'hosted' has `engine`'s lineage"),
        ({}, ""),
    ],
)
def test_a_switch_needs_an_endpoint_of_another_lineage(
    change: Change, profile: dict[str, Any] | None, complaint: str
) -> None:
    folder = change("tasks/title.yaml", {"routing": {"hosted": "hosted", "share": {"*": 0.1, "m-17": 0.25}}})
    own = load_settings().engines[load_settings().task("title").engine].lineage
    if profile is not None:
        values = {"kind": "openai", "model": "gpt", "lineage": "gpt", "batch_size": 8, "connection": "api"} | profile
        values["lineage"] = own if "lineage" in profile else "gpt"
        (folder / "engines" / "hosted.yaml").write_text(yaml.safe_dump(values))
    if not complaint:
        assert load_settings(folder).task("title").routes == ("cpu-smollm2-title", "hosted")
        return
    with pytest.raises(SettingsError) as raised:
        load_settings(folder)
    assert complaint in str(raised.value)


def test_every_fault_of_a_file_is_told_at_once(change: Change) -> None:
    folder = change("tasks/title.yaml", {"gate.baseline": 80, "gate.margni": 0.1, "thinkign": True})
    with pytest.raises(SettingsError) as raised:
        load_settings(folder)
    assert all(key in str(raised.value) for key in ("gate.baseline", "gate.margni", "thinkign"))


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"engine: [", "is not YAML"),
        (b"\xff\xfe", "is not YAML"),
        (b"- a list", "must hold keys and values, not a list"),
        (b"engine: a\nengine: b\n", "key 'engine' is given twice"),
        (b"", "engine: Field required"),
    ],
)
def test_a_file_that_is_no_mapping_is_named(folder: Path, content: bytes, complaint: str) -> None:
    (folder / "judge.yaml").write_bytes(content)
    with pytest.raises(SettingsError) as raised:
        load_settings(folder)
    assert "judge.yaml" in str(raised.value)
    assert complaint in str(raised.value)


def test_a_key_given_twice_deep_down_is_an_error(folder: Path) -> None:
    path = folder / "tasks" / "title.yaml"
    path.write_text(path.read_text().replace("  margin:", "  margin: 0.1\n  margin:"))
    with pytest.raises(SettingsError, match="key 'margin' is given twice"):
        load_settings(folder)


def test_a_missing_file_says_which_and_how_to_mend(folder: Path) -> None:
    (folder / "pipeline.yaml").unlink()
    with pytest.raises(SettingsError, match=rf"cannot read .*pipeline\.yaml.*{CONFIG_DIR_VARIABLE}"):
        load_settings(folder)


def test_an_empty_folder_is_no_configuration(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"no enhancement task in .*; add one YAML file per task"):
        load_settings(tmp_path)


@pytest.mark.parametrize(("name", "owner"), [("tasks/title.yaml", "tasks/title"), ("judge.yaml", "judge")])
def test_an_unknown_engine_names_its_owner_and_the_choices(change: Change, name: str, owner: str) -> None:
    folder = change(name, {"engine": "gpu-big"})
    with pytest.raises(SettingsError, match=rf"{owner}.yaml names engine profile 'gpu-big'; there are .*cpu-smollm2"):
        load_settings(folder)


def test_a_template_that_is_not_there_is_found_before_anything_runs(change: Change) -> None:
    with pytest.raises(SettingsError, match=r"no template .*headline\.j2"):
        load_settings(change("tasks/title.yaml", {"template": "headline.j2"}))


def test_the_folder_comes_from_the_environment(change: Change, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CONFIG_DIR_VARIABLE, str(change("pipeline.yaml", {"rows_per_part": 7})))
    assert load_settings().pipeline.rows_per_part == 7


def test_a_new_task_is_one_yaml_file(folder: Path) -> None:
    text = (folder / "tasks" / "title.yaml").read_text()
    (folder / "tasks" / "subtitle.yaml").write_text(text)
    settings = load_settings(folder)
    assert settings.task("subtitle").output_field == "title"
    with pytest.raises(SettingsError, match="no enhancement task 'bullets'; configured are"):
        settings.task("bullets")


def test_a_changed_template_is_a_new_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(TEMPLATES_DIR, tmp_path / "templates")
    monkeypatch.setattr("include.settings.TEMPLATES_DIR", tmp_path / "templates")
    before = template_version("title.j2")
    with open(tmp_path / "templates" / "title.j2", "a") as file:
        file.write(" ")
    assert template_version("title.j2") != before
    assert template_version("judge.j2") == digest((TEMPLATES_DIR / "judge.j2").read_text(), 12)


def test_models_and_paths_resolve_from_the_project_and_not_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Change
) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve_path("build/data") == str(PROJECT_ROOT / "build" / "data")
    assert resolve_path("/data/x") == "/data/x"
    assert resolve_path("s3://bucket/data") == "s3://bucket/data"
    settings = load_settings(change("engines/cpu-smollm2.yaml", {"model": "Qwen/Qwen3-4B"}))
    assert settings.engines["cpu-smollm2"].model_path() == "Qwen/Qwen3-4B"
    local = load_settings(change("engines/cpu-smollm2.yaml", {"model": "./models/mine"}))
    assert local.engines["cpu-smollm2"].model_path() == str(PROJECT_ROOT / "models" / "mine")


def test_a_digest_ignores_the_order_of_keys_and_nothing_else() -> None:
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    assert digest({"a": 1}) != digest({"a": "1"})
    assert digest("Mug \ud83d") != digest("Mug \ud83c")
    assert len(digest("x", 12)) == 12
