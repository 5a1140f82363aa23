"""Attention to keys and values in formats of eight bits, with scales a tensor, head or token."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

import conformance

PROMISES: dict[str, Any] = {
    "masks": ["keep", "bias"],
    "causal": "bottom-right",
    "empty_rows": "zeros",
    "features": ["scale", "gqa"],
}


class QuantisedCore:
    """Attention whose keys and values become numbers first; every step can be replaced."""

    def scale_of(self, name: str, scales: dict[str, Tensor]) -> Tensor:
        """The scale of key or value."""
        return scales[name]

    def by_head(self, scale: Tensor) -> Tensor:
        """A scale ``[]``, ``[Hkv]`` or ``[B, Lk, Hkv]``, beside heads ``[B, Hkv, Lk, D]``."""
        if scale.dim() < len("BLH"):
            return scale.reshape(-1, 1, 1)
        return scale.transpose(1, 2).unsqueeze(-1)

    def numbers(self, codes: Tensor) -> Tensor:
        """The numbers that codes stand for."""
        return codes.float()

    def heads(self, name: str, codes: Tensor, scales: dict[str, Tensor]) -> Tensor:
        """Key or value: codes times scales, in float32."""
        return self.numbers(codes) * self.by_head(self.scale_of(name, scales))

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        key_scale: Tensor,
        value_scale: Tensor,
        keep: Tensor | None = None,
        bias: Tensor | None = None,
        causal: bool = False,
        scale: float | None = None,
    ) -> Tensor:
        """Attend ``query [B, H, Lq, D]`` to codes of ``key [B, Hkv, Lk, D]`` and ``value``."""
        if key.shape[2] != value.shape[2] or key.shape[3] != query.shape[3]:
            msg = f"the shapes {query.shape}, {key.shape}, {value.shape} do not fit"
            raise ValueError(msg)
        scales = {"key": key_scale, "value": value_scale}
        keys, values = self.heads("key", key, scales), self.heads("value", value, scales)
        group = query.shape[1] // key.shape[1]
        keys, values = (part.repeat_interleave(group, dim=1) for part in (keys, values))
        rows, columns = query.shape[2], key.shape[2]
        seen = torch.ones(rows, columns, dtype=torch.bool, device=query.device)
        seen = seen.tril(columns - rows) if causal else seen
        factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
        logits = query.float() @ keys.mT * factor
        if bias is not None:
            logits, seen = logits + bias, seen & ~torch.isneginf(bias)
        seen = seen if keep is None else seen & keep
        weights = logits.masked_fill(~seen, -math.inf).softmax(dim=-1).masked_fill(~seen, 0.0)
        return (weights @ values).to(query.dtype)


class ScalesBesides(QuantisedCore):
    """The scale of a key joins its logits, and that of a value the weights, as kernels do."""

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        key_scale: Tensor,
        value_scale: Tensor,
        keep: Tensor | None = None,
        bias: Tensor | None = None,
        causal: bool = False,
        scale: float | None = None,
    ) -> Tensor:
        """Attend to codes, with scales on both sides of the softmax."""
        if key.shape[2] != value.shape[2] or key.shape[3] != query.shape[3]:
            msg = f"the shapes {query.shape}, {key.shape}, {value.shape} do not fit"
            raise ValueError(msg)
        group = query.shape[1] // key.shape[1]
        keys, values, of_keys, of_values = (
            part.expand(part.shape[0], key.shape[1], *part.shape[2:]).repeat_interleave(group, 1)
            for part in (
                key.float(),
                value.float(),
                self.by_head(key_scale).expand(1, -1, -1, -1).mT
                if key_scale.dim() < len("BLH")
                else self.by_head(key_scale).mT,
                self.by_head(value_scale).expand(1, -1, -1, -1).mT
                if value_scale.dim() < len("BLH")
                else self.by_head(value_scale).mT,
            )
        )
        rows, columns = query.shape[2], key.shape[2]
        seen = torch.ones(rows, columns, dtype=torch.bool, device=query.device)
        seen = seen.tril(columns - rows) if causal else seen
        factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
        logits = query.float() @ keys.mT * of_keys * factor
        if bias is not None:
            logits, seen = logits + bias, seen & ~torch.isneginf(bias)
        seen = seen if keep is None else seen & keep
        weights = logits.masked_fill(~seen, -math.inf).softmax(dim=-1).masked_fill(~seen, 0.0)
        return ((weights * of_values) @ values).to(query.dtype)


quantised_by_tensor = conformance.core(
    name="quantised_by_tensor",
    kv_format="float8_e4m3fn",
    dtypes=["float32", "bfloat16"],
    **PROMISES,
)(QuantisedCore())
quantised_by_head = conformance.core(
    name="quantised_by_head", kv_format="float8_e5m2", kv_scales="head", **PROMISES
)(ScalesBesides())
quantised_by_token = conformance.core(
    name="quantised_by_token",
    kv_format="int8",
    kv_scales="token",
    dtypes=["float32", "float16"],
    **PROMISES,
)(QuantisedCore())
