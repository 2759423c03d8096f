"""What the documents promise is there: commands, files, settings keys, links."""

import re
import subprocess
from pathlib import Path

import pytest

from include.settings import load_settings

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def targets() -> set[str]:
    return set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_make_command_and_link_exists(document: Path) -> None:
    text = document.read_text()
    commands = set(re.findall(r"`make ([a-z]+)[ `]", text)) | set(re.findall(r"^make ([a-z]+)", text, re.M))
    assert commands <= targets()
    for link in re.findall(r"\]\((?!https?:)([^)#]+)", text):
        assert (document.parent / link).exists(), link
    for module in re.findall(r"python -m (include\.\w+)", text):
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), module


def test_the_annotated_tree_names_what_is_there() -> None:
    readme = (ROOT / "README.md").read_text()
    tree = readme.split("## Where things are")[1].split("```")[1]
    folder = ""
    for line in filter(None, tree.splitlines()):
        name = line.split()[0]
        path = f"{folder}/{name}" if line.startswith(" ") else name
        folder = folder if line.startswith(" ") else name.rstrip("/")
        assert (ROOT / path).exists(), path
    listed = {line.split()[0].rstrip("/") for line in tree.splitlines() if line.startswith("  ")}
    tracked = subprocess.run(["git", "ls-files", "include"], cwd=ROOT, capture_output=True, text=True, check=True)
    parts = {line.split("/")[1] for line in tracked.stdout.splitlines()} - {"__init__.py"}
    assert parts <= listed, "the tree leaves something out"


def test_the_configuration_table_names_keys_that_exist() -> None:
    table = (ROOT / "README.md").read_text().split("## Configuration")[1].split("##")[0]
    settings = load_settings()
    task = next(iter(settings.tasks.values()))
    for key in re.findall(r"`tasks/<task>\.yaml`: `([\w.]+)`", table):
        assert hasattr(task.sampling if key.startswith("sampling.") else task, key.removeprefix("sampling.")), key
    for keys in re.findall(r"`pipeline\.yaml`: (`[^|(]+`)", table):
        for key in re.findall(r"`(\w+)`", keys):
            assert hasattr(settings.pipeline, key), key


def test_every_test_that_the_fault_list_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")))
    written = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    assert len(named) > 10
    assert not {name for name in named if f"def {name}(" not in written}


def test_help_lists_the_commands_that_people_need() -> None:
    done = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    listed = set(re.findall(r"^  make (\S+) ", done.stdout, re.M))
    assert {"help", "run", "preview", "up", "test", "check", "doctor", "clean", "lock", "bench-%"} <= listed
