"""The page of a tuning run says what the run's files say, whatever is missing and whatever a name holds."""

from __future__ import annotations

import json
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from include.generation.engine import Request
from include.generation.roofline import Ceilings
from include.judging.costs import LISTINGS_PER_DAY
from include.settings import EngineProfile, digest
from include.tuning.__main__ import main
from include.tuning.plan import TuningSettings, baseline_of
from include.tuning.report import write_report
from include.tuning.run import TuningRun, open_folder
from include.tuning.trials import write_json

CEILINGS = Ceilings(800e12, 1500e12, 4e12, "measured on NVIDIA H200")
SHAPE = {"num_hidden_layers": 28, "hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 8,
         "head_dim": 128, "intermediate_size": 3072, "vocab_size": 151936}  # fmt: skip
NASTY = "<script>alert(1)</script> $x$"
STEPS = {
    "decode": {"steps": 40, "ms": 9.5, "busy_ms": 7.6, "busy_share": 0.8, "sequences": 512, "tokens": 512,
               "kernels": 300, "ms_by_kind": {"attention": 4.1, "matrix product": 3.5}},
    "mixed": {"steps": 9, "ms": 21.25, "busy_ms": 20.0, "busy_share": 0.941, "sequences": 530, "tokens": 4096,
              "kernels": 320, "ms_by_kind": {"matrix product": 14.0, "attention": 6.0}},
}  # fmt: skip
QUALITY = {"candidates": {
    "fp8": {"pass_rate": 0.941, "ci95": [0.91, 0.963], "incumbent_pass_rate": 0.947, "difference": -0.006,
            "difference_ci95": [-0.015, 0.004], "holds": True, "why": "no fall beyond the margin"},
    "bf16": {"pass_rate": 0.947, "ci95": [0.917, 0.967], "incumbent_pass_rate": 0.947, "difference": 0.0,
             "difference_ci95": [-0.008, 0.008], "holds": True, "why": "the same weights"},
}}  # fmt: skip


def row(base: EngineProfile, name: str, rate: float, cell: tuple[int, int, int, str] | None, **more: Any) -> dict:
    names = ("max_num_seqs", "max_num_batched_tokens", "batch_size", "submit")
    count = more.pop("requests", 2_000)
    return {
        "key": f"{name}{cell}{count}", "candidate": name, "stage": "search" if cell else "final", "repeat": 0,
        "cell": dict(zip(names, cell, strict=True)) if cell else None, "requests": count, "errors": 0,
        "seconds": round(count / rate, 3), "requests_per_s": rate, "prompt_tokens": 400 * count,
        "cached_tokens": 150 * count, "output_tokens": 60 * count, "latency_p50_s": 1.0, "latency_p95_s": 7.25,
        "peak_gpu_memory_mb": 102_400, "preemptions": 3, "acceptance_length": 1.75, "engine_start_s": 41.5,
        "engine": {"device": "NVIDIA H200", "dtype": "torch.bfloat16", "max_num_seqs": 1024},
        "profile": base.model_dump(mode="json"),
    } | more  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two candidates and one that never starts; the rates are made up."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(SHAPE))
    base = EngineProfile(name="gpu", model=str(tmp_path / "model"), lineage="l", batch_size=1024,
                         engine_args={"max_num_seqs": 1024, "dtype": "bfloat16"})  # fmt: skip
    fp8 = base.model_copy(update={"engine_args": {**base.engine_args, "quantization": "fp8"}})
    tuning = TuningSettings.model_validate({
        "grid": {"max_num_seqs": [256, 512], "max_num_batched_tokens": [8192]},
        "candidates": [{"name": name} for name in ("bf16", "fp8", "slow", NASTY)],
        "probe_requests": 1_024, "gpu_hour_price": 3.5, "hosted_price_per_million": {"title": 120.0}, "hosted_price_source": "a price list",
    })  # fmt: skip
    prompts = [
        Request(id=str(n), messages=[{"role": "user", "content": "t"}], sampling_params={}) for n in range(2_000)
    ]
    open_folder(tmp_path / "run", "title", base, tuning, prompts)
    baseline = baseline_of(base, tuning)
    rows = [row(baseline, "baseline", rate, None) for rate in (151.25, 150.0, 152.5)]
    rows += [row(base, "bf16", rate, (*cell, "refill"), requests=1_024)
             for rate, cell in ((171.5, (256, 8192, 256)), (180.75, (256, 8192, 512)))]  # fmt: skip
    rows += [row(base, "bf16", 202.0, (512, 8192, 512, "closed"), requests=1_024, error="CUDA out of memory")]
    rows += [row(base, "bf16", 260.0, (256, 8192, 512, "refill")), row(fp8, "fp8", 300.5, (256, 8192, 512, "refill"))]
    rows += [row(fp8, "fp8", 222.0, (256, 8192, 512, "refill"), requests=1_024)]
    rows += [row(base, "slow", 111.0, (256, 8192, 512, "refill"), requests=1_024)]
    rows += [row(base, NASTY, 1.0, (256, 8192, 512, "refill"), requests=1_024, error=f"no kernel for {NASTY}")]
    rows += [row(fp8, "fp8", rate, None) for rate in (302.5, 301.0, 305.0)]
    rows += [row(base, "bf16", rate, None) for rate in (255.0, 258.0, 256.5)]
    (tmp_path / "run" / "measurements.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    write_json(tmp_path / "run" / "ceilings.json", {name: getattr(CEILINGS, name) for name in CEILINGS.__slots__})
    write_json(tmp_path / "run" / "result.json", TuningRun(tmp_path / "run").result())
    write_json(tmp_path / "run" / "steps.json", STEPS)
    write_json(tmp_path / "run" / "quality.json", QUALITY)
    return tmp_path / "run"


def cells(page: str, label: str) -> list[str]:
    """The texts of the first table row that begins with a label."""
    line = page[page.index(f"<td>{label}</td>") :].split("</tr>")[0]
    return [unescape(part.split("</td>")[0].split(">", 1)[1]) for part in line.split("<td")[1:]]


def test_the_summary_says_what_the_result_says(folder: Path) -> None:
    page = write_report(folder).read_text()
    result = json.loads((folder / "result.json").read_text())
    columns = [result["baseline"], *result["finalists"]]
    assert [column["candidate"] for column in columns] == ["baseline", "fp8", "bf16"]
    assert cells(page, "requests/s, median")[1:] == ["151.2", "302.5", "256.5"]
    assert cells(page, "requests/s, every repeat")[2] == "302.5, 301, 305"
    low, high = result["finalists"][0]["ratio_ci95"]
    assert cells(page, "ratio to baseline")[1:3] == ["1.000", "2.000"]
    assert cells(page, "its 95% interval")[1:3] == ["-", f"{low:.3f} to {high:.3f}"]
    assert cells(page, "output tokens/s")[2] == f"{60 * 302.5:,.0f}"
    assert cells(page, "prefix-cache hits")[1] == "37.5%"
    assert cells(page, "peak GPU memory, GiB")[1] == "100"
    assert cells(page, "p95 seconds to an answer")[1] == "7.25"
    assert cells(page, "preemptions since engine start")[1] == "3"
    assert cells(page, "tokens a step, speculative decoding")[1] == "1.75"
    assert cells(page, "engine start, seconds")[1] == "41.5"
    shares = [f"{100 * column['roofline_share']:.1f}%" for column in columns]
    assert cells(page, "share of the roofline")[1:] == shares
    settings = page[page.index("<h3>Engine settings</h3>") :]
    assert cells(settings, "quantization")[1:] == ["-", "fp8", "-"]
    assert cells(settings, "max_num_seqs")[1:] == ["(1024)", "1024", "1024"]
    assert cells(settings, "batch_size")[1:] == ["2000", "1024", "1024"]
    assert "NVIDIA H200" in page
    assert "2000 prompts" in page


def test_the_page_says_what_may_be_promoted_or_why_nothing_is(folder: Path) -> None:
    assert "Choice:</b> nothing is promoted: the incumbent was not measured" in write_report(folder).read_text()
    result = json.loads((folder / "result.json").read_text())
    fp8 = result["finalists"][0]
    write_json(folder / "result.json", result | {"incumbent": result["baseline"] | {"candidate": "incumbent"}})
    assert "quality of fp8 was not compared: run" in write_report(folder).read_text()
    judged = QUALITY["candidates"]["fp8"] | {"profile": digest(fp8["profile"])}
    write_json(folder / "quality.json", {"candidates": {"fp8": judged}})
    low, high = fp8["ratio_ci95"]
    told = f"Choice:</b> fp8 may be promoted: 2.0 ({low} to {high}) times the incumbent, and no fall beyond the margin.</p>"
    assert told in write_report(folder).read_text()


def test_a_dot_lies_below_its_roof_by_the_stated_share(folder: Path) -> None:
    result = json.loads((folder / "result.json").read_text())
    for column in (result["baseline"], *result["finalists"]):
        flops = CEILINGS.flops_8bit if column["candidate"] == "fp8" else CEILINGS.flops
        roof = min(flops, column["intensity"] * CEILINGS.bytes_per_s)
        achieved = column["operations_per_request"] * column["requests_per_s"]
        assert achieved / roof == pytest.approx(column["roofline_share"], rel=0.01)


def test_the_grid_shows_the_best_look_and_marks_failures(folder: Path) -> None:
    page = write_report(folder).read_text()
    grid = page[page.index("<h2>The grid</h2>") : page.index("<details>")]
    assert "180.8<small>512, refill" in grid
    assert "171.5" not in grid  # the same cell under a narrower window
    assert "260" not in grid  # a longer measurement
    assert grid.count(">failed<") == 2
    failed = page[page.index("<h3>Failures</h3>") : page.index("<h2>The grid</h2>")]
    assert "CUDA out of memory" in failed
    assert "512 × 8192, window 512, closed" in failed


def test_candidates_are_compared_by_measurements_of_one_length(folder: Path) -> None:
    page = write_report(folder).read_text()
    ranked = page[page.index("What helped") :]
    rate, against, below, measured, _ = cells(ranked, "bf16")[1:]
    assert (rate, below, measured) == ("256.5", f"{100 * (1 - 256.5 / 302.5):.1f}%", "median of 3 × 2000 prompts")
    assert against.startswith(f"{256.5 / 302.5:.3f} (0.8")
    assert cells(ranked, "slow")[1:5] == ["111", "0.500", "50.0%", "first look, 1024 prompts"]
    places = [ranked.index(f"<td>{name}</td>") for name in ("fp8", "bf16", "slow")]
    assert places == sorted(places)


def test_names_and_reasons_are_escaped(folder: Path) -> None:
    page = write_report(folder).read_text()
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert f"no kernel for {NASTY}" in unescape(page)


def test_cost_and_machines_follow_from_the_rate(folder: Path) -> None:
    page = write_report(folder).read_text()
    price = 3.5 / 3600 / 302.5 * 1e6
    gpus = -(-LISTINGS_PER_DAY // int(302.5 * 86_400))
    assert cells(page[page.index("<h2>Cost</h2>") :], "fp8")[1:] == [f"{price:.4g}", f"{120 / price:.4g}", f"{gpus}"]
    assert "a price list" in page


def test_quality_and_steps_are_shown(folder: Path) -> None:
    page = write_report(folder).read_text()
    quality = page[page.index("<h2>Quality</h2>") :]
    assert cells(quality, "fp8 °")[1:5] == ["1.000", "94.1% (91.0% to 96.3%)", "94.7%", "-0.6 (-1.5 to +0.4)"]
    assert cells(quality, "decode")[1:] == ["40", "9.5", "80.0%", "512", "512", "4.1", "3.5", "1.9"]
    assert cells(quality, "mixed")[-3:] == ["6", "14", "1.25"]
    assert page.count("data:image/png;base64,") == 3


def test_a_finalist_whose_copy_could_not_be_compared_is_named(folder: Path) -> None:
    quality = json.loads((folder / "quality.json").read_text())
    write_json(folder / "quality.json", quality | {"failed": {"awq": "include.generation ended with status 78"}})
    assert (
        "The copy of awq could not be compared: include.generation ended with status 78"
        in write_report(folder).read_text()
    )
    write_json(folder / "quality.json", {"candidates": {}, "failed": {"awq": "status 78"}})
    page = write_report(folder).read_text()
    assert "The copy of awq could not be compared" in page
    assert "Quality was not measured" not in page


def test_a_page_without_optional_files_says_what_is_missing(folder: Path) -> None:
    for name in ("steps.json", "quality.json", "ceilings.json"):
        (folder / name).unlink()
    plan = json.loads((folder / "plan.json").read_text())
    plan["tuning"] |= {"gpu_hour_price": 0.0, "hosted_price_per_million": {}}
    write_json(folder / "plan.json", plan)
    page = write_report(folder).read_text()
    assert "Quality was not measured in this run" in page
    assert "No step was profiled" in page
    assert "Ceilings: data sheet" in page
    assert "price of a million listings" not in page


def test_a_run_in_which_every_finalist_failed_has_a_page(folder: Path) -> None:
    result = json.loads((folder / "result.json").read_text())
    blank = {"rates": [], "requests_per_s": None, "ratio": None, "ratio_ci95": None, "roofline_share": None,
             "latency_p95_s": None, "peak_gpu_memory_mb": None, "engine": None, "engine_start_s": None}  # fmt: skip
    result["finalists"] = [{**row, **blank} for row in result["finalists"]]
    write_json(folder / "result.json", result)
    page = write_report(folder).read_text()
    assert "No finalist could be measured" in page
    assert cells(page, "requests/s, median")[1:] == ["151.2", "-", "-"]


def test_prompts_asked_twice_are_a_warning(folder: Path) -> None:
    assert "asks each prompt" not in write_report(folder).read_text()
    result = json.loads((folder / "result.json").read_text())
    write_json(folder / "result.json", result | {"prompts": 500})
    assert "asks each prompt 4 times" in write_report(folder).read_text()


def test_the_command_writes_the_page_or_says_what_to_do(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", "--dir", str(folder)]) == 0
    assert capsys.readouterr().out.strip() == str(folder / "report.html")
    assert main(["report", "--dir", str(tmp_path)]) == 2
    assert "holds no finished tuning run" in capsys.readouterr().err
