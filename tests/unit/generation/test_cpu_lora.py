"""Our LoRA operations for the CPU against vLLM's own: the same numbers for rows with an adapter, none for rows without."""

from __future__ import annotations

import inspect

import pytest
import torch

from include.generation import cpu_lora

lora_ops = pytest.importorskip("vllm.lora.ops.torch_ops.lora_ops")

ADAPTERS, TOKENS, RANK, HIDDEN, OUT = 3, 11, 8, 24, 40


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


INDICES = {
    "one adapter": torch.tensor([1] * TOKENS),
    "mixed": torch.tensor([0, 2, 2, 1, 0, 1, 1, 2, 0, 0, 2]),
}


@pytest.mark.parametrize("indices", INDICES.values(), ids=INDICES)
@pytest.mark.parametrize("extra", [(), (1,)], ids=["flat", "stacked"])
@pytest.mark.parametrize("add", [True, False])
def test_rows_with_an_adapter_get_the_same_numbers(indices: torch.Tensor, extra: tuple[int, ...], add: bool) -> None:
    a, b = random(ADAPTERS, *extra, RANK, HIDDEN), random(ADAPTERS, *extra, OUT, RANK)
    for name, inputs, weights, output, rest in (
        ("bgmv_shrink", random(TOKENS, HIDDEN), a, torch.zeros(TOKENS, RANK + 2), (0.5,)),
        ("bgmv_expand", random(TOKENS, RANK), b, random(TOKENS, OUT + 3), (add,)),
        ("bgmv_expand", random(TOKENS, RANK), b, random(TOKENS, OUT - 3), (add,)),
        ("bgmv_expand_slice", random(TOKENS, RANK), b, random(TOKENS, OUT + 10), (5, OUT, add)),
    ):
        ours, theirs = output.clone(), output.clone()
        getattr(cpu_lora, name)(inputs, weights, ours, indices, *rest)
        getattr(lora_ops, name)(inputs, weights, theirs, indices, *rest)
        torch.testing.assert_close(ours, theirs)


def test_sequences_are_expanded_to_their_tokens() -> None:
    a, b = random(ADAPTERS, 1, RANK, HIDDEN), random(ADAPTERS, 1, OUT, RANK)
    lengths, adapters = torch.tensor([4, 1, 6]), torch.tensor([2, 0, 1])
    metadata = (torch.tensor([0, 4, 5]), lengths, adapters, 3, 6, TOKENS)
    for name, inputs, weights, output, rest in (
        ("sgmv_shrink", random(TOKENS, HIDDEN), a, torch.zeros(TOKENS, RANK), (0.5,)),
        ("sgmv_expand", random(TOKENS, RANK), b, random(TOKENS, OUT), (True,)),
        ("sgmv_expand_slice", random(TOKENS, RANK), b, random(TOKENS, OUT + 10), (5, OUT, True)),
    ):
        ours, theirs = output.clone(), output.clone()
        getattr(cpu_lora, name)(inputs, weights, ours, *metadata, *rest)
        getattr(lora_ops, name)(inputs, weights, theirs, *metadata, *rest)
        torch.testing.assert_close(ours, theirs)


def test_rows_without_an_adapter_are_left_alone() -> None:
    indices = torch.tensor([-1, 0, -1, 2])
    output = random(4, OUT)
    found = output.clone()
    cpu_lora.bgmv_expand_slice(random(4, RANK), random(ADAPTERS, 1, OUT, RANK), found, indices, 0, OUT, True)
    assert torch.equal(found[[0, 2]], output[[0, 2]])
    assert not torch.equal(found[[1, 3]], output[[1, 3]])
    shrunk = torch.ones(4, RANK)
    cpu_lora.bgmv_shrink(random(4, HIDDEN), random(ADAPTERS, RANK, HIDDEN), shrunk, indices)
    assert not shrunk[[0, 2]].any()


def test_they_take_vllms_place_only_where_the_signatures_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.lora.punica_wrapper import punica_cpu

    for operation in cpu_lora._OPERATIONS:
        monkeypatch.setattr(punica_cpu, operation.__name__, getattr(lora_ops, operation.__name__))
    monkeypatch.setattr(punica_cpu, "bgmv_shrink", lambda inputs, something_new: None)
    assert not cpu_lora.install()
    assert punica_cpu.bgmv_expand is lora_ops.bgmv_expand
    monkeypatch.setattr(punica_cpu, "bgmv_shrink", lora_ops.bgmv_shrink)
    assert cpu_lora.install()
    assert punica_cpu.bgmv_expand is cpu_lora.bgmv_expand
    assert inspect.signature(punica_cpu.sgmv_shrink) == inspect.signature(cpu_lora.sgmv_shrink)
