"""Mistakes in what dot products are multiplied by, and in heads prepared before them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from ..._golden import golden
from ...problems.inputs import Inputs
from ._steps import reweighed
from .named_mistake import DeclaredCall, Heads, HeadsChange, InputsChange, NamedMistake, named

ScaleOf = Callable[[DeclaredCall], float]
_USE_HEAD_SIZE: Final = "divide by the square root of the head size"
_CLAUSE: Final = "numerics.scale"


def _default(scale: ScaleOf) -> InputsChange:
    """Another scale where the call gives none."""

    def inputs_for(call: DeclaredCall) -> Inputs | None:
        inputs = call.inputs
        return None if inputs.scale is not None else inputs.replace(scale=scale(call))

    return inputs_for


def _always(scale: ScaleOf) -> InputsChange:
    return lambda call: call.inputs.replace(scale=scale(call))


def _given(scale: Callable[[DeclaredCall], float | None]) -> InputsChange:
    """Another scale where the call gives one."""

    def inputs_for(call: DeclaredCall) -> Inputs | None:
        inputs = call.inputs
        return None if inputs.scale is None else inputs.replace(scale=scale(call))

    return inputs_for


# What a scale of the call is used with: a power of the head size, where the rule's -1/2 is one.
_ON_TOP: Final = {
    -1.0: "divided by the head size",
    -1.5: "divided by the head size times its square root",
    0.5: "multiplied by the square root of the head size",
    1.0: "multiplied by the head size",
}


def _on_top(power: float) -> InputsChange:
    return _given(lambda call: call.scale * max(_head_size(call), 1) ** power)


def _head_size(call: DeclaredCall) -> int:
    return call.inputs.geometry.head_size


def _padded(multiple: int, least: int = 1) -> InputsChange:
    def scale(call: DeclaredCall) -> float:
        size = _head_size(call)
        return math.pow(size if size < least else size + -size % multiple, -0.5)

    return _default(scale)


def _power_of_two(call: DeclaredCall) -> float:
    return math.pow(2.0 ** math.ceil(math.log2(max(_head_size(call), 1))), -0.5)


def _root(size: Callable[[Inputs], int]) -> InputsChange:
    return _default(lambda call: max(size(call.inputs), 1) ** -0.5)


def _compounding(call: DeclaredCall, heads: Heads) -> Heads:
    """Each head is scaled once more than the one before."""
    query, key, value = heads
    times = torch.arange(query.shape[1]).reshape(-1, 1, 1).double()
    return query * call.scale**times, key, value


def _lost(where: Callable[[Inputs], bool]) -> InputsChange:
    def inputs_for(call: DeclaredCall) -> Inputs | None:
        return call.inputs.replace(scale=1.0) if where(call.inputs) else None

    return inputs_for


def _reciprocal(scale: float, of_zero: float = math.inf) -> float:
    return 1.0 / scale if scale else of_zero


def _zeros(call: DeclaredCall, output: Tensor) -> Tensor | None:
    """Zeros in place of the NaN of a quotient by zero, as of a row without keys."""
    return torch.zeros_like(output) if call.inputs.scale == 0.0 else None


_DIVIDED: Final[dict[str, Any]] = {
    "sentence": "the scores are divided by the scale, whether the call gives it or not",
    "fix": "multiply by it",
}
SCALING: Final[tuple[NamedMistake, ...]] = (
    *named("scale-inverted", _CLAUSE)(
        "the scores are multiplied by the square root of the head size",
        "divide by it: head_size ** -0.5 as a factor, not as a divisor",
        {"changes": {"scale": "sqrt-head-size"}},
        {**_DIVIDED, "inputs": _always(lambda call: _reciprocal(call.scale))},
        {
            **_DIVIDED,
            "inputs": _always(lambda call: _reciprocal(call.scale, 0.0)),
            "output": _zeros,
        },
    ),
    *named("scale-applied-twice", _CLAUSE)(
        "the scale is applied twice",
        "apply it once, to the queries or to the scores",
        {"inputs": _always(lambda call: call.scale**2)},
    ),
    *named("scale-of-key-length", _CLAUSE)(
        "the scale uses the number of keys",
        _USE_HEAD_SIZE,
        {"inputs": _root(lambda inputs: inputs.geometry.key_length)},
    ),
    *named("scale-of-query-length", _CLAUSE)(
        "the scale uses the number of queries",
        _USE_HEAD_SIZE,
        {"inputs": _root(lambda inputs: inputs.geometry.query_length)},
    ),
    *named("scale-of-input-width", _CLAUSE, where=lambda inputs: inputs.is_layer)(
        "the scale uses the width of the layer's input",
        _USE_HEAD_SIZE,
        {"inputs": _root(lambda inputs: inputs.geometry.query_size)},
        {"inputs": _root(lambda inputs: inputs.geometry.key_size)},
    ),
    *named("scale-of-key-head-count", _CLAUSE, special_of="scale-of-head-count")(
        "the scale uses the number of key/value heads",
        _USE_HEAD_SIZE,
        {"inputs": _root(lambda inputs: inputs.geometry.num_kv_heads)},
    ),
    *named("scale-of-padded-head-size", _CLAUSE)(
        "the scale uses the head size after padding it",
        "take the root of the head size before padding",
        *({"inputs": _padded(multiple)} for multiple in (8, 16, 32, 64, 128)),
        {"inputs": _padded(8, least=16)},
        {"inputs": _default(_power_of_two)},
    ),
    *named("scale-hard-coded-eighth", _CLAUSE)(
        "the scale is 1/8 whatever the head size, which is right for heads of 64 only",
        _USE_HEAD_SIZE,
        {"inputs": _default(lambda _call: 0.125)},
        {"inputs": _always(lambda _call: 0.125)},
    ),
    *named("scale-of-half-head-size", _CLAUSE)(
        "the scale uses half of the head size",
        _USE_HEAD_SIZE,
        {"inputs": _default(lambda call: max(_head_size(call) / 2, 0.5) ** -0.5)},
    ),
    *named("scale-fourth-root", _CLAUSE)(
        "the scores are divided by the fourth root of the head size: one operand alone is scaled",
        "scale both operands by the fourth root, or one by the square root",
        {"inputs": _default(lambda call: max(_head_size(call), 1) ** -0.25)},
        {
            "sentence": "the scores are multiplied by the root of the scale: one operand alone is",
            "inputs": _always(lambda call: math.copysign(abs(call.scale) ** 0.5, call.scale)),
        },
    ),
    *named("scale-times-minus-half", _CLAUSE)(
        "the scores are multiplied by minus half the head size",
        "raise the head size to the power of -0.5: ** and not *",
        {"inputs": _default(lambda call: -0.5 * _head_size(call))},
    ),
    *named("scale-negated", _CLAUSE)(
        "the sign of the scores is wrong: similar keys weigh the least",
        "drop the minus sign",
        {"inputs": _always(lambda call: -call.scale)},
        {"inputs": _default(lambda call: -call.scale)},
    ),
    *named("scale-argument-ignored", _CLAUSE)(
        "the scale that the call gives is ignored",
        "use it instead of the default",
        {"inputs": _given(lambda _call: None)},
    ),
    *named("scale-argument-on-top", _CLAUSE)(
        "the scale that the call gives is applied on top of the default",
        "use it instead of the default",
        {"inputs": _given(lambda call: call.scale * call.default_scale)},
        *(
            {"sentence": f"the scale that the call gives is {words}", "inputs": _on_top(power)}
            for power, words in _ON_TOP.items()
        ),
    ),
    *named("scale-argument-inverted", _CLAUSE)(
        "the scores are divided by the scale that the call gives",
        "multiply by it",
        {"inputs": _given(lambda call: _reciprocal(call.scale))},
    ),
    *named("scale-argument-zero-taken-for-unset", "numerics.odd-scale")(
        "a scale of zero is taken for a scale that is not given",
        "test for None, not for truth",
        {
            "inputs": lambda call: (
                call.inputs.replace(scale=None) if call.inputs.scale == 0.0 else None
            )
        },
    ),
    *named("scale-argument-sign-lost", "numerics.odd-scale")(
        "the sign of a negative scale is lost",
        "use the scale as it is given",
        {"inputs": _given(lambda call: abs(call.scale))},
    ),
    *named("scale-compounds-over-heads", "equivariance.heads")(
        "the queries are scaled once more for each head: the loop overwrites them",
        "scale once, before the loop over heads",
        {"heads": _compounding},
    ),
    *named("scale-lost-under-mask", "mask.all-keep")(
        "the scores are not scaled where a mask is given",
        "scale on every path",
        {"inputs": _lost(lambda inputs: inputs.masked)},
    ),
    *named("scale-lost-under-causal", "mask.causal-combined")(
        "the scores are not scaled where the causal flag is set",
        "scale on every path",
        {"inputs": _lost(lambda inputs: inputs.causal)},
    ),
    *named("exponentials-of-base-two", _CLAUSE)(
        "powers of two are taken where exponentials are meant",
        "multiply the logits by log2(e), or use exp",
        {"core": reweighed(lambda logits: torch.softmax(logits * math.log(2.0), -1))},
    ),
    *named("scale-times-log2e", _CLAUSE)(
        "the logits are multiplied by log2(e), as for powers of two, and then meet exp",
        "use exp2, or leave the factor out",
        {"core": reweighed(lambda logits: torch.softmax(logits / math.log(2.0), -1))},
        {"inputs": _always(lambda call: call.scale / math.log(2.0))},
    ),
)


_NORM: Final = "qk-norm.golden"
_MODIFIED: Final = "score-mod.golden"
_FIX: Final = "normalise each head of each query and key by itself, before it is turned"
_CALL: Final = "call it as score_mod(score, batch, head, query, key) on the scaled, capped scores"
_RMS: Final = {"qk_norm": "rms"}
_PLAIN: Final = {"qk_norm": "none"}
# What each rule divides a head by, in words that tell one from another.
_DIVISORS: Final = {
    "rms": "the root of the mean of its squares",
    "layer": "its standard deviation, its mean taken off before",
    "l2": "the root of the sum of its squares",
}


def _normalises(point: golden.Semantics) -> bool:
    return point.qk_norm != "none"


def _instead(change: Callable[[Tensor, Tensor, golden.Semantics], tuple[Tensor, Tensor]]) -> Any:
    """Query and key that are made by hand of those behind the projections."""

    def heads(call: DeclaredCall, before: Heads) -> Heads:
        query, key, value = before
        declared = call.inputs.point
        return (*change(query.double(), key.double(), declared), value)

    made: HeadsChange = heads
    return made


def _epsilon_of(role: str, value: float) -> dict[str, Any]:
    """Another epsilon for queries or keys alone."""

    def change(query: Tensor, key: Tensor, declared: golden.Semantics) -> tuple[Tensor, Tensor]:
        other = declared.replace(qk_norm_epsilon=value)
        points = (other, declared) if role == "query" else (declared, other)
        return golden.normalise_heads(query, points[0]), golden.normalise_heads(key, points[1])

    return {
        "changes": _PLAIN,
        "heads": _instead(change),
        "fits": lambda point: _normalises(point) and point.qk_norm_epsilon != value,
    }


def _over_all_heads(tokens: Tensor, point: golden.Semantics) -> Tensor:
    """The heads of a token side by side are normalised as one."""
    merged = tokens.transpose(1, 2).flatten(2).unsqueeze(1)
    normalised = golden.normalise_heads(merged, point).squeeze(1)
    heads: Tensor = normalised.unflatten(-1, (tokens.shape[1], -1)).transpose(1, 2)
    return heads


def _norm(name: str, text: str, *ways: dict[str, Any]) -> list[NamedMistake]:
    shared = {"base": _RMS, "fits": _normalises}
    return named(name, _NORM)(
        text,
        _FIX,
        *({**shared, **way} for way in ways),
    )


def leaning(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """The function by which such mistakes are acted out: every index shows."""
    moved = 1.0 + 0.25 * ((query + 2 * key + head) % 3)
    return moved * score - 0.125 * batch * key


def _rearranged(order: Callable[..., tuple[Any, ...]]) -> dict[str, Any]:
    """The function called with its indices in another order."""

    def change(point: golden.Semantics) -> golden.Semantics:
        called = point.score_mod
        if called is None:
            return point
        return point.replace(score_mod=lambda score, *indices: called(score, *order(*indices)))

    return {"point": change}


def _from_last(index: Tensor) -> Tensor:
    return index.amax() - index if index.numel() else index


def _modified(name: str, text: str, *ways: dict[str, Any]) -> list[NamedMistake]:
    shared = {
        "base": {"score_mod": leaning},
        "fits": lambda point: point.score_mod is not None,
    }
    return named(name, _MODIFIED)(
        text,
        _CALL,
        *({**shared, **way} for way in ways),
    )


PREPARED: Final[tuple[NamedMistake, ...]] = (
    *_norm("qk-norm-missing", "queries and keys are not normalised", {"changes": _PLAIN}),
    *(
        entry
        for declared in _DIVISORS
        for other in _DIVISORS
        if other != declared
        for entry in named("qk-norm-other", _NORM)(
            "queries and keys are normalised by another rule: divided by "
            f"{_DIVISORS[other]}, not by {_DIVISORS[declared]}",
            f"divide each head of each query and key by {_DIVISORS[declared]}",
            {"base": {"qk_norm": declared}, "changes": {"qk_norm": other}},
        )
    ),
    *named("qk-norm-undeclared", "numerics.golden")(
        "queries and keys are normalised, which is not declared",
        "declare it",
        *(
            {
                "base": {"qk_norm": "none"},
                "changes": {"qk_norm": rule, "qk_norm_epsilon": value},
                "fix": f'declare it: semantics=conformance.Semantics(qk_norm="{rule}"{more}); of a '
                "graph qk_norm under [semantics] in its sidecar. Or take them as they are",
            }
            # Where both epsilons fit, that of torch's layer norm is the likelier for one.
            for rule, value, more in (
                ("rms", 1e-6, ""),
                ("rms", 1e-5, ", qk_norm_epsilon=1e-05"),
                ("layer", 1e-5, ", qk_norm_epsilon=1e-05"),
                ("layer", 1e-6, ""),
            )
        ),
    ),
    *_norm(
        "qk-norm-epsilon",
        "epsilon is left out, or is another",
        *(
            {
                "changes": {"qk_norm_epsilon": value},
                "fix": f"add the declared epsilon to the squares under the root, not {value:g}",
            }
            for value in (0.0, 1e-12, 1e-8, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
        ),
    ),
    *(
        mistake
        for role, words in (("key", "keys"), ("query", "queries"))
        for mistake in named(f"qk-norm-epsilon-of-{words}", _NORM, base=_RMS)(
            f"the epsilon that the {words} are normalised with is another than declared",
            "add the declared epsilon to the squares of both, queries and keys",
            *(_epsilon_of(role, value) for value in (1e-8, 1e-6, 1e-5, 1e-3)),
        )
    ),
    *_norm(
        "qk-norm-query-only",
        "queries are normalised and keys are not",
        {
            "changes": _PLAIN,
            "heads": _instead(lambda q, k, point: (golden.normalise_heads(q, point), k)),
        },
    ),
    *_norm(
        "qk-norm-key-only",
        "keys are normalised and queries are not",
        {
            "changes": _PLAIN,
            "heads": _instead(lambda q, k, point: (q, golden.normalise_heads(k, point))),
        },
    ),
    *_norm(
        "qk-norm-all-heads",
        "the norm is that of all heads of a token together",
        {
            "changes": _PLAIN,
            "heads": _instead(
                lambda q, k, point: (_over_all_heads(q, point), _over_all_heads(k, point))
            ),
        },
    ),
    *_modified(
        "score-mod-missing", "the function is not applied", {"changes": {"score_mod": None}}
    ),
    *_modified(
        "score-mod-indices",
        "the function gets its indices in another order",
        _rearranged(lambda batch, head, query, key: (batch, head, key, query)),
        _rearranged(lambda batch, head, query, key: (head, batch, query, key)),
        {
            **_rearranged(lambda batch, head, query, key: (batch, head, query, _from_last(key))),
            "sentence": "the function gets the index of each key counted from the last one, or "
            "keys and values stand in the reverse order",
        },
        {
            **_rearranged(lambda batch, head, query, key: (batch, head, _from_last(query), key)),
            "sentence": "the function gets the index of each query counted from the last one, or "
            "queries stand in the reverse order, and their answers in the right one",
        },
    ),
)
