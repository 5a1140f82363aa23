"""Attention of JAX's arrays with gradients: by jax.vjp, and by a backward pass of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import jax
from jax import Array
from jax import numpy as jnp

import conformance

PROMISES: Final[dict[str, Any]] = {
    "arrays": "jax",
    "masks": ["keep"],
    "causal": "bottom-right",
    "features": ["scale", "gradients"],
}


def allowed_keys(shape: tuple[int, ...], keep: Array | None, *, causal: bool) -> Array:
    """The keys that queries may attend: bool in a shape ``[.., Lq, Lk]``."""
    queries, keys = shape[-2:]
    allowed = jnp.ones((queries, keys), dtype=bool)
    allowed = jnp.tril(allowed, keys - queries) if causal else allowed
    return jnp.broadcast_to(allowed if keep is None else allowed & keep, shape)


def weigh(scores: Array, allowed: Array) -> Array:
    """The softmax over allowed keys; zeros where there are none."""
    largest = jnp.max(scores, axis=-1, keepdims=True, initial=-jnp.inf, where=allowed)
    shifted = jnp.where(allowed, scores - jnp.where(jnp.isinf(largest), 0.0, largest), -jnp.inf)
    exponentials = jnp.exp(shifted)
    total = exponentials.sum(axis=-1, keepdims=True)
    return exponentials / jnp.where(total == 0.0, 1.0, total)


def attend(query: Array, key: Array, value: Array, allowed: Array, scale: float) -> Array:
    """Attention over allowed keys."""
    return weigh(query @ key.mT * scale, allowed) @ value


class JaxCore:
    """Checks its inputs, and attends by a function that can be replaced."""

    attend: Callable[..., Array] = staticmethod(attend)

    def __call__(
        self,
        query: Array,
        key: Array,
        value: Array,
        *,
        keep: Array | None = None,
        causal: bool = False,
        scale: float | None = None,
    ) -> Array:
        """Attend ``query [B, H, Lq, D]`` to ``key [B, H, Lk, D]`` and ``value [B, H, Lk, Dv]``."""
        if key.shape[2] != value.shape[2] or key.shape[3] != query.shape[3]:
            msg = f"the shapes {query.shape}, {key.shape}, {value.shape} do not fit"
            raise ValueError(msg)
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        allowed = allowed_keys((*query.shape[:3], key.shape[2]), keep, causal=causal)
        return self.attend(query, key, value, allowed, scale)


def _forward(
    query: Array, key: Array, value: Array, allowed: Array, scale: float
) -> tuple[Array, tuple[Array, ...]]:
    weights = weigh(query @ key.mT * scale, allowed)
    return weights @ value, (query, key, value, weights)


def _backward(scale: float, kept: tuple[Array, ...], upstream: Array) -> tuple[Array | None, ...]:
    query, key, value, weights = kept
    of_weights = upstream @ value.mT
    along = (weights * of_weights).sum(axis=-1, keepdims=True)
    of_scores = weights * (of_weights - along) * scale
    return of_scores @ key, of_scores.mT @ query, weights.mT @ upstream, None


def by_rule(backward: Callable[..., Any]) -> Any:
    """A candidate with a ``custom_vjp`` that keeps the weights."""
    attending = jax.custom_vjp(attend, nondiff_argnums=(4,))
    attending.defvjp(_forward, backward)
    core = JaxCore()
    core.attend = attending
    return conformance.core(name="jax_by_rule", **PROMISES)(core)


jax_attention = conformance.core(name="jax_attention", **PROMISES)(JaxCore())
jax_by_rule = by_rule(_backward)
