"""A shadow run on the real CPU engine: the sample catalog, whose reference copy in the synthetic world is the incumbent's."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from include.batch.results import completion, result_line
from include.distillation import copywriting, merchants
from include.distillation.world import Product
from include.generation.engine import Output
from include.records import WorkItem
from include.runs import Run
from tests.batching import jsonl
from tests.nightly import DAY, PROJECT, Nightly, sample_rows

pytestmark = [pytest.mark.engine, pytest.mark.long]
Key = tuple[str, str]


def products(monkeypatch: pytest.MonkeyPatch) -> dict[Key, Product]:
    """The facts that each listing of the sample catalog states, by merchant and listing id; copies and broken rows have none."""
    found: dict[Key, Product] = {}
    render = merchants.render

    def remember(*arguments: Any, **ids: str) -> Any:
        listing, product = render(*arguments, **ids)
        found[listing.merchant_id, listing.listing_id] = product
        return listing, product

    with monkeypatch.context() as patch:
        patch.setattr(merchants, "render", remember)
        merchants.sample_catalog()
    return found


def reference(product: Product, number: int) -> str:
    return copywriting.write("title", product, random.Random(number), "held_out")


def write_results(path: Path, run: Run, facts: dict[Key, Product]) -> int:
    """The incumbent's result file, as the Batch API writes it; returns its lines."""
    texts = {
        item.text_id: reference(facts[item.merchant_id, item.listing_id], number)
        for number, item in enumerate(run.store.read_rows(run.work_parts("title", 0), WorkItem))
    }
    bodies = {
        key: completion(Output(id=key, text=text, finish_reason="stop", prompt_tokens=300, output_tokens=15), "gpt-x", key, "x")
        for key, text in texts.items()
    }  # fmt: skip
    path.write_bytes(jsonl(*(result_line(key, key, body) for key, body in bodies.items())))
    return len(bodies)


def test_our_copy_beside_the_reference_copy_of_the_sample_catalog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts, nightly = products(monkeypatch), Nightly(tmp_path)
    rows = [row for row in sample_rows(60) if (row["merchant_id"], row["listing_id"]) in facts]
    nightly.set_up(rows)
    url = nightly.check("include.runs", "open", "--run-id", "shadowed", "--date", DAY, "--task", "title").strip()
    nightly.check("include.extraction", "run", "--run-dir", url)
    run, results = Run.open(url), tmp_path / "results.jsonl"
    lines = write_results(results, run, facts)
    assert lines >= 30
    common = ["--run-dir", url, "--task", "title", "--incumbent", str(results)]

    # Work items alone: our copy is written for the sample.
    nightly.check("include.batch", "shadow", *common, "--out", str(tmp_path / "few"), "--listings", "6")
    few = json.loads((tmp_path / "few" / "shadow.json").read_text())
    assert (few["listings"], few["texts"]) == (6, None)
    assert few["costs"]["ours"]["gpu_seconds"] > 0
    assert few["verdict"] != "not_worse"  # six pairs carry no less

    # A finished run, by the command and by the DAG.
    nightly.check("include.generation", "run", "--run-dir", url, "--task", "title", "--bin", "0")
    nightly.check("include.validation", "run", "--run-dir", url, "--task", "title", "--bin", "0")
    out = tmp_path / "out"
    nightly.check("include.batch", "shadow", *common, "--out", str(out))
    found = json.loads((out / "shadow.json").read_text())
    assert found["texts"] == {"both": lines}
    assert found["custom_ids"] == {"answered": lines}
    assert found["accepted"]["incumbent"] >= 0.9 * lines  # the reference copy is what the validators want
    assert 0 < found["judge"]["sides"]["incumbent"]["judged"] <= found["accepted"]["incumbent"]
    assert found["calibration"]
    assert found["verdict"] in ("not_worse", "worse", "undecided")
    assert found["why"]
    assert found["drift"]["words"]["ci95"]

    before = (out / "shadow.json").read_bytes()
    again = nightly.check("include.batch", "shadow", *common, "--out", str(out))
    assert "starting engine" not in again
    assert (out / "shadow.json").read_bytes() == before

    folders = set((PROJECT / "build" / "shadow").glob("*"))
    conf = json.dumps({"run_dir": url, "task": "title", "incumbent": str(results)})
    done = nightly.command("airflow", "dags", "test", "shadow_run", "--conf", conf)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    (made,) = set((PROJECT / "build" / "shadow").glob("*")) - folders
    try:
        same = json.loads((made / "shadow.json").read_text())
        assert (same["texts"], same["accepted"]) == (found["texts"], found["accepted"])
        assert (made / "shadow.html").is_file()
    finally:
        shutil.rmtree(made)
