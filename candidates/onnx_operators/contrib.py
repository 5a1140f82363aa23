"""onnxruntime's own operators: ``MultiHeadAttention`` and ``GroupQueryAttention`` as functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from .graph import Array, Attribute, Operator, node_for
from .running import run_on_onnxruntime
from .schemas import GROUP_QUERY_ATTENTION, MULTI_HEAD_ATTENTION
from .tensors import array_of, packed, tensor_of, unpacked

Padding = Literal["lengths", "cumulated"]
_AFTER_SOFTMAX = 2
# As float32, in which the attribute is stored.
LOWEST = float(np.finfo(np.float32).min)


@dataclass(frozen=True, kw_only=True)
class MultiHeadAttention:
    """``com.microsoft.MultiHeadAttention``: as many key/value heads as heads, ``[B, L, H*D]``.

    ``keep`` and ``lengths`` become ``key_padding_mask``, lengths as ``[B]`` or "cumulated" as
    ``[3B + 2]``: the lengths, and where each item's queries and keys begin if they were put after
    one another. ``bias`` becomes ``attention_bias``. ``cached`` hands the keys before the last Lq
    over as the past. ``fill`` is ``mask_filter_value``, None for the operator's own -10000.
    """

    padding: Padding = "lengths"
    cached: bool = False
    fill: float | None = None

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        keep: Tensor | None = None,
        bias: Tensor | None = None,
        lengths: Tensor | None = None,
        causal: bool = False,
        scale: float | None = None,
    ) -> Tensor:
        """Attend as a core does."""
        past = max(key.shape[2] - query.shape[2], 0) if self.cached else 0
        feeds = _tokens(query, key[:, :, past:], value[:, :, past:])
        if self.cached:
            feeds |= _past(key[:, :, :past], value[:, :, :past])
        if keep is not None:
            feeds["key_padding_mask"] = array_of(keep.int())
        if lengths is not None:
            feeds["key_padding_mask"] = self._padding(lengths, query.shape[2], key.shape[2])
        if bias is not None:
            feeds["attention_bias"] = array_of(bias)
        attributes: dict[str, Attribute] = {"num_heads": query.shape[1]}
        if self.fill is not None:
            attributes["mask_filter_value"] = self.fill
        if causal:
            attributes["unidirectional"] = 1
        if scale is not None:
            attributes["scale"] = scale
        outputs = MULTI_HEAD_ATTENTION.outputs[: 3 if self.cached else 1]
        answers = _run(MULTI_HEAD_ATTENTION, feeds, outputs, attributes)
        return unpacked(answers["output"], query.shape[1])

    def _padding(self, lengths: Tensor, query_length: int, key_length: int) -> Array:
        if self.padding == "lengths":
            return array_of(lengths.int())
        starts = torch.arange(lengths.shape[0] + 1)
        cumulated = torch.cat([lengths, starts * query_length, starts * key_length])
        return array_of(cumulated.int())


@dataclass(frozen=True, kw_only=True)
class GroupQueryAttention:
    """``com.microsoft.GroupQueryAttention``: head sizes that 8 divides, values of the same size.

    Without a cache the operator wants as many keys as queries, and ``lengths`` become
    ``seqlens_k``. ``cached`` hands the keys before the last Lq over as the past.
    """

    cached: bool = False

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        bias: Tensor | None = None,
        lengths: Tensor | None = None,
        causal: bool = False,
        scale: float | None = None,
        softcap: float | None = None,
        return_weights: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Attend as a core does; the causal flag is the operator's default and is switched off."""
        past = max(key.shape[2] - query.shape[2], 0) if self.cached else 0
        feeds = _tokens(query, key[:, :, past:], value[:, :, past:])
        if self.cached:
            feeds |= _past(key[:, :, :past], value[:, :, :past])
        # The longest of no items is 0, which is refused; any other number kills the process.
        total = np.int32(key.shape[2] if key.shape[0] else 0)
        valid = np.full(key.shape[0], total) if lengths is None else array_of(lengths.int())
        feeds["seqlens_k"] = valid - np.int32(1)
        feeds["total_sequence_length"] = np.array(total)
        if bias is not None:
            feeds["attention_bias"] = array_of(bias)
        attributes: dict[str, Attribute] = {
            "num_heads": query.shape[1],
            "kv_num_heads": key.shape[1],
            "causal": int(causal),
        }
        if scale is not None:
            attributes["scale"] = scale
        if softcap is not None:
            attributes["softcap"] = softcap
        outputs = GROUP_QUERY_ATTENTION.outputs[:3]
        if return_weights:
            attributes["qk_output"] = _AFTER_SOFTMAX
            outputs = GROUP_QUERY_ATTENTION.outputs
        answers = _run(GROUP_QUERY_ATTENTION, feeds, outputs, attributes)
        output = unpacked(answers["output"], query.shape[1])
        return (output, answers["output_qk"]) if return_weights else output


def _tokens(query: Tensor, key: Tensor, value: Tensor) -> dict[str, Array]:
    arranged = (array_of(packed(heads)) for heads in (query, key, value))
    return dict(zip(("query", "key", "value"), arranged, strict=True))


def _past(key: Tensor, value: Tensor) -> dict[str, Array]:
    return {"past_key": array_of(key), "past_value": array_of(value)}


def _run(
    operator: Operator,
    feeds: dict[str, Array],
    outputs: tuple[str, ...],
    attributes: dict[str, Attribute],
) -> dict[str, Tensor]:
    node = node_for(operator, feeds, outputs=outputs, attributes=attributes)
    answers = run_on_onnxruntime(node, feeds)
    return {name: tensor_of(answer) for name, answer in zip(node.outputs, answers, strict=True)}
