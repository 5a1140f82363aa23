"""Builds a layer once, to see whether its forward can be called as declared."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch

from .._golden import golden
from ..adapters.calling import AdaptedModule
from ..base.geometry import FIELDS, Geometry
from ..base.parameter_names import OptionParameter, undeclared_options
from ..declare.candidate import Candidate
from ..declare.declaration import OWN_KEYWORDS, WHOLE_MODEL
from ..declare.decorators import check_signature
from ..declare.operators import signature_of
from ..errors import DeclarationError, UsageError, did_you_mean
from ..models.model_inputs import library_of


def check_layer(candidate: Candidate) -> Callable[..., Any] | None:
    """The forward that a layer's builder makes, with its signature checked; None otherwise.

    A builder that raises gives None: the run reports the exception. Raises UsageError for a forward
    that is not callable (a DeclarationError for a missing keyword or input).
    """
    if candidate.kind != "layer":
        return None
    _check_builder(candidate)
    try:
        forward = _build(candidate)
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 (the user's builder: the run reports what it raises)
        return None
    if not callable(forward):
        msg = (
            f"{_shown(candidate)} made a {type(forward).__name__} instead of a forward function: "
            "return something callable"
        )
        raise UsageError(msg)
    check_signature(_callee(forward), candidate.declaration, f"the forward of {_shown(candidate)}")
    made: Callable[..., Any] = forward
    return made


def unchecked_options(
    candidate: Candidate, forward: Callable[..., Any] | None, accepted: Iterable[str] = ()
) -> tuple[OptionParameter, ...]:
    """The parameters that look like options and that no call will give.

    ``forward`` is the product of a layer's builder. ``accepted`` are globs of names that may stay
    unchecked, as the declaration's own. An object without a signature has no such parameters. The
    author of a function with the harness' own keywords has chosen among them: they count in a
    module only. Raises DeclarationError for a name in ``unchecked=`` that is no parameter, or is
    declared.
    """
    if candidate.graph is not None or candidate.kind == "positions":
        return ()
    if candidate.kind == WHOLE_MODEL:
        return _unchecked_of_model(candidate.function, accepted)
    declaration = candidate.declaration
    passed = {*declaration.keywords}
    called = (candidate.eager or candidate).function if candidate.kind == "core" else forward
    chosen = OWN_KEYWORDS
    if isinstance(called, AdaptedModule):
        passed, chosen = called.passed(declaration), frozenset()
        called = called.module
    try:
        signature = signature_of(called) or inspect.signature(_callee(called))
    except (TypeError, ValueError):  # nothing was built, or it is written in C
        return ()
    for name in declaration.unchecked:
        _check_unchecked(candidate, signature, passed, name)
    if declaration.head_layout.cache_axes:  # caches are inputs there, whatever their names
        passed |= {*list(signature.parameters)[: len(declaration.positional)]}
    expected = passed | chosen
    # An adapted module's call says itself which parameters take its tokens.
    inputs = 0 if isinstance(forward, AdaptedModule) else len("qkv")
    every = (*declaration.unchecked, *accepted)
    masks = () if candidate.reading is None else candidate.reading.idle_masks
    return tuple(undeclared_options(signature, expected, every, inputs=inputs, masks=masks))


def _unchecked_of_model(model: Any, accepted: Iterable[str]) -> tuple[OptionParameter, ...]:
    """The options of a torch module that no call of the whole model gives.

    None of a library whose documentation explains its options.
    """
    module = getattr(model.engine, "module", None)
    if module is None or library_of(module):
        return ()
    calling = model.engine.calling
    given = {*(entry.name for entry in calling.inputs), *calling.fixed}
    return tuple(undeclared_options(inspect.signature(module.forward), given, accepted))


def _check_unchecked(
    candidate: Candidate, signature: inspect.Signature, passed: set[str], name: str
) -> None:
    parameters = signature.parameters
    if name in passed:
        msg = f"unchecked of {candidate.name} names {name!r}, which is declared: drop one"
        raise DeclarationError(msg)
    if name not in parameters and not any(
        parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()
    ):
        hint = did_you_mean(name, parameters)
        msg = f"unchecked of {candidate.name} names {name!r}, which is no parameter{hint}"
        raise DeclarationError(msg)


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
    sizes = {name: 2 for name in FIELDS if name.endswith(("heads", "head_size"))}
    sizes |= {"batch": 1, "query_length": 3, "key_length": 3}
    tiny = Geometry(**{name: sizes.get(name, 4) for name in FIELDS})
    geometry = candidate.declaration.pins.apply(tiny)
    weights = candidate.fixed_weights
    if candidate.draws_weights:
        weights = _weights(geometry, candidate.declaration.semantics)
    with torch.random.fork_rng(devices=[]):
        return candidate.function(geometry, weights)


def _weights(geometry: Geometry, semantics: golden.Semantics) -> golden.ProjectionWeights:
    """Zero projections of a geometry's sizes, with the biases that the semantics has."""
    rows = {
        "q": (geometry.num_heads * geometry.head_size, geometry.query_size),
        "k": (geometry.num_kv_heads * geometry.head_size, geometry.key_size),
        "v": (geometry.num_kv_heads * geometry.value_head_size, geometry.value_size),
        "o": (geometry.output_size, geometry.num_heads * geometry.value_head_size),
    }
    words = {"q": "query", "k": "key", "v": "value", "o": "output"}
    tensors: dict[str, Any] = {name: torch.zeros(shape) for name, shape in rows.items()}
    for name, word in words.items():
        biased = getattr(semantics, f"{word}_bias")
        tensors[f"{name}_bias"] = torch.zeros(rows[name][0]) if biased else None
    return golden.ProjectionWeights(**tensors)


def _callee(forward: Any) -> Any:
    """The function with the signature: a module's ``forward``, as ``__call__`` takes anything."""
    return forward.forward if isinstance(forward, torch.nn.Module) else forward
