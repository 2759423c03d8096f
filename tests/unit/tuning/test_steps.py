"""Accounting of a step's time, over traces small enough to add up by hand."""

from __future__ import annotations

from typing import Any

import pytest

from include.tuning.steps import account, kind_of


def step(ts: float, dur: float, prompts: tuple[int, int], decodes: tuple[int, int], cat: str) -> dict[str, Any]:
    name = f"execute_context_{prompts[0]}({prompts[1]})_generation_{decodes[0]}({decodes[1]})"
    return {"cat": cat, "name": name, "ts": ts, "dur": dur}


def kernel(ts: float, dur: float, name: str, cat: str = "kernel") -> dict[str, Any]:
    return {"cat": cat, "name": name, "ts": ts, "dur": dur}


def trace() -> list[dict[str, Any]]:
    """Prefill of 10 ms, mixed of 8 ms, decodes of 4 and 6 ms; the last step only ends the one before it. Microseconds."""
    gpu = "gpu_user_annotation"
    return [
        step(0, 9_000, (2, 700), (0, 0), gpu),
        kernel(0, 6_000, "nvjet_tst_128x256"),
        kernel(6_000, 3_000, "flash_fwd_splitkv"),
        step(10_000, 7_000, (1, 300), (2, 2), gpu),
        kernel(10_000, 5_000, "cutlass_gemm"),
        kernel(15_000, 1_000, "reshape_and_cache_flash_kernel"),
        step(18_000, 3_000, (0, 0), (3, 3), gpu),
        kernel(18_000, 2_000, "nvjet_tst_64x8"),
        kernel(21_000, 500, "Memcpy DtoH", "gpu_memcpy"),
        step(22_000, 3_000, (0, 0), (5, 5), gpu),
        kernel(22_000, 3_000, "nvjet_tst_64x8"),
        step(28_000, 3_000, (0, 0), (5, 5), gpu),
        {"cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 90_000},
        {"cat": "user_annotation", "name": "execute_context_9(9)_generation_9(9)", "ts": 2, "dur": 1},
        {"ph": "M", "name": "process_name"},
    ]


def test_steps_are_told_apart_and_their_gaps_counted() -> None:
    found = account(trace()[::-1])  # a trace is in no order
    assert set(found) == {"prefill", "mixed", "decode"}
    assert found["prefill"]["ms"] == 10
    assert found["prefill"]["busy_share"] == 0.9
    assert found["mixed"]["ms"] == 8
    assert found["mixed"]["busy_ms"] == 6
    assert (found["mixed"]["sequences"], found["mixed"]["tokens"]) == (3, 302)
    assert (found["prefill"]["sequences"], found["prefill"]["tokens"]) == (2, 700)


def test_decode_figures_are_medians_and_the_last_step_has_no_end() -> None:
    decode = account(trace())["decode"]
    assert decode["steps"] == 2
    assert decode["ms"] == 5
    assert decode["busy_ms"] == pytest.approx((2.5 + 3.0) / 2)
    assert decode["busy_share"] == 0.55
    assert decode["tokens"] == 4
    assert decode["ms_by_kind"] == {"matrix product": 2.5, "copy": 0.25}


def test_kernels_before_the_first_step_belong_to_none() -> None:
    early = kernel(-5_000, 4_000, "nvjet_tst_128x256")
    assert account([early, *trace()]) == account(trace())


def test_without_kernels_the_host_ranges_count() -> None:
    found = account([
        step(0, 3_000, (1, 50), (0, 0), "user_annotation"),
        step(4_000, 1_000, (0, 0), (1, 1), "user_annotation"),
        step(6_000, 1_000, (0, 0), (1, 1), "user_annotation"),
    ])  # fmt: skip
    assert found["prefill"]["busy_share"] == 0.75
    assert found["decode"]["busy_share"] == 0.5
    assert found["decode"]["ms_by_kind"] == {}


def test_an_empty_trace_has_no_steps() -> None:
    assert account([]) == {}


@pytest.mark.parametrize(
    ("kernel_name", "kind"),
    [
        ("void flash_fwd_splitkv_kernel", "attention"),
        ("void flashinfer::FP8PrefillWithKVCacheKernel<flashinfer::Params>", "attention"),
        ("kernel_mha(unsigned int, float, float const*)", "attention"),
        ("nvjet_hsh_192x128", "matrix product"),
        ("void cutlass::device_kernel<vllm::cutlass_3x_gemm_sm90_fp8<...>>", "matrix product"),
        ("void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16>", "cache write"),
        ("void vllm::scaled_fp8_quant_kernel_strided_group_shape", "quantize"),
        ("triton_red_fused__to_copy_abs_clamp_cutlass_scaled_mm_max_mul_2", "quantize"),
        ("triton_tem_fused_mm_3", "matrix product"),
        ("triton_tem_fused_flex_attention_0", "attention"),
        ("_w8a8_triton_block_scaled_mm", "matrix product"),
        ("void marlin::Marlin<...>", "matrix product"),
        ("triton_poi_fused_5", "norm, activation, rotary"),
        ("triton_red_fused_fused_add_rms_norm_3", "norm, activation, rotary"),
        ("rms_norm_kernel", "norm, activation, rotary"),
        ("_gumbel_sample_kernel", "sampling"),
        ("void at::native::unrolled_elementwise_kernel<at::native::direct_copy>", "copy"),
        ("unheard_of", "other"),
    ],
)
def test_kernels_have_kinds(kernel_name: str, kind: str) -> None:
    assert kind_of(kernel_name) == kind
