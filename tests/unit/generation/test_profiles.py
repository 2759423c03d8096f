"""What can be known of a profile without an engine: files, quantization, fingerprint, share of the roofline."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from include.generation import preflight
from include.generation.engine import EngineStartError
from include.generation.fingerprint import folder_digest, part_fingerprint
from include.generation.leases import Gpu
from include.generation.preflight import check_profile
from include.generation.roofline import Work, roofline_share
from include.settings import load_settings
from tests.generating import profile


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    path.mkdir()
    (path / "config.json").write_text("{}")
    (path / "model.safetensors").write_bytes(b"weights")
    return path


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.setenv(name, "0")


def test_a_local_model_needs_no_network(folder: Path) -> None:
    check_profile(profile(model=str(folder)))
    assert os.environ["HF_HUB_OFFLINE"] == os.environ["TRANSFORMERS_OFFLINE"] == "1"


def test_a_missing_model_says_how_to_make_it(tmp_path: Path) -> None:
    with pytest.raises(EngineStartError, match=r"no model at .*make prepare") as caught:
        check_profile(profile(model=str(tmp_path / "none")))
    assert (caught.value.kind, caught.value.retryable) == ("model_not_found", False)


def test_pickled_weights_are_not_loaded(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(EngineStartError, match=r"no \*\.safetensors"):
        check_profile(profile(model=str(folder)))
    check_profile(profile(model=str(folder), engine_args={"load_format": "dummy"}))


def test_a_hub_model_needs_a_pinned_revision() -> None:
    with pytest.raises(EngineStartError, match="pin a commit"):
        check_profile(profile(model="acme/model"))


def test_no_egress_is_told_in_seconds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import huggingface_hub

    def unreachable(*_: object, **__: object) -> None:
        raise ConnectionError("Name or service not known")

    monkeypatch.setattr(huggingface_hub, "model_info", unreachable)
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_, **__: None)
    with pytest.raises(EngineStartError, match="hub cannot be reached") as caught:
        check_profile(profile(model="acme/model", revision="a" * 40))
    assert (caught.value.kind, caught.value.retryable) == ("no_egress", True)


@pytest.mark.parametrize(
    ("scheme", "capability", "refused"),
    [("fp8", 80, True), ("fp8", 89, False), ("nvfp4", 90, True), ("nvfp4", 100, False), (None, 75, False)],
)
def test_a_scheme_below_its_compute_capability_is_refused(
    monkeypatch: pytest.MonkeyPatch, folder: Path, scheme: str | None, capability: int, refused: bool
) -> None:
    monkeypatch.setattr(preflight, "is_cpu_build", lambda: False)
    monkeypatch.setattr(preflight, "visible_gpus", lambda: [Gpu(0, "GPU-0", "some", capability, 8e4, 0.0, ())])
    arguments = {"quantization": scheme} if scheme else {}
    named = profile(model=str(folder), engine_args=arguments)
    (folder / "config.json").write_text(
        json.dumps(
            {"quantization_config": {"quant_method": "modelopt", "quant_algo": scheme.upper()}} if scheme else {}
        )
    )
    for found in (named, profile(model=str(folder))):  # named by the profile, or by the checkpoint itself
        if refused:
            with pytest.raises(EngineStartError, match="needs compute capability") as caught:
                check_profile(found, device=True)
            assert (caught.value.kind, caught.value.retryable) == ("unsupported_quantization", False)
        else:
            check_profile(found, device=True)


def test_the_fingerprint_follows_content_and_not_the_machine(folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "elsewhere"))
    os.utime(copy / "config.json", (1, 1))
    assert folder_digest(str(copy)) == folder_digest(str(folder))
    (copy / "model.safetensors").write_bytes(b"Weights")
    assert folder_digest(str(copy)) != folder_digest(str(folder))


def test_the_fingerprint_names_what_changes_an_answer(folder: Path) -> None:
    task = load_settings().task("title")
    base = profile(model=str(folder))
    same = [
        {"batch_size": 99},
        {"engine_args": {"max_num_seqs": 2, "gpu_memory_utilization": 0.5}},
        {"submit": "closed"},
    ]
    other = [
        {"engine_args": {"quantization": "fp8"}},
        {"engine_args": {"kv_cache_dtype": "fp8"}},
        {"sampling_params": {"top_p": 0.9}},
        {"revision": "b" * 40},
        {"lora": str(folder)},
    ]
    prints = [part_fingerprint(base.model_copy(update=change), task) for change in same]
    assert set(prints) == {part_fingerprint(base, task)}
    changed = [part_fingerprint(base.model_copy(update=change), task) for change in other]
    assert len({*changed, *prints}) == len(other) + 1
    for change in ({"template": "description.j2"}, {"thinking": True}, {"overlong": "shorten"}):
        assert part_fingerprint(base, task.model_copy(update=change)) not in prints


QWEN3_4B = {
    "num_hidden_layers": 36, "hidden_size": 2560, "intermediate_size": 9728, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
}  # fmt: skip


@pytest.mark.parametrize("scheme", ["bitsandbytes", "awq", "nvfp4"])
def test_one_sequence_at_a_time_waits_for_the_weights_in_their_own_width(folder: Path, scheme: str) -> None:
    (folder / "config.json").write_text(json.dumps(QWEN3_4B))
    alone = profile(model=str(folder), batch_size=1, engine_args={"max_num_seqs": 1})
    four_bits = profile(model=str(folder), batch_size=1, engine_args={"max_num_seqs": 1, "quantization": scheme})
    wide, narrow = (
        roofline_share(p, "NVIDIA H200", seconds=1, work=Work(16, 16, 0)) for p in (alone, four_bits)
    )  # fmt: skip
    # 3.63e9 weights at 2 or 0.5 bytes, and 0.39e9 of the head at 2 bytes either way
    assert wide
    assert narrow
    assert narrow / wide == pytest.approx((3.63 * 0.5 + 0.78) / (3.63 * 2 + 0.78), rel=0.01)


def test_the_roofline_of_a_4b_model_is_where_arithmetic_puts_it(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps(QWEN3_4B))
    titles = 1000
    share = roofline_share(
        profile(model=str(folder), batch_size=1024, engine_args={"max_num_seqs": 512}),
        "NVIDIA H200",
        seconds=titles / 365,
        work=Work(titles * (250 - 96 + 16), titles * 16, 258),
    )
    # By hand: 3.63e9 weights x 2 x 170 tokens + 0.39e9 of the head x 2 x 16 tokens + 4 x 147,456 x 258 attended tokens x 170
    # tokens = 1.27e12 operations a title; 989e12 / 1.27e12 = 777 titles/s at best.
    assert share == pytest.approx(365 / 777, rel=0.02)
    two = profile(model=str(folder), batch_size=1024, engine_args={"max_num_seqs": 512, "tensor_parallel_size": 2})
    work = Work(titles * (250 - 96 + 16), titles * 16, 258)
    assert roofline_share(two, "NVIDIA H200", seconds=titles / 365, work=work) == pytest.approx(share / 2, rel=0.01)
    unknown = roofline_share(profile(model=str(folder)), "NVIDIA X1", seconds=1, work=Work(1, 1, 1))
    assert unknown is None
