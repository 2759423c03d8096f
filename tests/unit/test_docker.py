"""The files of docker/, as far as they can be tried without building or starting anything: they parse, they agree with each
other and with the settings, what they copy and run exists, and they hold no secret."""

from __future__ import annotations

import fnmatch
import importlib.util
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from dockerfile_parse import DockerfileParser

from include.settings import PROJECT_ROOT, PipelineSettings, load_settings, read_settings_file
from listing_operators import gpu

DOCKER = PROJECT_ROOT / "docker"
DOCKERFILES = [DOCKER / "Dockerfile", DOCKER / "Dockerfile.gpu-worker"]
TEMPLATES = [DOCKER / "pod-templates" / "cpu.yaml", DOCKER / "pod-templates" / "gpu.yaml"]
INSTRUCTIONS = {"FROM", "ARG", "COPY", "RUN", "ENV", "USER", "WORKDIR", "CMD", "HEALTHCHECK"}  # all that is needed
SECRET = re.compile(r"PASSWORD|SECRET|KEY|TOKEN|AUTH|CONN(_|$)|BROKER_URL|RESULT_BACKEND")
REFERENCE = re.compile(r"\$\{[A-Z_]+:\?[^}]*\}")
COMPOSE: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text("utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]


def instructions(path: Path) -> list[tuple[str, str]]:
    parser = DockerfileParser(fileobj=path.open("rb"))
    return [(step["instruction"], step["value"]) for step in parser.structure if step["instruction"] != "COMMENT"]


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_a_dockerfile_is_pinned_runs_as_no_root_and_says_how_it_is(path: Path) -> None:
    steps = instructions(path)
    assert {name for name, _ in steps} <= INSTRUCTIONS
    bases = [value for name, value in steps if name == "FROM"]
    assert len(bases) == 1
    assert re.fullmatch(r"[\w/.-]+:[\w.-]*\d+\.\d+\.\d+[\w.-]*", bases[0]), "the base's tag is not a whole version"
    assert [value for name, value in steps if name == "USER"][-1] == "50000:0"  # a number: Kubernetes asks
    assert [name for name, _ in steps].count("HEALTHCHECK") == 1
    for name, value in steps:
        if name in ("CMD", "HEALTHCHECK"):
            assert isinstance(json.loads(value[value.index("[") :]), list), (
                "a shell would stand between the worker and its signals"
            )
        if name == "RUN" and "pip install" in value:
            assert "--no-deps" in value, "the locks are complete"
            assert "--no-cache-dir" in value
        assert not (name in ("ENV", "ARG") and SECRET.search(value))


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_what_a_dockerfile_copies_is_there_and_not_ignored(path: Path) -> None:
    kept = [line[1:] for line in (PROJECT_ROOT / ".dockerignore").read_text().split("\n") if line.startswith("!")]
    sources = [s for name, value in instructions(path) if name == "COPY" for s in value.split()[:-1]]
    assert sources
    for source in sources:
        assert (PROJECT_ROOT / source).exists(), source
        assert any(fnmatch.fnmatch(source, pattern) for pattern in kept), f".dockerignore leaves {source} out"


def test_the_gpu_image_installs_cuda_and_the_other_one_does_not() -> None:
    airflow, worker = ({s for _, v in instructions(path) for s in v.split()} for path in DOCKERFILES)
    assert {"requirements-cpu.txt", "requirements-workers.txt"} <= airflow
    assert {"requirements.txt", "requirements-workers.txt"} <= worker
    base = dict(instructions(DOCKERFILES[0]))["FROM"]
    pin = re.search(r"^apache-airflow==(\S+)", (PROJECT_ROOT / "requirements-cpu.txt").read_text(), re.M)
    assert pin is not None
    assert base == f"apache/airflow:slim-{pin[1]}-python3.11"


def test_every_service_has_a_health_check_or_ends_by_itself() -> None:
    for name, service in SERVICES.items():
        if service.get("restart") == "no":
            assert name == "init"
        else:
            assert service["healthcheck"]["test"], name
    started = {"api-server", "scheduler", "dag-processor", "triggerer", "worker-cpu", "worker-gpu"}
    for name in started:
        assert SERVICES[name]["depends_on"] == {"init": {"condition": "service_completed_successfully"}}, name
    assert {"postgres", "redis", "init"} | started <= set(SERVICES)


def test_no_secret_and_no_address_with_one_stands_in_a_file() -> None:
    for name, service in SERVICES.items():
        assert ":" in service["image"]
        for key, value in service.get("environment", {}).items():
            if SECRET.search(key):
                assert REFERENCE.search(str(value)), f"{name}: {key}"
    for path in filter(Path.is_file, DOCKER.rglob("*")):
        text = REFERENCE.sub("", path.read_text("utf-8"))
        assert not re.search(r"://[^/\s:]*:[^/\s@${]+@", text), f"{path.name} holds a password"
        assert not re.search(
            r"(?i)(password|secret|token|fernet_key)['\"]?[ \t]*[:=][ \t]*['\"]?[A-Za-z0-9+/]{6}", text
        ), path


def test_secrets_and_the_paths_of_a_machine_must_be_given() -> None:
    for text in re.findall(r"\$\{[^}]*\}", re.sub(r"\$\$\{", "", (DOCKER / "compose.yaml").read_text("utf-8"))):
        assert ":?" in text or text == "${GPU_SLOTS:-1}", text


def queues(service: str) -> str:
    command: list[str] = SERVICES[service]["command"]
    return command[command.index("--queues") + 1]


def test_workers_read_the_queues_that_the_settings_and_airflow_name() -> None:
    pipeline = read_settings_file(DOCKER / "pipeline.yaml", PipelineSettings)
    assert gpu.gpu_placement(pipeline)["queue"] == queues("worker-gpu") == "gpu"
    for service in SERVICES.values():
        if "AIRFLOW__OPERATORS__DEFAULT_QUEUE" in service.get("environment", {}):
            assert service["environment"]["AIRFLOW__OPERATORS__DEFAULT_QUEUE"] == queues("worker-cpu")
    for path, service in zip(DOCKERFILES, ("worker-cpu", "worker-gpu"), strict=True):
        assert json.loads(dict(instructions(path))["CMD"])[:5] == SERVICES[service]["command"][:5]
    devices = SERVICES["worker-gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert devices == [{"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}]


def test_without_such_settings_airflow_decides() -> None:
    assert gpu.gpu_placement(load_settings().pipeline) == {"pool": "gpu"}


def test_a_shared_volume_covers_the_folder_of_the_data_url_in_every_service_that_uses_it() -> None:
    pipeline = read_settings_file(DOCKER / "pipeline.yaml", PipelineSettings)
    assert {Path(url).parts[0] for url in (pipeline.data_url, pipeline.state_url)} == {"build"}
    for name in ("init", "api-server", "scheduler", "dag-processor", "triggerer", "worker-cpu", "worker-gpu"):
        targets = [volume.rsplit("}")[-1].strip(":").split(":") for volume in SERVICES[name]["volumes"]]
        assert ["data", "/opt/airflow/build"] in targets, name
        assert ["/opt/airflow/config", "ro"] in targets, name


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_a_pod_template_fits_the_kubernetes_executor(path: Path) -> None:
    pod = yaml.safe_load(path.read_text("utf-8"))
    assert (pod["apiVersion"], pod["kind"], pod["spec"]["restartPolicy"]) == ("v1", "Pod", "Never")
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
    (container,) = pod["spec"]["containers"]
    assert container["name"] == "base"  # the one that Airflow fills in
    images = {service["image"] for service in SERVICES.values() if "build" in service}
    assert container["image"] in images
    assert {mount["name"] for mount in container["volumeMounts"]} == {v["name"] for v in pod["spec"]["volumes"]}
    config = pod["spec"]["volumes"][0]["configMap"]["items"]
    assert all((PROJECT_ROOT / "include" / "config" / item["path"]).is_file() for item in config)


def test_the_gpu_pod_gets_a_gpu_and_time_to_write_its_rows() -> None:
    pod = yaml.safe_load(TEMPLATES[1].read_text("utf-8"))["spec"]
    (container,) = pod["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert pod["nodeSelector"]
    assert {"nvidia.com/gpu", "cloud.google.com/gke-spot"} <= {taint["key"] for taint in pod["tolerations"]}
    *_, script, seconds = container["lifecycle"]["preStop"]["exec"]["command"]
    assert int(seconds) + gpu.GRACE_SECONDS < pod["terminationGracePeriodSeconds"]
    copied = [value.split() for name, value in instructions(DOCKERFILES[1]) if name == "COPY"]
    assert ["docker/pre-stop.sh", script] in copied


def commands() -> dict[str, list[str]]:
    """What the images' services run and how their health is asked for, one command each, by service."""
    found: dict[str, list[str]] = {}
    for name, service in SERVICES.items():
        if "build" not in service:
            continue
        if name == "init":
            for number, line in enumerate(service["command"][-1].strip().split("\n")):
                if not line.startswith("eval"):
                    text = re.sub(r'^urls="\$\$\((.*)\)"$', r"\1", line)
                    found[f"{name} {number}"] = shlex.split(text.replace("$${GPU_SLOTS}", "1"))
            continue
        found[name] = service["command"]
        kind, *test = service["healthcheck"]["test"]
        found[f"{name} health"] = shlex.split(test[0]) if kind == "CMD-SHELL" else test
    return found


COMMANDS = commands()
_PARSE = """
import json, sys
from airflow.cli.cli_parser import get_parser
for words in json.loads(sys.argv[1]):
    get_parser().parse_args(words)
print("PARSED")
"""


def has_celery() -> bool:
    return importlib.util.find_spec("celery") is not None


def test_every_command_names_a_program_or_module_that_is_there() -> None:
    for name, (program, *arguments) in COMMANDS.items():
        if program == "python":
            path = PROJECT_ROOT / arguments[1].replace(".", "/")
            assert (path / "__main__.py").is_file() or path.with_suffix(".py").is_file(), name
        elif program != "celery" or has_celery():
            assert shutil.which(program, path=f"{Path(sys.executable).parent}:/usr/bin:/bin"), name
    assert {program for program, *_ in COMMANDS.values()} == {"airflow", "celery", "curl", "python"}


def test_airflow_knows_its_subcommands_and_options() -> None:
    words = [words[1:] for words in COMMANDS.values() if words[0] == "airflow"]
    assert len(words) == 11
    known = [
        w for w in words if w[0] != "celery" or has_celery()
    ]  # the Celery provider is installed in the images only
    done = subprocess.run(
        [sys.executable, "-c", _PARSE, json.dumps(known)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout.endswith("PARSED\n"), done.stderr[-2000:]


def test_the_warehouse_command_of_init_runs_outside_of_a_container() -> None:
    (words,) = [words for words in COMMANDS.values() if "include.warehouse" in words]
    done = subprocess.run(
        [sys.executable, *words[1:], "--help"], cwd=PROJECT_ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "bring the schema up to date" in done.stdout or "migrate" in done.stdout


def test_pre_stop_ends_a_process_with_an_engine_and_waits_until_its_rows_are_written(tmp_path: Path) -> None:
    code = """
import pathlib, sys, time
from include.generation.child import run_child
def stage():
    pathlib.Path(sys.argv[-1], "started").touch()
    try:
        time.sleep(60)
    finally:
        pathlib.Path(sys.argv[-1], "rows").write_text("written")
    return {}
run_child(stage)
"""
    arguments = ["-m", "include.generation", "run", str(tmp_path)]
    engine = subprocess.Popen([sys.executable, "-c", code, *arguments], cwd=PROJECT_ROOT, start_new_session=True)
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", "-m", "include.reporting"])
    try:
        for _ in range(600):
            if (tmp_path / "started").exists():
                break
            subprocess.run(["sleep", "0.1"], check=True)
        shown = tmp_path / "proc"  # nothing else on this machine may be found
        shown.mkdir()
        for process in (engine, other):
            (shown / str(process.pid)).symlink_to(f"/proc/{process.pid}")
        subprocess.run(["sh", str(DOCKER / "pre-stop.sh"), "60", str(shown)], check=True, timeout=90)
        assert (tmp_path / "rows").read_text() == "written"
        assert engine.wait(timeout=5) == 75  # worth another try
        assert other.poll() is None
    finally:
        for process in (engine, other):
            process.kill()
            process.wait()
