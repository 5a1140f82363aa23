"""Wrong factors of the dot products, and wrong preparation of the heads."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from ..._golden import golden
from ...problems.inputs import Inputs
from .named_mistake import Edits, NamedMistake, changed, edits_by, fixing, named

Edit = golden.Edit
_CLAUSE: Final = "numerics.scale"
_USE_HEAD_SIZE: Final = "divide by the square root of the head size"
_LOST: Final = "scale on every path"
_scale: Final = partial(named, primary=_CLAUSE)


def _default(rule: Callable[..., float]) -> golden.Edit:
    return Edit("scale", rule, when=lambda given_scale: given_scale is None)


def _given(change: Callable[..., float]) -> golden.Edit:
    return Edit("scale", change=change, when=lambda given_scale: given_scale is not None)


def _always(change: Callable[[float], float]) -> golden.Edit:
    return Edit("scale", change=change)


def _head_size_power(power: float, *, times: float = 1.0) -> golden.Edit:
    return _default(lambda sizes: times * max(sizes.head_size, 1) ** power)


def _root(size: Callable[[Inputs], int]) -> golden.Edit:
    return _default(lambda inputs: max(size(inputs), 1) ** -0.5)


def _multiply_by_power(power: float) -> golden.Edit:
    """Multiply the call's scale by a power of the head size (-1/2 is the default rule's)."""
    return _given(lambda scale, sizes: scale * max(sizes.head_size, 1) ** power)


_ON_TOP: Final = {
    -1.0: "divided by the head size",
    -1.5: "divided by the head size times its square root",
    0.5: "multiplied by the square root of the head size",
    1.0: "multiplied by the head size",
}


def _padded(multiple: int, least: int = 1) -> golden.Edit:
    def scale(sizes: golden.Sizes) -> float:
        size = sizes.head_size
        return math.pow(size if size < least else size + -size % multiple, -0.5)

    return _default(scale)


def _power_of_two(sizes: golden.Sizes) -> float:
    return math.pow(2.0 ** math.ceil(math.log2(max(sizes.head_size, 1))), -0.5)


def _is_zero(inputs: Inputs) -> bool:
    return inputs.scale == 0.0


def _reciprocal(scale: float) -> float:
    return 1.0 / scale if scale else 0.0


def _nan_but_empty(weights: Tensor, empty: Tensor) -> Tensor:
    return torch.where(empty.unsqueeze(-1), weights, math.nan)


def _compounding(query: Tensor, scale: float) -> Tensor:
    return query * scale ** torch.arange(query.shape[1]).reshape(-1, 1, 1).double()


# A division by zero gives NaN in every row with keys, or zero after a repair.
_QUOTIENT: Final = Edit("scale", change=_reciprocal)
_DIVIDED: Final[dict[str, Any]] = {
    "sentence": "the scores are divided by the scale, whether the call gives it or not",
    "fix": "multiply by it",
}
_NAN: Final = Edit("weights", change=_nan_but_empty, when=_is_zero)
_UNIT: Final = Edit("scale", lambda: 1.0)
SCALING: Final[tuple[NamedMistake, ...]] = (
    *_scale("scale-inverted")(
        "the scores are multiplied by the square root of the head size",
        "divide by it: head_size ** -0.5 as a factor, not as a divisor",
        {"changes": {"scale": "sqrt-head-size"}},
        {**_DIVIDED, "edits": (_QUOTIENT, _NAN)},
        {
            **_DIVIDED,
            "edits": (_QUOTIENT, *changed(torch.zeros_like, "output", "answer", when=_is_zero)),
        },
    ),
    *_scale("scale-applied-twice")(
        "the scale is applied twice",
        "apply it once, to the queries or to the scores",
        _always(lambda scale: scale**2),
    ),
    *_scale("scale-of-key-length")(
        "the scale uses the number of keys",
        _USE_HEAD_SIZE,
        _root(lambda inputs: inputs.geometry.key_length),
    ),
    *_scale("scale-of-query-length")(
        "the scale uses the number of queries",
        _USE_HEAD_SIZE,
        _root(lambda inputs: inputs.geometry.query_length),
    ),
    *_scale("scale-of-input-width", where=lambda inputs: inputs.is_layer)(
        "the scale uses the width of the layer's input",
        _USE_HEAD_SIZE,
        _root(lambda inputs: inputs.geometry.query_size),
        _root(lambda inputs: inputs.geometry.key_size),
    ),
    *_scale("scale-of-key-head-count", special_of="scale-of-head-count")(
        "the scale uses the number of key/value heads",
        _USE_HEAD_SIZE,
        _root(lambda inputs: inputs.geometry.num_kv_heads),
    ),
    *_scale("scale-of-padded-head-size")(
        "the scale uses the head size after padding it",
        "take the root of the head size before padding",
        *(_padded(multiple) for multiple in (8, 16, 32, 64, 128)),
        _padded(8, least=16),
        _default(_power_of_two),
    ),
    *_scale("scale-hard-coded-eighth")(
        "the scale is 1/8 whatever the head size, which is right for heads of 64 only",
        _USE_HEAD_SIZE,
        _default(lambda: 0.125),
        _always(lambda _scale: 0.125),
    ),
    *_scale("scale-of-half-head-size")(
        "the scale uses half of the head size",
        _USE_HEAD_SIZE,
        _head_size_power(-0.5, times=2.0**0.5),
    ),
    *_scale("scale-fourth-root")(
        "the scores are divided by the fourth root of the head size: one operand alone is scaled",
        "scale both operands by the fourth root, or one by the square root",
        _head_size_power(-0.25),
        {
            "sentence": "the scores are multiplied by the root of the scale: one operand alone is",
            "edits": (_always(lambda scale: math.copysign(abs(scale) ** 0.5, scale)),),
        },
    ),
    *_scale("scale-times-minus-half")(
        "the scores are multiplied by minus half the head size",
        "raise the head size to the power of -0.5: ** and not *",
        _head_size_power(1.0, times=-0.5),
    ),
    *_scale("scale-negated")(
        "the sign of the scores is wrong: similar keys weigh the least",
        "drop the minus sign",
        _always(lambda scale: -scale),
        _default(lambda default_scale: -default_scale),
    ),
    *_scale("scale-argument-ignored")(
        "the scale that the call gives is ignored",
        "use it instead of the default",
        Edit("given_scale", lambda: None),
    ),
    *_scale("scale-argument-on-top")(
        "the scale that the call gives is applied on top of the default",
        "use it instead of the default",
        _given(lambda scale, default_scale: scale * default_scale),
        *(
            {
                "sentence": f"the scale that the call gives is {words}",
                "edits": (_multiply_by_power(power),),
            }
            for power, words in _ON_TOP.items()
        ),
    ),
    *_scale("scale-argument-inverted")(
        "the scores are divided by the scale that the call gives",
        "multiply by it",
        (_given(_reciprocal), _NAN),
    ),
    *named("scale-argument-zero-taken-for-unset", "numerics.odd-scale")(
        "a scale of zero is taken for a scale that is not given",
        "test for None, not for truth",
        Edit("given_scale", lambda: None, when=_is_zero),
    ),
    *named("scale-argument-sign-lost", "numerics.odd-scale")(
        "the sign of a negative scale is lost",
        "use the scale as it is given",
        _given(abs),
    ),
    *named("scale-compounds-over-heads", "equivariance.heads")(
        "the queries are scaled once more for each head: the loop overwrites them",
        "scale once, before the loop over heads",
        Edit("query", change=_compounding),
    ),
    *named("scale-lost-under-mask", "mask.all-keep", where=lambda inputs: inputs.masked)(
        "the scores are not scaled where a mask is given", _LOST, _UNIT
    ),
    *named("scale-lost-under-causal", "mask.causal-combined", where=lambda inputs: inputs.causal)(
        "the scores are not scaled where the causal flag is set", _LOST, _UNIT
    ),
    *_scale("exponentials-of-base-two")(
        "powers of two are taken where exponentials are meant",
        "multiply the logits by log2(e), or use exp",
        edits_by("multiplied by ln(2)", "logits", "sinks"),
    ),
    *_scale("scale-times-log2e")(
        "the logits are multiplied by log2(e), as for powers of two, and then meet exp",
        "use exp2, or leave the factor out",
        edits_by("multiplied by log2(e)", "logits", "sinks"),
        _always(lambda scale: scale / math.log(2.0)),
    ),
)


_NORM: Final = "qk-norm.golden"
_MODIFIED: Final = "score-mod.golden"
_FIX: Final = "normalise queries and keys as declared, before positions turn them"
_CALL: Final = "call it as score_mod(score, batch, head, query, key) on the scaled, capped scores"
_RMS: Final = {"qk_norm": "rms"}
_PLAIN: Final = {"qk_norm": "none"}
# The divisor of a head by each rule, in words.
_DIVISORS: Final = {
    "rms": "the root of the mean of its squares",
    "layer": "its standard deviation, its mean taken off before",
    "l2": "the root of the sum of its squares",
}


def _normalises(point: golden.Semantics) -> bool:
    return point.qk_norm != "none"


def _normalises_heads(point: golden.Semantics) -> bool:
    return _normalises(point) and point.qk_norm_over == "head"


def _normalises_by_order(point: golden.Semantics, declared: str) -> bool:
    return _normalises(point) and point.rotary != "none" and point.norm_order == declared


def _left_out(heads: Tensor, _point: golden.Semantics) -> Tensor:
    return heads


def _normalised(roles: str, rule: Callable[[Tensor, golden.Semantics], Tensor]) -> Edits:
    return tuple(
        Edit(f"normalised_{role}", golden.Rewired(rule, (f"given_{role}", "point")))
        for role in roles.split()
    )


def _change_epsilon(value: float) -> Callable[[Tensor, golden.Semantics], Tensor]:
    return lambda heads, point: golden.normalise_heads(heads, point.replace(qk_norm_epsilon=value))


def _epsilon_of(role: str, value: float) -> dict[str, Any]:
    return {
        "edits": _normalised(role, _change_epsilon(value)),
        "fits": lambda point: _normalises(point) and point.qk_norm_epsilon != value,
    }


_norm: Final = fixing(_FIX, primary=_NORM, base=_RMS, fits=_normalises)


def leaning(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """Example function with which mistakes of indices are acted out: every index shows."""
    moved = 1.0 + 0.25 * ((query + 2 * key + head) % 3)
    return moved * score - 0.125 * batch * key


def _rearranged(order: Callable[..., tuple[Any, ...]]) -> dict[str, Any]:
    def change(point: golden.Semantics) -> golden.Semantics:
        called = point.score_mod
        if called is None:
            return point
        return point.replace(score_mod=lambda score, *indices: called(score, *order(*indices)))

    return {"point": change}


def _reversed_index(index: Tensor) -> Tensor:
    return index.amax() - index if index.numel() else index


_modified: Final = fixing(
    _CALL,
    primary=_MODIFIED,
    base={"score_mod": leaning},
    fits=lambda point: point.score_mod is not None,
)


PREPARED: Final[tuple[NamedMistake, ...]] = (
    *_norm("qk-norm-missing")(
        "queries and keys are not normalised",
        {"changes": _PLAIN},
    ),
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
    *(
        entry
        for declared, other, words in (
            ("before-rotary", "after-rotary", "turned first, then normalised"),
            ("after-rotary", "before-rotary", "normalised first, then turned"),
        )
        for entry in named(f"qk-norm-{other}", _NORM)(
            f"queries and keys are {words}",
            f"normalise them {declared.partition('-')[0]} they are turned, or declare "
            f'norm_order="{other}"',
            {
                "base": {"qk_norm": "layer", "rotary": "halves", "norm_order": declared},
                "fits": partial(_normalises_by_order, declared=declared),
                "changes": {"norm_order": other},
            },
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
    *_norm("qk-norm-epsilon")(
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
    *_norm("qk-norm-query-only")(
        "queries are normalised and keys are not",
        _normalised("key", _left_out),
    ),
    *_norm("qk-norm-key-only")(
        "keys are normalised and queries are not",
        _normalised("query", _left_out),
    ),
    *named("qk-norm-all-heads", _NORM)(
        "the norm is that of all heads of a token together",
        "normalise each head of each query and key by itself",
        {"base": _RMS, "fits": _normalises_heads, "changes": {"qk_norm_over": "all-heads"}},
    ),
    *named("qk-norm-each-head", _NORM)(
        "each head is normalised by itself, not all heads of a token together",
        "normalise the channels of all heads of a token together, before they are cut apart",
        {
            "base": {**_RMS, "qk_norm_over": "all-heads"},
            "fits": lambda point: _normalises(point) and not _normalises_heads(point),
            "changes": {"qk_norm_over": "head"},
        },
    ),
    *_modified("score-mod-missing")(
        "the function is not applied",
        {"changes": {"score_mod": None}},
    ),
    *_modified("score-mod-indices")(
        "the function gets its indices in another order",
        _rearranged(lambda batch, head, query, key: (batch, head, key, query)),
        _rearranged(lambda batch, head, query, key: (head, batch, query, key)),
        {
            **_rearranged(
                lambda batch, head, query, key: (batch, head, query, _reversed_index(key))
            ),
            "sentence": "the function gets the index of each key counted from the last one, or "
            "keys and values stand in the reverse order",
        },
        {
            **_rearranged(
                lambda batch, head, query, key: (batch, head, _reversed_index(query), key)
            ),
            "sentence": "the function gets the index of each query counted from the last one, or "
            "queries stand in the reverse order, and their answers in the right one",
        },
    ),
)
