"""Attention to keys and values in formats of eight bits, with scales a tensor, head or token."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

import conformance
from conformance import Semantics

from .latent_attention import PROMISES as OF_LATENTS
from .latent_attention import SCALE, LatentCore

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
            return scale.reshape(1, -1, 1, 1)
        return scale.transpose(1, 2).unsqueeze(-1)

    def numbers(self, codes: Tensor) -> Tensor:
        """The numbers that codes stand for."""
        return codes.float()

    def scaled(self, heads: Tensor, scale: Tensor) -> Tensor:
        """Numbers of codes times their scale."""
        return heads * scale

    def logits(self, query: Tensor, keys: Tensor, scale: Tensor) -> Tensor:
        """The products of query and keys."""
        return query @ self.scaled(keys, scale).mT

    def mix(self, weights: Tensor, values: Tensor, scale: Tensor) -> Tensor:
        """The weighted sums of values."""
        return weights @ self.scaled(values, scale)

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
        scales, kv_heads = {"key": key_scale, "value": value_scale}, key.shape[1]
        group = query.shape[1] // kv_heads
        keys, values = (self.numbers(codes).repeat_interleave(group, 1) for codes in (key, value))
        of_keys, of_values = (
            self.by_head(self.scale_of(name, scales)).expand(-1, kv_heads, -1, -1)
            for name in ("key", "value")
        )
        of_keys, of_values = (each.repeat_interleave(group, 1) for each in (of_keys, of_values))
        rows, columns = query.shape[2], key.shape[2]
        seen = torch.ones(rows, columns, dtype=torch.bool, device=query.device)
        seen = seen.tril(columns - rows) if causal else seen
        factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
        logits = self.logits(query.float(), keys, of_keys) * factor
        if bias is not None:
            logits, seen = logits + bias, seen & ~torch.isneginf(bias)
        seen = seen if keep is None else seen & keep
        weights = logits.masked_fill(~seen, -math.inf).softmax(dim=-1).masked_fill(~seen, 0.0)
        return self.mix(weights, values, of_values).to(query.dtype)


class ScalesBesides(QuantisedCore):
    """The scale of a key joins its logits, and that of a value the weights, as kernels do."""

    def logits(self, query: Tensor, keys: Tensor, scale: Tensor) -> Tensor:
        """Products of codes, scaled a key."""
        return query @ keys.mT * scale.mT

    def mix(self, weights: Tensor, values: Tensor, scale: Tensor) -> Tensor:
        """Sums of codes, with the scale in the weights."""
        return (weights * scale.mT) @ values


class QuantisedLatent(LatentCore):
    """A latent of codes: its value has the scale of its key."""

    def __call__(  # type: ignore[override]  # scales are no options
        self, query: Tensor, latent: Tensor, *, key_scale: Tensor, value_scale: Tensor, **more: Any
    ) -> Any:
        """Attend to codes times scales ``[B, Lk, 1]``."""
        del value_scale
        made = super().__call__(query.float(), latent.float() * key_scale, **more)
        return made.to(query.dtype) if isinstance(made, Tensor) else made


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
)(ScalesBesides())
quantised_latent = conformance.core(
    name="quantised_latent",
    kv_format="float8_e4m3fn",
    kv_scales="token",
    **{**OF_LATENTS, "features": ["scale"]},
    semantics=Semantics(scale=SCALE),
    geometry={"head_size": 20, "value_head_size": 16},
)(QuantisedLatent())
