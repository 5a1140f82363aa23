"""A forward pass of attention in Triton: an online softmax over blocks of keys.

Dao, "FlashAttention-2", 2023 (arXiv:2307.08691), algorithm 1, without what speeds it up. It needs
Triton; ``candidates.triton_attention`` calls it.
"""

from __future__ import annotations

from typing import Any, Final

import triton
import triton.language as tl

# What a program holds at once; a dot product of Triton's takes 16 or more of each.
QUERIES: Final = 32
KEYS: Final = 32


def _forward(  # noqa: PLR0917 (a kernel takes its arguments by position)
    query: tl.tensor,
    key: tl.tensor,
    value: tl.tensor,
    output: tl.tensor,
    query_strides: tl.tensor,
    key_strides: tl.tensor,
    value_strides: tl.tensor,
    output_strides: tl.tensor,
    query_length: tl.tensor,
    key_length: tl.tensor,
    scale: tl.tensor,
    heads: tl.tensor,
    group: tl.tensor,
    head_size: tl.tensor,
    value_size: tl.tensor,
    first_diagonal: tl.tensor,
    causal: tl.constexpr,
    query_block: tl.constexpr,
    key_block: tl.constexpr,
    head_block: tl.constexpr,
    value_block: tl.constexpr,
) -> None:
    """The rows of one block of queries of one head; strides are those of ``[B, H, L, D]``."""
    rows = tl.program_id(0) * query_block + tl.arange(0, query_block)
    batch, head = tl.program_id(1) // heads, tl.program_id(1) % heads
    channels = tl.arange(0, head_block)
    value_channels = tl.arange(0, value_block)
    query += batch * query_strides[0] + head * query_strides[1]
    key += batch * key_strides[0] + head // group * key_strides[1]
    value += batch * value_strides[0] + head // group * value_strides[1]
    output += batch * output_strides[0] + head * output_strides[1]
    queries = tl.load(
        query + rows[:, None] * query_strides[2] + channels[None, :] * query_strides[3],
        mask=(rows[:, None] < query_length) & (channels[None, :] < head_size),
        other=0.0,
    )
    largest = tl.full([query_block], -float("inf"), tl.float32)
    total = tl.zeros([query_block], tl.float32)
    mixed = tl.zeros([query_block, value_block], tl.float32)
    for start in range(0, key_length, key_block):
        columns = start + tl.arange(0, key_block)
        keys = tl.load(
            key + columns[None, :] * key_strides[2] + channels[:, None] * key_strides[3],
            mask=(columns[None, :] < key_length) & (channels[:, None] < head_size),
            other=0.0,
        )
        logits = tl.dot(queries, keys, input_precision="ieee") * scale
        admitted = (columns[None, :] < key_length) & (rows[:, None] < query_length)
        if causal:
            admitted = admitted & (columns[None, :] <= rows[:, None] + first_diagonal)
        logits = tl.where(admitted, logits, -float("inf"))
        above = tl.maximum(largest, tl.max(logits, 1))
        # A row that has met no key yet is anchored at zero: minus infinity from itself is NaN.
        anchor = tl.where(above == -float("inf"), 0.0, above)
        weights = tl.exp(logits - anchor[:, None])
        shrink = tl.exp(largest - anchor)
        values = tl.load(
            value
            + columns[:, None] * value_strides[2]
            + value_channels[None, :] * value_strides[3],
            mask=(columns[:, None] < key_length) & (value_channels[None, :] < value_size),
            other=0.0,
        )
        total = total * shrink + tl.sum(weights, 1)
        mixed = mixed * shrink[:, None]
        mixed += tl.dot(weights.to(values.dtype), values, input_precision="ieee")
        largest = above
    answer = mixed / tl.where(total == 0.0, 1.0, total)[:, None]
    tl.store(
        output + rows[:, None] * output_strides[2] + value_channels[None, :] * output_strides[3],
        answer.to(output.dtype.element_ty),
        mask=(rows[:, None] < query_length) & (value_channels[None, :] < value_size),
    )


# A kernel is compiled anew for numbers that are 1 or multiples of 16, but for these.
_ANY_NUMBER: Final = (
    "query_length",
    "key_length",
    "heads",
    "group",
    "head_size",
    "value_size",
    "first_diagonal",
)
_kernel: Final[Any] = triton.jit(_forward, do_not_specialize=_ANY_NUMBER)


def run(query: Any, key: Any, value: Any, output: Any, *, causal: bool, scale: float) -> None:
    """Fill ``output [B, H, Lq, Dv]``; the causal diagonal ends at the last query and key."""
    batch, heads, query_length, head_size = query.shape
    key_length, value_size = key.shape[2], value.shape[3]
    _kernel[(triton.cdiv(query_length, QUERIES), batch * heads)](
        query,
        key,
        value,
        output,
        query.stride(),
        key.stride(),
        value.stride(),
        output.stride(),
        query_length,
        key_length,
        scale,
        heads,
        heads // key.shape[1],
        head_size,
        value_size,
        key_length - query_length,
        causal=causal,
        query_block=QUERIES,
        key_block=KEYS,
        head_block=max(16, triton.next_power_of_2(head_size)),
        value_block=max(16, triton.next_power_of_2(value_size)),
        num_stages=1,  # each stage holds keys and values: three of head size 256 find no room
    )
