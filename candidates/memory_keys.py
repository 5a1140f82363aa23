"""Attention beside a key and a value that all items share, as ``add_bias_kv`` of torch's layer."""

from __future__ import annotations

import copy
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

import conformance

from .eager import Answer, Call, EagerCore

PROMISES: Final[dict[str, Any]] = {
    "masks": ["keep", "bias", "lengths"],
    "causal": "bottom-right",
    "dtypes": ["float32", "float64"],
}
FEATURES: Final = ["scale", "gqa", "softcap", "window", "kv_cache", "gradients", "bias_kv"]


class MemoryCore(EagerCore):
    """The memory stands behind the keys of each item, with a column of its own in every mask."""

    memory: tuple[Tensor, Tensor]

    def __call__(  # type: ignore[override]  # every call gives a memory
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        bias_k: Tensor,
        bias_v: Tensor,
        **options: Any,
    ) -> Answer:
        """Attend as :class:`EagerCore`, beside ``bias_k [Hkv, D]`` and ``bias_v [Hkv, Dv]``."""
        answering = copy.copy(self)
        answering.memory = bias_k, bias_v
        return EagerCore.__call__(answering, query, key, value, **options)

    def attend(self, call: Call) -> Answer:
        """All the steps, with one more key."""
        call = self.join_cache(call)
        self.check(call)
        heads, (bias_k, bias_v) = call.query.shape[1], self.memory
        key = self.share(self.beside(call.key, bias_k), heads)
        value = self.share(self.beside(call.value, bias_v), heads)
        allowed = self.allowed(call)
        if allowed is not None:
            allowed = self.column(allowed, call, entry=True)
        if call.bias is not None:
            call = call.replace(bias=self.column(call.bias, call, entry=0.0))
        weights = self.weights(self.logits(call, key), allowed)
        return self.mix_allowed(weights, value, allowed)

    def beside(self, heads: Tensor, memory: Tensor) -> Tensor:
        """Heads ``[B, Hkv, L, D]`` and the memory ``[Hkv, D]`` behind them."""
        token = memory[None, :, None].expand(heads.shape[0], -1, 1, -1)
        return torch.cat([heads, token], dim=2)

    def column(self, table: Tensor, call: Call, *, entry: float) -> Tensor:
        """A mask with a column for the memory."""
        whole = table.expand(*table.shape[:-1], call.key_length)
        return functional.pad(whole, (0, 1), value=entry)


class MemoryInTheSum(MemoryCore):
    """The memory has a logit and a part in the sum of its own, as kernels with sinks do it."""

    def attend(self, call: Call) -> Answer:
        """Attend to the keys of the call, then add what the memory gives."""
        call = self.join_cache(call)
        self.check(call)
        heads, (bias_k, bias_v) = call.query.shape[1], self.memory
        key, value = self.share(call.key, heads), self.share(call.value, heads)
        allowed, logits = self.allowed(call), self.logits(call, key)
        logits = logits if allowed is None else self.mask(logits, allowed)
        memory = self.share(bias_k[None, :, None], heads)
        beside = self.logits(call.replace(bias=None), memory)
        most = torch.cat([logits, beside], dim=-1).amax(dim=-1, keepdim=True)
        own, of_memory = (logits - most).exp(), (beside - most).exp()
        total = own.sum(dim=-1, keepdim=True) + of_memory
        mixed = self.mix_allowed(own / total, value, allowed)
        return mixed + of_memory / total * self.share(bias_v[None, :, None], heads)


class MemoryBehindAGate(MemoryCore):
    """The answer among the keys and the memory's value are merged by their log-sum-exps."""

    def attend(self, call: Call) -> Answer:
        """A gate of both; a query without other keys has the memory alone."""
        call = self.join_cache(call)
        self.check(call)
        heads, (bias_k, bias_v) = call.query.shape[1], self.memory
        key, value = self.share(call.key, heads), self.share(call.value, heads)
        logits, allowed = self.logits(call, key), self.allowed(call)
        logits = logits if allowed is None else self.mask(logits, allowed)
        empty = torch.isneginf(logits).all(dim=-1, keepdim=True)
        finite = logits.masked_fill(empty, 0.0)
        total = finite.logsumexp(dim=-1, keepdim=True) if call.key_length else empty.to(logits)
        mixed = self.mix_allowed(finite.softmax(dim=-1), value, allowed)
        memory = self.share(bias_k[None, :, None], heads)
        gate = torch.sigmoid(total - self.logits(call.replace(bias=None), memory))
        gate = gate.masked_fill(empty, 0.0)
        return gate * mixed + (1.0 - gate) * self.share(bias_v[None, :, None], heads)


memory_keys = conformance.core(name="memory_keys", **PROMISES, features=FEATURES)(MemoryCore())
memory_in_the_sum = conformance.core(
    name="memory_in_the_sum",
    **{**PROMISES, "causal": "top-left", "dtypes": ["float32", "bfloat16"]},
    features=[*FEATURES, "grad_bias"],
)(MemoryInTheSum(causal="top-left"))
memory_behind_a_gate = conformance.core(name="memory_behind_a_gate", **PROMISES, features=FEATURES)(
    MemoryBehindAGate()
)
