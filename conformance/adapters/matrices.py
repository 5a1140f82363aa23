"""Turns a function that takes weights as arguments into a module with parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import product
from keyword import iskeyword
from typing import Any, Final

import torch
from torch import nn

from ..base.parameter_names import POSITIONAL, option_of, role_of, words_of
from ..errors import DeclarationError
from .arrays import arrays_of, on_arrays
from .construction import Sizes, answering
from .packing import KV_HEAD_NAMES

_SEED: Final = 0
_ALL: Final = frozenset("qkv")


def with_matrices(
    function: Callable[..., Any], /, *, name: str | None = None, **given: Any
) -> nn.Module:
    """A module from a function with weights as arguments, for :func:`conformance.module`.

    ``given`` are arguments by name. A tuple is the shape of a matrix or bias, which becomes a
    parameter of the module, drawn from a normal distribution; a dict of tuples becomes a dict of
    parameters; any other value is passed unchanged. The function's remaining parameters are the
    signature of ``forward``.

    Raises DeclarationError for a name that the function lacks.
    """
    signature = inspect.signature(function)
    for word in given:
        if word not in signature.parameters:
            own = ", ".join(signature.parameters)
            msg = f"{function.__name__} has no parameter {word!r} (it has {own})"
            raise DeclarationError(msg)

    def forward(self: nn.Module, *inputs: Any, **options: Any) -> Any:
        bound = left.bind(self, *inputs, **options).arguments
        held = {word: getattr(self, word) for word in given}
        for word, keys in bundles.items():
            held[word] = {key: held[word][stored] for key, stored in keys.items()}
        return called(**held, **{word: bound[word] for word in kept if word in bound})

    called = function if arrays_of(function)[0] == "torch" else partial(on_arrays, function)
    bundles = {
        word: {key: _STORED.get(key, key) for key in value}
        for word, value in given.items()
        if _is_bundle(value)
    }
    kept = {word: one for word, one in signature.parameters.items() if word not in given}
    first = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    left = inspect.Signature([first, *kept.values()])
    forward.__signature__ = left  # type: ignore[attr-defined]  # as inspect documents it
    made: nn.Module = type(name or function.__name__, (nn.Module,), {"forward": forward})()
    generator = torch.Generator().manual_seed(_SEED)

    def drawn(shape: tuple[int, ...]) -> nn.Parameter:
        return nn.Parameter(torch.randn(shape, generator=generator) * max(shape) ** -0.5)

    for word, value in given.items():
        if word in bundles:
            drawn_as = {bundles[word][key]: drawn(shape) for key, shape in value.items()}
            setattr(made, word, nn.ParameterDict(drawn_as))
        else:
            setattr(made, word, drawn(value) if isinstance(value, tuple) else value)
    return made


# Keys of matrix and bias in a dict of both, as in ``linear(x, **c_attn)``.
_KEYS: Final = (("w", "b"), ("weight", "bias"), ("kernel", "bias"))
# The names by which a layer's matrix and bias are known.
_STORED: Final = {name: own for pair in _KEYS for name, own in zip(pair, _KEYS[1], strict=True)}


def _is_bundle(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(one, tuple) for one in value.values())


def as_module(function: Callable[..., Any], expression: str) -> tuple[nn.Module, str] | None:
    """A module from a function of matrices, and the expression of the module; None for others."""
    given = matrices_given(function)
    if given is None:
        return None
    said = ", ".join(f"{word}={value!r}" for word, value in given.items())
    made = f"conformance.with_matrices({expression}, {said})"
    return with_matrices(function, **given), made


def matrices_given(function: Callable[..., Any]) -> dict[str, Any] | None:
    """Arguments of ``with_matrices`` for a function of matrices: shapes, heads, sizes.

    Takes the first order of a matrix' axes with an answered call. None for a function that answers
    no call or takes no matrices.
    """
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # written in C
        return None
    weights = {word: role for word, one in parameters.items() if (role := _role_of_weight(one))}
    needed = [one for one in parameters.values() if one.default is one.empty]
    inputs = [one for one in needed if one.name not in weights][1:]  # behind the tokens
    sizes = Sizes(None, list(parameters))
    numbers = {
        one.name: sizes.value(one.name)
        for one in inputs
        if not option_of(one) and type(sizes.value(one.name)) is int
    }
    others = [one.name for one in inputs if one.name not in numbers]
    bundle = ""
    if not takes_matrices(parameters.values()):  # but maybe a dict of them
        weights = _keys_of(function)
        if weights and len(others) == 1 and {*"".join(weights.values())} >= _ALL:
            bundle = others[0]
        else:
            return None
    for shapes in _shapes(weights, sizes, numbers):
        given = {**({bundle: shapes} if bundle else shapes), **numbers}
        if _answers(function, given):
            return given
    for keys, shapes in product(() if bundle else _KEYS, _shapes(weights, sizes, numbers)):
        given = {**{word: _with_bias(shape, keys) for word, shape in shapes.items()}, **numbers}
        if _answers(function, given):
            return given
    return None


def _with_bias(shape: tuple[int, ...], keys: tuple[str, str]) -> dict[str, tuple[int, ...]]:
    """The shapes of a matrix ``(in, out)`` and of its bias."""
    return dict(zip(keys, (shape, shape[1:]), strict=True))


def _keys_of(function: Callable[..., Any]) -> dict[str, str]:
    """Texts in a function's code that name weights, with roles: keys of a dict argument."""
    code = getattr(function, "__code__", None)
    texts = [
        text
        for text in (_texts_in(code) if code else ())
        if text.isidentifier() and not iskeyword(text)
    ]
    names = [inspect.Parameter(text, inspect.Parameter.POSITIONAL_OR_KEYWORD) for text in texts]
    return {one.name: role for one in names if (role := _role_of_weight(one))}


def _texts_in(constant: Any) -> Iterator[str]:
    """The texts among the constants of a code object, nested functions included."""
    if isinstance(constant, str):
        yield constant
    for one in getattr(constant, "co_consts", constant if isinstance(constant, tuple) else ()):
        yield from _texts_in(one)


def takes_matrices(parameters: Iterable[inspect.Parameter]) -> bool:
    """Whether required parameters include matrices of query, key and value, and an input."""
    needed = [one for one in parameters if one.default is one.empty and one.kind in POSITIONAL]
    roles = {one.name: _role_of_weight(one) for one in needed}
    matrices = "".join(role for word, role in roles.items() if role and not _is_bias(word))
    return {*matrices} >= _ALL and not all(roles.values())


def _answers(function: Callable[..., Any], given: Mapping[str, Any]) -> bool:
    made = with_matrices(function, **given)
    return any(answering(made, batched=batched) is not None for batched in (True, False))


def _role_of_weight(parameter: inspect.Parameter) -> str:
    """The role of the weight that a parameter's name means; "" for an input or an option.

    A bare role such as ``q`` or ``keys`` names an input.
    """
    words = words_of(parameter.name)
    role, clear = role_of(parameter.name)
    alone = len(words) == 1 and role_of(f"w{words[0]}")[0] == role
    said = clear or (role == "o" and len(words) > 1)
    by_place = parameter.kind is not parameter.VAR_KEYWORD
    return role if said and not alone and by_place else ""


def _is_bias(name: str) -> bool:
    words = words_of(name)
    short = len(words) == 1 and words[0].startswith("b") and role_of(words[0][1:])[1]
    return short or "bias" in words or "b" in (words[0], words[-1])


def _shapes(
    weights: Mapping[str, str], sizes: Sizes, numbers: Mapping[str, int]
) -> Iterator[dict[str, tuple[int, ...]]]:
    """Possible shapes of weights: one matrix for all heads, or an axis of heads."""
    width, size = sizes.width, sizes.head_size
    shared = any(name.lower() in KV_HEAD_NAMES for name in numbers)
    heads = dict.fromkeys("qo", sizes.heads) | dict.fromkeys(
        "kv", sizes.kv_heads if shared else sizes.heads
    )

    def shapes(order: str, output: str) -> dict[str, tuple[int, ...]]:
        made = {}
        for word, role in weights.items():
            count = sum(heads[letter] for letter in role)
            axes = {"E": width, "R": count * size, "H": count, "D": size}
            letters = output if role == "o" else order
            if _is_bias(word):
                letters = "E" if role == "o" else order.replace("E", "")
            made[word] = tuple(axes[letter] for letter in letters)
        return made

    yield shapes("RE", "ER")
    yield shapes("ER", "RE")
    yield shapes("HED", "HDE")
    yield shapes("EHD", "HDE")
    yield shapes("HDE", "EHD")
