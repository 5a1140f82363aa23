"""Builds a layer once, to see whether its forward can be called as declared."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from ._golden import golden
from .candidate import Candidate
from .declare import check_signature
from .errors import UsageError
from .geometry import Geometry


def check_layer(candidate: Candidate) -> None:
    """Require that a layer's builder makes a forward of the declared signature.

    A builder that raises is left to the run, which says so clause by clause. Raises UsageError (a
    DeclarationError for a keyword or an input too few).
    """
    if candidate.kind != "layer":
        return
    _check_builder(candidate)
    try:
        forward = _build(candidate)
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 (the user's builder: the run reports what it raises)
        return
    if not callable(forward):
        msg = (
            f"{_shown(candidate)} made a {type(forward).__name__} instead of a forward function: "
            "return something callable"
        )
        raise UsageError(msg)
    check_signature(_callee(forward), candidate.declaration, f"the forward of {_shown(candidate)}")


def _shown(candidate: Candidate) -> str:
    return f"{candidate.name} ({candidate.target})" if candidate.target else candidate.name


def _check_builder(candidate: Candidate) -> None:
    try:
        inspect.signature(candidate.function).bind("geometry", "weights")
    except TypeError:
        signature = inspect.signature(candidate.function)
        msg = (
            f"{candidate.name}{signature} is declared as a layer and must take (geometry, weights) "
            "and return the forward function"
        )
        raise UsageError(msg) from None
    except ValueError:  # written in C, no signature to look at
        return


def _build(candidate: Candidate) -> Any:
    geometry = candidate.declaration.pins.apply(_tiny())
    weights = candidate.fixed_weights
    if candidate.draws_weights:
        weights = _weights(geometry, candidate.declaration.semantics)
    with torch.random.fork_rng(devices=[]):
        return candidate.function(geometry, weights)


def _tiny() -> Geometry:
    return Geometry(
        batch=1,
        num_heads=2,
        num_kv_heads=2,
        query_length=3,
        key_length=3,
        head_size=2,
        value_head_size=2,
        query_size=4,
        key_size=4,
        value_size=4,
        output_size=4,
    )


def _weights(geometry: Geometry, semantics: golden.Semantics) -> golden.ProjectionWeights:
    """Zero projections of a geometry's sizes, with the biases that the semantics has."""
    rows = {
        "q": (geometry.num_heads * geometry.head_size, geometry.query_size),
        "k": (geometry.num_kv_heads * geometry.head_size, geometry.key_size),
        "v": (geometry.num_kv_heads * geometry.value_head_size, geometry.value_size),
        "o": (geometry.output_size, geometry.num_heads * geometry.value_head_size),
    }
    biased = {
        "q": semantics.query_bias,
        "k": semantics.key_bias,
        "v": semantics.value_bias,
        "o": semantics.output_bias,
    }
    tensors: dict[str, Any] = {name: torch.zeros(shape) for name, shape in rows.items()}
    for name, shape in rows.items():
        tensors[f"{name}_bias"] = torch.zeros(shape[0]) if biased[name] else None
    return golden.ProjectionWeights(**tensors)


def _callee(forward: Callable[..., Any]) -> Callable[..., Any]:
    """What shows the signature: a module's ``forward``, since its ``__call__`` takes anything."""
    return forward.forward if isinstance(forward, torch.nn.Module) else forward
