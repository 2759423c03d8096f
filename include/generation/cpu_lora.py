"""LoRA on vLLM's CPU build, several times faster: one matrix product per adapter in the batch.

vLLM's own CPU operations gather the adapter's matrices once per token before they multiply, which costs more than the
base model does (two thirds of a step with SmolLM2-135M), and they apply the last adapter to rows that have none. These
have the same signatures and give the same results for rows with an adapter; rows without one are left alone.
They replace vLLM's in this process, so they work where the engine runs in it (VLLM_ENABLE_V1_MULTIPROCESSING=0).
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger(__name__)


def _by_adapter(indices: Tensor) -> Iterator[tuple[int, Any]]:
    """(adapter index, its rows) for each adapter in the batch; -1 stands for no adapter."""
    if not len(indices):
        return
    first = indices[0]
    if bool((indices == first).all()):
        yield int(first), slice(None)
        return
    for index in indices.unique().tolist():  # type: ignore[no-untyped-call]
        yield int(index), (indices == index).nonzero().squeeze(1)


def _matrix(weights: Tensor, index: int, like: Tensor) -> Tensor:
    """Transposed matrix of one adapter out of (adapters, [1,] out, in), in the type of `like`."""
    found = weights[index]
    return (found[0] if found.dim() == 3 else found).to(like.dtype).t()


def _add(output: Tensor, rows: Any, product: Tensor, add_inputs: bool) -> None:
    if add_inputs:
        output[rows] += product
    else:
        output[rows] = product


def bgmv_shrink(
    inputs: Tensor, lora_b_weights: Tensor, output_tensor: Tensor, lora_indices_tensor: Tensor, scaling: float = 1.0
) -> None:
    for index, rows in _by_adapter(lora_indices_tensor):
        if index < 0:
            output_tensor[rows] = 0
            continue
        product = inputs[rows].to(output_tensor.dtype) @ _matrix(lora_b_weights, index, output_tensor)
        output_tensor[rows, : product.shape[1]] = product.mul_(scaling)


def bgmv_expand(
    inputs: Tensor, lora_b_weights: Tensor, output_tensor: Tensor, lora_indices_tensor: Tensor, add_inputs: bool = True
) -> None:
    count = min(len(inputs), len(output_tensor))
    for index, rows in _by_adapter(lora_indices_tensor[:count]):
        if index < 0:
            continue
        product = inputs[:count][rows].to(output_tensor.dtype) @ _matrix(lora_b_weights, index, output_tensor)
        common = min(product.shape[1], output_tensor.shape[1])  # adapter and model may be padded differently
        _add(output_tensor[:count, :common], rows, product[:, :common], add_inputs)


def bgmv_expand_slice(
    inputs: Tensor,
    lora_b_weights: Tensor,
    output_tensor: Tensor,
    lora_indices_tensor: Tensor,
    slice_offset: int,
    slice_size: int,
    add_inputs: bool = True,
) -> None:
    place = output_tensor[:, slice_offset : slice_offset + slice_size]
    for index, rows in _by_adapter(lora_indices_tensor):
        if index < 0:
            continue
        product = inputs[rows].to(output_tensor.dtype) @ _matrix(lora_b_weights, index, output_tensor)
        _add(place, rows, product, add_inputs)


def sgmv_shrink(
    inputs: Tensor,
    lora_a_weights: Tensor,
    output_tensor: Tensor,
    b_seq_start_loc: Tensor,
    seq_len_tensor: Tensor,
    lora_indices_tensor: Tensor,
    batches: int,
    max_seq_length: int,
    token_nums: int,
    scaling: float,
) -> None:
    indices = lora_indices_tensor.repeat_interleave(seq_len_tensor)
    bgmv_shrink(inputs, lora_a_weights, output_tensor, indices, scaling)


def sgmv_expand(
    inputs: Tensor,
    lora_b_weights: Tensor,
    output_tensor: Tensor,
    b_seq_start_loc: Tensor,
    seq_len_tensor: Tensor,
    lora_indices_tensor: Tensor,
    batches: int,
    max_seq_length: int,
    token_nums: int,
    add_inputs: bool = False,
) -> None:
    indices = lora_indices_tensor.repeat_interleave(seq_len_tensor)
    bgmv_expand(inputs, lora_b_weights, output_tensor, indices, add_inputs)


def sgmv_expand_slice(
    inputs: Tensor,
    lora_b_weights: Tensor,
    output_tensor: Tensor,
    b_seq_start_loc: Tensor,
    seq_len_tensor: Tensor,
    lora_indices_tensor: Tensor,
    batches: int,
    max_seq_length: int,
    token_nums: int,
    slice_offset: int,
    slice_size: int,
    add_inputs: bool = False,
) -> None:
    indices = lora_indices_tensor.repeat_interleave(seq_len_tensor)
    bgmv_expand_slice(inputs, lora_b_weights, output_tensor, indices, slice_offset, slice_size, add_inputs)


_OPERATIONS = (bgmv_shrink, bgmv_expand, bgmv_expand_slice, sgmv_shrink, sgmv_expand, sgmv_expand_slice)


def install() -> bool:
    """Puts the operations in the place of vLLM's. False, and nothing changed, where this vLLM has others."""
    try:
        from vllm.lora.punica_wrapper import punica_cpu
    except ImportError:
        return False
    for ours in _OPERATIONS:
        theirs = getattr(punica_cpu, ours.__name__, None)
        if theirs is None or list(inspect.signature(theirs).parameters) != list(inspect.signature(ours).parameters):
            log.info("this vLLM has other LoRA operations for the CPU; its own are used")
            return False
    for ours in _OPERATIONS:
        setattr(punica_cpu, ours.__name__, ours)
    return True
