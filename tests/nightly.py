"""A whole nightly installation in one temporary folder, for tests: Airflow home, catalog, warehouse, configuration."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import yaml
from sqlalchemy import create_engine, text

PROJECT = Path(__file__).resolve().parents[1]
SAMPLES = PROJECT / "include" / "samples" / "listings.csv"
DAY = "2026-01-14"


def sample_rows(count: int, locale: str = "en-US") -> list[dict[str, str]]:
    """The first `count` sample listings of a locale that have a title and a description of moderate length."""
    with SAMPLES.open(encoding="utf-8", newline="") as file:
        rows = [
            r for r in csv.DictReader(file) if r["locale"] == locale and r["title"] and 40 < len(r["description"]) < 400
        ]
    unique = {(r["title"], r["description"]): r for r in rows}
    return list(unique.values())[:count]


class Nightly:
    """Commands of one installation. Databases are SQLite files in the folder unless `connections` says otherwise."""

    def __init__(self, root: Path, **environment: str) -> None:
        self.root = root
        self.config = root / "config"
        shutil.copytree(PROJECT / "include" / "config", self.config)
        self.edit("pipeline.yaml", lambda c: c | {"data_url": str(root / "data"), "state_url": str(root / "state")})
        self.env = (
            {k: v for k, v in os.environ.items() if not k.startswith(("AIRFLOW", "LISTING_"))}
            | {
                "AIRFLOW_HOME": str(root / "airflow"),
                "AIRFLOW__CORE__DAGS_FOLDER": str(PROJECT / "dags"),
                "AIRFLOW__CORE__PLUGINS_FOLDER": str(PROJECT / "plugins"),
                "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
                "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
                "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
                "AIRFLOW_CONN_MERCHANT_CATALOG": json.dumps({"conn_type": "sqlite", "host": str(root / "catalog.db")}),
                "AIRFLOW_CONN_ADS_WAREHOUSE": json.dumps({"conn_type": "sqlite", "host": str(root / "warehouse.db")}),
                "MERCHANT_CATALOG_URL": f"sqlite:///{root / 'catalog.db'}",
                "ADS_WAREHOUSE_URL": f"sqlite:///{root / 'warehouse.db'}",
                "LISTING_CONFIG_DIR": str(self.config),
                "PYTHONPATH": f"{PROJECT}:{PROJECT / 'plugins'}",
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            }
            | environment
        )

    def edit(self, name: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        """Rewrites one configuration file."""
        path = self.config / name
        path.write_text(yaml.safe_dump(change(yaml.safe_load(path.read_text()))), encoding="utf-8")

    def open_gate(self, task: str) -> None:
        """A handful of rows carries no statistics: this gate asks for completeness only."""
        lenient = {
            "mode": "demo",
            "baseline": 0.02,
            "margin": 0.0199,
            "min_validator_pass_rate": 0.0,
            "min_completeness": 0.5,
            "max_reason_share": {},
            "max_judge_error_share": 1.0,
        }
        self.edit(f"tasks/{task}.yaml", lambda c: c | {"gate": c["gate"] | lenient})

    def command(self, *arguments: str, timeout: int = 600) -> subprocess.CompletedProcess[str]:
        """Runs a program of the environment; its output goes to a log in the folder, too."""
        done = subprocess.run(
            arguments, env=self.env, cwd=self.root, capture_output=True, text=True, timeout=timeout, check=False
        )
        with (self.root / "commands.log").open("a", encoding="utf-8") as log:
            log.write(f"$ {' '.join(arguments)}\n{done.stdout}\n{done.stderr}\n")
        return done

    def module(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.command(sys.executable, "-m", *arguments)

    def set_up(self, rows: Iterable[dict[str, str]]) -> None:
        """Migrates Airflow and the warehouse, loads pools, and fills the catalog."""
        for arguments in (["airflow", "db", "migrate"], ["airflow", "pools", "set", "gpu", "1", "engines"]):
            done = self.command(*arguments)
            assert done.returncode == 0, done.stderr[-2000:]
        self.check("include.warehouse", "migrate")
        self.seed(rows)

    def seed(self, rows: Iterable[dict[str, str]]) -> None:
        rows = list(rows)
        path = self.root / "listings.csv"
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        self.check("include.extraction", "seed-catalog", "--csv", str(path))

    def check(self, *arguments: str) -> str:
        done = self.module(*arguments)
        assert done.returncode == 0, f"{arguments}: {done.stdout[-1500:]}\n{done.stderr[-1500:]}"
        return done.stdout

    def run(self, day: str = DAY, **params: Any) -> subprocess.CompletedProcess[str]:
        """One run of the nightly DAG in this process tree (no scheduler)."""
        return self.command("airflow", "dags", "test", "enhance_listings", day, "--conf", json.dumps(params))

    def summary(self, day: str = DAY) -> dict[str, Any]:
        out = self.root / "summary.json"
        self.check("include.reporting", "show", "--date", day, "--out", str(out))
        found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
        return found

    def query(self, sql: str, **values: Any) -> list[Any]:
        engine = create_engine(self.env["ADS_WAREHOUSE_URL"])
        try:
            with engine.connect() as connection:
                return list(connection.execute(text(sql), values))
        finally:
            engine.dispose()
