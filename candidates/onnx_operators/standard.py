"""The standard ``Attention`` as a function of heads, whoever runs it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from torch import Tensor

from .graph import Array, Attribute, node_for
from .running import Run
from .schemas import attention
from .tensors import array_of, causal_keep, packed, tensor_of, unpacked

Cache = Literal["none", "past", "external"]
_WEIGHTS_AFTER_SOFTMAX = 3


@dataclass(frozen=True, kw_only=True)
class StandardAttention:
    """``Attention`` of an opset, run by ``run``.

    ``three_axes`` hands over ``[B, L, H*D]`` and the numbers of heads as attributes. ``cache`` says
    how the keys arrive: all new; "past": those before the last Lq in ``past_key``, the rest as new
    ones; "external": in one table beside ``nonpad_kv_seqlen`` (opset 24). With "none" the operator
    aligns causality top-left, with the others bottom-right.
    """

    opset: int
    run: Run
    three_axes: bool = False
    cache: Cache = "none"

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
        softcap: float | None = None,
        window: tuple[int, int] | None = None,
        return_weights: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Attend as a core does; a mask goes in as the operator's ``attn_mask``."""
        feeds, attributes = self._heads(query, key, value)
        if self.cache == "external":
            if causal and lengths is not None:
                # The operator would align each item with the end of its own keys.
                keep, causal = causal_keep(query.shape[2], key.shape[2]), False
            if causal or lengths is not None:
                feeds["nonpad_kv_seqlen"] = _valid_keys(key, lengths)
        mask = keep if bias is None else bias
        if mask is not None:
            feeds["attn_mask"] = array_of(mask)
        attributes |= _options(causal=causal, scale=scale, softcap=softcap, window=window)
        return self._answer(feeds, attributes, query.shape[1], weights=return_weights)

    def _heads(
        self, query: Tensor, key: Tensor, value: Tensor
    ) -> tuple[dict[str, Array], dict[str, Attribute]]:
        feeds: dict[str, Array] = {}
        attributes: dict[str, Attribute] = {}
        if self.three_axes:
            attributes = {"q_num_heads": query.shape[1], "kv_num_heads": key.shape[1]}
        if self.cache == "past":
            cached = max(key.shape[2] - query.shape[2], 0)
            feeds = {
                "past_key": array_of(key[:, :, :cached]),
                "past_value": array_of(value[:, :, :cached]),
            }
            key, value = key[:, :, cached:], value[:, :, cached:]
        arranged = [packed(heads) if self.three_axes else heads for heads in (query, key, value)]
        return dict(zip("QKV", map(array_of, arranged), strict=True)) | feeds, attributes

    def _answer(
        self,
        feeds: dict[str, Array],
        attributes: dict[str, Attribute],
        num_heads: int,
        *,
        weights: bool,
    ) -> Tensor | tuple[Tensor, Tensor]:
        outputs = ["Y"]
        if self.cache == "past":
            outputs += ["present_key", "present_value"]  # past and present go together
        if weights:
            outputs.append("qk_matmul_output")
            attributes = attributes | {"qk_matmul_output_mode": _WEIGHTS_AFTER_SOFTMAX}
        operator = attention(self.opset)
        node = node_for(operator, feeds, outputs=tuple(outputs), attributes=attributes)
        answers = dict(zip(node.outputs, self.run(node, feeds), strict=True))
        output = tensor_of(answers["Y"])
        if self.three_axes:
            output = unpacked(output, num_heads)
        return (output, tensor_of(answers["qk_matmul_output"])) if weights else output


def _valid_keys(key: Tensor, lengths: Tensor | None) -> Array:
    if lengths is not None:
        return array_of(lengths)
    return np.full(key.shape[0], key.shape[2], dtype=np.int64)


def _options(
    *,
    causal: bool,
    scale: float | None,
    softcap: float | None,
    window: tuple[int, int] | None,
) -> dict[str, Attribute]:
    options: dict[str, Attribute] = {"is_causal": 1} if causal else {}
    if scale is not None:
        options["scale"] = scale
    if softcap is not None:
        options["softcap"] = softcap
    if window is not None:
        options["left_window_size"], options["right_window_size"] = window
    return options
