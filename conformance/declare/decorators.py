"""The public ways to declare a candidate in Python."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, overload

import torch
from torch import Tensor

from .._golden import golden
from ..base.geometry import read_pins
from ..base.parameter_names import option_of
from ..base.printable_text import repr_of
from ..errors import DeclarationError, did_you_mean
from .candidate import Candidate
from .declaration import Declaration
from .definitions import read_definition
from .keywords import read_keywords
from .operators import operator_of, registered_operator, signature_of
from .promises import declare
from .signatures import read_signature

Decorator = Callable[[Callable[..., Any]], Candidate]
# Promises on calls, consumed by the decorator rather than the declaration.
_OF_CALLS = ("signature", "keywords", "definition")
_WIDTHS = ("query_size", "key_size", "value_size", "output_size")


@overload
def core(
    function: Callable[..., Any], /, *, name: str | None = ..., **promises: Any
) -> Candidate: ...
@overload
def core(*, name: str | None = ..., **promises: Any) -> Decorator: ...
def core(
    function: Callable[..., Any] | None = None, /, *, name: str | None = None, **promises: Any
) -> Candidate | Decorator:
    """Declare a bare attention function; ``@core`` alone is ``@core()``.

    It is called as ``function(query, key, value, **keywords)`` with ``query [B, H, Lq, D]``,
    ``key [B, Hkv, Lk, D]`` and ``value [B, Hkv, Lk, Dv]``, and returns ``[B, H, Lq, Dv]`` in the
    query's dtype. Calls pass the declared keywords that a problem uses. A function that is causal
    in every call declares ``causal`` (its alignment) and ``always_causal=True``: no flag is passed,
    and every problem is causal. ``layout`` declares another layout of heads: ``"BSHD"``,
    ``"packed-qkv"``, ``"packed-kv"``, ``"varlen"`` or ``"latent"``
    (:mod:`conformance.declare.head_layouts`).
    ``"varlen"`` has two options: ``offsets="shared"`` gives queries and keys a common
    ``cu_seqlens`` and ``max_seqlen``; ``padded=True`` puts padding rows, which belong to no
    sequence, between sequences: ``cu_seqlens_q_padded`` and ``cu_seqlens_k_padded`` then hold the
    first row of each sequence, and the answer has the query's rows. ``"paged"`` hands over caches
    in pages, with a table and the lengths of items; ``page_sizes``, ``page_axes``, ``page_index``
    and ``queries`` say which (docs/kernels.md), and ``features=["cache_lengths"]`` dense caches
    with lengths. A function for contiguous
    tensors alone declares ``strides="contiguous"``: it may raise for other tensors, but not answer
    wrongly.

    ``keywords`` maps to the function's own names: ``{"keep": "attn_mask", "scale": "sm_scale",
    "window": ("window_left", "window_right")}``; a required parameter gets a neutral value in calls
    without its keyword. ``signature`` names a public function with equal names, layout and
    conventions: ``"flash_attn"``, ``"torch_sdpa"`` and others
    (:mod:`conformance.declare.signatures`); explicit promises override the signature's.
    ``definition`` is the path of a flashinfer-bench definition, which says it all
    (:mod:`conformance.declare.definitions`).

    Raises DeclarationError (a ValueError) for a promise that is unknown or that the function's
    signature cannot keep.
    """
    return _applied(_decorator("core", name, promises), function)


@overload
def layer(
    function: Callable[..., Any], /, *, name: str | None = ..., **promises: Any
) -> Candidate: ...
@overload
def layer(*, name: str | None = ..., **promises: Any) -> Decorator: ...
def layer(
    function: Callable[..., Any] | None = None, /, *, name: str | None = None, **promises: Any
) -> Candidate | Decorator:
    """Declare a builder ``(geometry, weights) -> forward`` of a multi-head attention layer.

    ``forward(query, key, value, **keywords)`` takes ``query [B, Lq, Eq]``, ``key [B, Lk, Ek]`` and
    ``value [B, Lk, Ev]`` and returns ``[B, Lq, Eo]``. ``inputs="self"`` calls ``forward(x)``,
    ``inputs="memory"`` calls ``forward(query, context)``; ``batched=False`` drops the batch axis. A
    forward that is a ``torch.nn.Module`` is put in eval mode. ``@layer`` alone is ``@layer()``.
    ``keywords`` maps to the forward's own names: see :func:`core`.

    Raises DeclarationError (a ValueError) for an unknown promise.
    """
    return _applied(_decorator("layer", name, promises), function)


def positions(
    function: object = None,
    /,
    *,
    max_length: int | None = None,
    name: str | None = None,
    **promises: Any,
) -> Decorator:
    """Declare a position encoding on its own: a function ``[B, L, E] -> [B, L, E]``.

    The function returns its input plus the sinusoidal encoding of positions 0 .. L, for every even
    width E and every length up to the required ``max_length``.

    Raises DeclarationError (a ValueError) without ``max_length``, and for an unknown promise.
    """
    if function is not None or max_length is None:
        msg = "conformance.positions needs to know how long: write positions(max_length=512)"
        raise DeclarationError(msg)
    return _decorator("positions", name, {**promises, "max_length": max_length})


def fixed_layer(
    forward: Callable[..., Any],
    weights: golden.ProjectionWeights | None,
    *,
    num_heads: int | None = None,
    num_kv_heads: int | None = None,
    name: str | None = None,
    **promises: Any,
) -> Candidate:
    """Declare a layer with its own weights: a built module, a library's layer.

    Widths and heads are pinned by the weights; batch, lengths, values and masks are drawn. With
    ``weights=None`` no golden answer exists: only metamorphic clauses run, and ``geometry=`` must
    pin the widths.

    Raises DeclarationError for weights that contradict the number of heads.
    """
    if not callable(forward):
        msg = f"conformance.fixed_layer takes a forward function or module, not {forward!r}"
        raise DeclarationError(msg)
    _check_name(name)
    given = promises.pop("keywords", None)
    pinned = _fixed_pins(weights, num_heads, num_kv_heads, promises.get("geometry"))
    declaration = _declare("layer", {**promises, "geometry": pinned}, "fixed_layer")

    def build(_geometry: Any, _weights: Any) -> Callable[..., Any]:
        return forward

    return Candidate(
        name=name or _name_of(forward),
        declaration=declaration,
        function=build if given is None else read_keywords(given).applied(build, declaration),
        fixed_weights=weights,
        weights_known=weights is not None,
    )


def _fixed_pins(
    weights: golden.ProjectionWeights | None,
    num_heads: int | None,
    num_kv_heads: int | None,
    rule: Any,
) -> Any:
    if weights is None:
        return _pins_without_weights(num_heads, num_kv_heads, rule)
    if not isinstance(weights, golden.ProjectionWeights):
        kind = type(weights).__name__
        msg = f"weights is a {kind}: give a conformance.ProjectionWeights, or None"
        raise DeclarationError(msg)
    if callable(rule):
        msg = "geometry is a function, but the weights pin the sizes: give a dict for the others"
        raise DeclarationError(msg)
    return _joined(rule, _pins_of(weights, num_heads, num_kv_heads), "the weights make it")


def _joined(rule: Any, sizes: dict[str, int], said: str) -> dict[str, Any]:
    """Declared pins completed by known sizes; raises DeclarationError for a contradiction."""
    pins = read_pins(rule)
    for name, size in sizes.items():
        pinned = pins.sizes.get(name, (sizes.get(pins.equal_to.get(name, name), size),))
        if size not in pinned:
            known = pins.equal_to.get(name, list(pinned))
            msg = f"geometry pins {name} to {known}, but {said} {size}: drop it there"
            raise DeclarationError(msg)
    return {**pins.equal_to, **pins.sizes, **sizes}


def _pins_without_weights(num_heads: int | None, num_kv_heads: int | None, rule: Any) -> Any:
    if callable(rule):
        return rule
    heads: dict[str, int] = {}
    if num_heads is not None:
        heads["num_heads"] = num_heads
    if num_kv_heads is not None:
        heads["num_kv_heads"] = num_kv_heads
    pinned = _joined(rule, heads, "the arguments make it")
    if num_heads is not None:
        pinned.setdefault("num_kv_heads", num_heads)
    missing = sorted(set(_WIDTHS) - set(pinned))
    if missing:
        widths, lacking = ", ".join(_WIDTHS), ", ".join(missing)
        msg = f"without weights, geometry= must pin {widths}: {lacking} missing"
        raise DeclarationError(msg)
    return pinned


def _pins_of(
    weights: golden.ProjectionWeights, num_heads: int | None, num_kv_heads: int | None
) -> dict[str, int]:
    _check_numbers(weights)
    query_rows, key_rows, value_rows = (t.shape[0] for t in (weights.q, weights.k, weights.v))
    if not isinstance(num_heads, int) or num_heads < 1 or query_rows % num_heads:
        msg = f"num_heads is {num_heads!r}: it must divide the {query_rows} rows of weights.q"
        raise DeclarationError(msg)
    head_size = query_rows // num_heads
    if key_rows % head_size:
        msg = f"weights.k has {key_rows} rows, which the head size {head_size} does not divide"
        raise DeclarationError(msg)
    kv_heads = key_rows // head_size
    if num_kv_heads not in (None, kv_heads):
        msg = f"num_kv_heads is {num_kv_heads!r}, but the key rows make {kv_heads} heads"
        raise DeclarationError(msg)
    if num_heads % kv_heads:
        msg = (
            f"the key rows make {kv_heads} heads, which do not divide the {num_heads} heads of "
            "weights.q"
        )
        raise DeclarationError(msg)
    if value_rows % kv_heads:
        msg = f"weights.v has {value_rows} rows, which the {kv_heads} key/value heads do not divide"
        raise DeclarationError(msg)
    value_head_size = value_rows // kv_heads
    merged = num_heads * value_head_size
    _check_fixed(weights, num_heads, value_head_size)
    return {
        "num_heads": num_heads,
        "num_kv_heads": kv_heads,
        "head_size": head_size,
        "value_head_size": value_head_size,
        "query_size": weights.q.shape[1],
        "key_size": weights.k.shape[1],
        "value_size": weights.v.shape[1],
        "output_size": merged if weights.o is None else weights.o.shape[0],
    }


def _check_numbers(weights: golden.ProjectionWeights) -> None:
    for field in dataclasses.fields(weights):
        tensor: Tensor | None = getattr(weights, field.name)
        if tensor is None and field.name not in ("q", "k", "v"):
            continue
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            shown = tensor.dtype if isinstance(tensor, Tensor) else f"{tensor!r:.60}"
            msg = f"weights.{field.name} is {shown}: give a tensor of floating-point numbers"
            raise DeclarationError(msg)
        if tensor.dim() != (1 if field.name.endswith("bias") else len(("out", "in"))):
            msg = (
                f"weights.{field.name} has shape {list(tensor.shape)}: give a matrix (out, in), "
                "and one number a row as a bias"
            )
            raise DeclarationError(msg)
        if 0 in tensor.shape:
            msg = (
                f"weights.{field.name} has shape {list(tensor.shape)}: give a layer of at least "
                "one row and one column"
            )
            raise DeclarationError(msg)
        broken = (~torch.isfinite(tensor)).nonzero()
        if len(broken):
            where = broken[0].tolist()
            msg = (
                f"weights.{field.name} holds {float(tensor[tuple(where)])} at {where}: no answer "
                "could be right; give finite weights"
            )
            raise DeclarationError(msg)


def _check_fixed(weights: golden.ProjectionWeights, num_heads: int, value_head_size: int) -> None:
    merged = num_heads * value_head_size
    if weights.o is not None and weights.o.shape[1] != merged:
        msg = (
            f"weights.o has {weights.o.shape[1]} columns where {num_heads} heads of size "
            f"{value_head_size} make {merged}"
        )
        raise DeclarationError(msg)
    for role in "qkvo":
        matrix, bias = getattr(weights, role), getattr(weights, f"{role}_bias")
        if matrix is not None and bias is not None and tuple(bias.shape) != (matrix.shape[0],):
            msg = (
                f"weights.{role}_bias has shape {list(bias.shape)} where weights.{role} has "
                f"{matrix.shape[0]} rows"
            )
            raise DeclarationError(msg)


def _decorator(kind: str, name: str | None, promises: dict[str, Any]) -> Decorator:
    _check_name(name)
    signature, given, file = (promises.pop(word, None) for word in _OF_CALLS)
    if file is not None:
        if kind != "core" or signature is not None or given is not None:
            msg = "definition says how a core is called: drop it, or signature and keywords"
            raise DeclarationError(msg)
        return _by_definition(file, name, promises)
    row = None if signature is None else read_signature(signature, kind)
    keywords = None if given is None else read_keywords(given)
    declaration = _declare(kind, {**({} if row is None else row.promises), **promises})
    if declaration.operator:
        registered_operator(declaration.operator)

    def decorate(function: Callable[..., Any]) -> Candidate:
        if not callable(function):
            msg = f"conformance.{kind} decorates a function, not {function!r}"
            raise DeclarationError(msg)
        shown, declared, named = name or _name_of(function), declaration, keywords
        if row is not None:
            named = row.keywords_of(function).joined(keywords)
            declared = _declare(kind, row.promised(function, named.names, promises))
        called = function if named is None else named.applied(function, declared)
        if kind != "layer":
            check_signature(called, declared, shown)
        operator = declared.operator or operator_of(function)
        declared = dataclasses.replace(declared, operator=operator)
        return Candidate(name=shown, declaration=declared, function=called)

    return decorate


def _by_definition(file: Any, name: str | None, promises: dict[str, Any]) -> Decorator:
    """Declare a core by a definition's file; explicit promises override the definition's."""
    if not isinstance(file, (str, Path)):
        msg = f"definition is {repr_of(file)}: give the path of a JSON file"
        raise DeclarationError(msg)
    definition = read_definition(file)
    declared = _declare("core", {**definition.promises, **promises})
    declared = dataclasses.replace(declared, assumptions=definition.assumptions)

    def decorate(function: Callable[..., Any]) -> Candidate:
        if not callable(function):
            msg = f"conformance.core decorates a function, not {function!r}"
            raise DeclarationError(msg)
        called = definition.keywords.applied(definition.called(function), declared)
        return Candidate(name=name or _name_of(function), declaration=declared, function=called)

    return decorate


def _check_name(name: object) -> None:
    if name is not None and (not isinstance(name, str) or not name):
        empty = " that is not empty" if isinstance(name, str) else ""
        msg = f"name is {repr_of(name)}: give a text{empty}"
        raise DeclarationError(msg)


def _applied(decorator: Decorator, function: object) -> Candidate | Decorator:
    """The decorator, or the candidate where the decorator is used without parentheses."""
    return decorator if function is None else decorator(function)  # type: ignore[arg-type]  # it refuses what is no function


def _name_of(function: Callable[..., Any]) -> str:
    operator = operator_of(function)
    if operator:
        return operator.partition("::")[2]
    return str(getattr(function, "__name__", type(function).__name__))


def _declare(kind: str, promises: dict[str, Any], said: str = "") -> Declaration:
    """Check the names of promises and declare; ``said`` is the public function if not the kind."""
    accepted = [word for word in inspect.signature(declare).parameters if word != "kind"]
    for word in promises:
        if word not in accepted:
            suggestion = did_you_mean(word, (*accepted, *_OF_CALLS))
            msg = f"conformance.{said or kind} got an unknown argument {word!r}{suggestion}"
            raise DeclarationError(msg)
    return declare(kind, **promises)


def check_signature(function: Callable[..., Any], declaration: Declaration, name: str) -> None:
    """Require a function that can be called as declared; raises DeclarationError.

    Functions in C without a signature are not checked.
    """
    try:
        signature = signature_of(function) or inspect.signature(function)
    except (TypeError, ValueError):
        return
    inputs = declaration.positional
    try:
        signature.bind_partial(*inputs)
    except TypeError:
        called = f"{len(inputs)} positional inputs ({', '.join(inputs)})"
        msg = f"{name}{signature} is called with {called}"
        raise DeclarationError(msg) from None
    for keyword in declaration.keywords:
        try:
            signature.bind_partial(*inputs, **{keyword: None})
        except TypeError:
            promised = f"the keyword {keyword!r} that its declaration promises"
            own = inspect.Parameter(keyword, inspect.Parameter.KEYWORD_ONLY, default=None)
            others = list(signature.parameters.values())[len(inputs) :]
            same = [one.name for one in others if option_of(one) == option_of(own) != ""]
            lead = (
                f"declare keywords={{{keyword!r}: {same[0]!r}}}, rename its {same[0]!r} to it"
                if same
                else f"give it a parameter {keyword}=None"
            )
            msg = f"{name}{signature} does not take {promised}: {lead}, or promise less"
            raise DeclarationError(msg) from None
    _check_required(signature, inputs, declaration, name)


def _check_required(
    signature: inspect.Signature, inputs: tuple[str, ...], declaration: Declaration, name: str
) -> None:
    """Require that calls without optional keywords are possible: some problems use none."""
    try:
        signature.bind(*inputs, **dict.fromkeys(declaration.required))
    except TypeError as error:
        arguments = ", ".join((*inputs, *declaration.required))
        msg = (
            f"{name}{signature} cannot be called with {arguments} alone ({error}): give "
            f"{'its keywords' if declaration.keywords else 'the other parameters'} defaults"
        )
        raise DeclarationError(msg) from None


def renamed(candidate: Candidate, name: str) -> Candidate:
    """A copy of a candidate under another name."""
    first_name = candidate.first_name or candidate.name
    return dataclasses.replace(candidate, name=name, first_name=first_name)
