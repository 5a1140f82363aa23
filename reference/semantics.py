"""The choices behind the result of attention, as one point of a space."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

from .checks import check_argument
from .program import Edit

ScaleRule = Literal[
    "inverse-sqrt-head-size",
    "none",
    "inverse-head-size",
    "sqrt-head-size",
    "inverse-sqrt-model-width",
    "inverse-sqrt-num-heads",
    "inverse-sqrt-value-head-size",
]
SoftmaxAxis = Literal["key", "query", "head", "batch", "none"]
MaskPolarity = Literal["keep", "drop"]
MaskOperation = Literal[
    "replace", "add", "add-to-kept", "multiply-logits", "multiply-weights", "ignore"
]
Alignment = Literal["bottom-right", "top-left"]
CausalBy = Literal["places", "positions"]
CausalCombination = Literal["both", "causal-only", "mask-only", "either", "refused"]
EmptyRows = Literal["zeros", "nan", "mean-of-all", "mean-of-valid"]
BiasOrder = Literal["after-scale", "before-scale"]
SoftcapOrder = Literal["before-mask", "after-mask"]
HeadSplit = Literal["blocks", "interleaved", "reinterpret"]
HeadMerge = Literal["blocks", "interleaved", "reinterpret", "tokens"]
GroupOrder = Literal["repeat", "tile"]
Rotary = Literal["none", "halves", "interleaved"]
QueryKeyNorm = Literal["none", "rms", "l2", "layer"]
QueryKeyNormOver = Literal["head", "all-heads"]
NormOrder = Literal["before-rotary", "after-rotary"]
Relative = Literal["none", "clipped", "t5", "t5-causal"]

# Capped by each order besides the scaled products: the bias (and the result of ``score_mod``), and
# the logits that a mask fills in.
_ALSO_CAPPED: Final[dict[SoftcapOrder, tuple[str, ...]]] = {
    "before-mask": (),
    "after-mask": ("bias", "mask"),
}
# Other names of some choices: GPT-NeoX and LLaMA turn halves, GPT-J interleaved pairs.
_ALSO_CALLED: Final = {
    **dict.fromkeys(("neox", "gpt-neox", "llama", "rotate-half", "rotate_half"), "halves"),
    **dict.fromkeys(("gptj", "gpt-j", "gpt_j", "pairs"), "interleaved"),
    **dict.fromkeys(("rmsnorm", "rms-norm", "rms_norm"), "rms"),
    **dict.fromkeys(("layernorm", "layer-norm", "layer_norm"), "layer"),
    **dict.fromkeys(("none", "false"), "none"),
}


@dataclass(frozen=True, kw_only=True)
class Semantics:
    """One point in the space of attentions. The defaults are the specification (``STANDARD``).

    scale
        The factor of the dot products: a rule, or a number. "Attention Is All You Need" (Vaswani
        et al. 2017, equation 1) divides by the square root of the head size.
    scale_factor
        A further factor on the rule's scale, 1 in the specification. The ``scale`` of a call
        replaces the rule and this factor.
    softmax_axis
        The axis along which the weights sum to one: the keys. A slice whose logits are all minus
        infinity gets zero weights. "none" leaves the softmax out: the logits are the weights, with
        minus infinity counting as zero.
    null_key
        Whether every query also attends a key of zeros whose value is zero, as ``add_zero_attn`` of
        torch's layer and the softmax with one in its sum have it: a one joins the sum of each row's
        exponentials. Like a sink of logit zero, which it is beside given sinks.
    mask_polarity
        What True means in a boolean mask: "keep" attends, "drop" ignores. Lengths have no polarity.
    mask_operation, mask_fill
        What happens to the logit of an ignored key: replaced by ``mask_fill`` (minus infinity in
        the specification), ``mask_fill`` added to it, 1 added to the kept ones instead, the logit
        multiplied by the 0/1 mask, the weight multiplied after the softmax without renormalising,
        or nothing at all. Keys hidden by causality or the window are ignored keys, too. A bias of
        minus infinity makes the logit minus infinity whatever the scale; only "replace" changes
        the logit again.
    causal_alignment, causal_offset
        Which corner of the score matrix the causal diagonal runs through when lengths differ, and
        how many keys beyond the diagonal are seen (0; -1 hides the query's own key).
    causal_by
        Whether causality and the window compare places in memory, or the positions that a call
        gives: a key is seen up to the query's own position.
    causal_combination
        The rule if causality and a mask (boolean, additive or lengths) are both given: a key must
        be admitted by both; the flag replaces the mask ("causal-only"); the mask replaces the flag
        ("mask-only"), as in transformers' ``sdpa_attention_forward``; either admits a key, unless
        a bias of minus infinity hides the key; or the call is "refused", as documented for torch's
        SDPA (the golden answer is then the answer of "both", like torch 2.13's on a CPU). Alone,
        causality or a mask always counts; so does a window.
    one_query_causal
        Whether a call with a single query can be causal. Decoders treat a single query as the
        newest token and say no: the query then sees every key, whatever the alignment.
    empty_rows
        The answer to a query without a key, before the output projection: zeros, NaN, the mean of
        all values, or the mean of the values admitted by causality and window (zeros if none is
        admitted). The rule holds if ignored keys have no influence at all: logits replaced by
        minus infinity, or minus infinity added, a softmax over the keys, no cap after the mask.
        Otherwise the query returns the result of the arithmetic. With no keys at all (length 0)
        every rule gives zeros, the empty sum.
    bias_order
        The additive bias joins after the scaling, or before the scaling and is scaled too.
    softcap_order
        The cap ``c * tanh(logits / c)`` applies before the bias and the mask, or after them.
    window_offset
        The number of keys beyond the declared window that are visible on either side.
    head_split, head_merge
        How a width of heads x size is cut into heads ("blocks": head h owns channels
        ``h*D .. (h+1)*D``; "interleaved": head h owns channels ``h, h + H, h + 2*H ..``) and
        merged again. "reinterpret" re-reads row-major memory without moving the head axis;
        "tokens" concatenates the heads along the token axis, in front of only the first ``Dv``
        columns of the output matrix.
    group_order
        With fewer key/value heads than heads, query head h reads key/value head ``h // group``
        ("repeat") or ``h % num_kv_heads`` ("tile").
    qk_norm, qk_norm_epsilon
        The normalisation of the channels of each query and key head, directly behind the
        projections: divided by the root of their mean square plus epsilon ("rms"), by their norm,
        but no less than epsilon ("l2"), or, after subtraction of their mean, by the root of the
        biased variance plus epsilon ("layer"). Learned factors are arguments of a call.
    qk_norm_over
        What is normalised together: the channels of each head ("head"), or those of all query
        heads, and of all key heads, of a token ("all-heads").
    norm_order
        Whether queries and keys are normalised before they are turned by their positions, or after.
    rotary, rotary_base, rotary_fraction
        Rotary positions (Su et al. 2021, RoFormer): channels are turned in pairs by the angle
        ``position * rotary_base ** (-2 i / R)``: ``(a, b)`` becomes ``(a cos - b sin, a sin + b
        cos)``. Pair i is channel i with ``i + R / 2`` ("halves") or channel ``2 i`` with ``2 i +
        1`` ("interleaved"), among the first R channels, the largest even number within
        ``rotary_fraction`` of the head size; further channels stay. Key j stands at position j;
        query i at ``i + Lk - Lq`` if causality is aligned bottom-right, else at i, whether or not
        a call is causal. Values are not turned. Positions that a call gives replace all of these.
    rotary_scaling, rotary_amplitude
        Other frequencies for longer contexts: ``("linear", factor)``, ``("ntk", factor)``,
        ``("yarn", factor, beta_fast, beta_slow, original_length)`` or ``("llama3", factor, low,
        high, original_length)``; and the factor of cosines and sines (YaRN's factor).
    alibi
        Attention with linear biases (Press et al. 2022): the distance of both positions (counted
        like rotary positions) times the slope of the head is subtracted from the logits, whatever
        the scale. Slopes of n heads, n a power of two: ``2 ** (-8 (h + 1) / n)``; otherwise the
        slopes of the next lower power of two, then every second slope of twice that power.
    relative, relative_distance
        The buckets of distances for a ``relative_table [N, H]`` that a call gives, whose entries
        are added to the logits, whatever the scale: one for each distance up to a largest
        ("clipped"), or those of T5 (Raffel et al. 2020) up to ``relative_distance``, for keys on
        both sides of a query ("t5") or on one ("t5-causal").
    score_mod
        A function ``(score, batch, head, query_index, key_index) -> score`` of tensors that
        broadcast to ``[B, H, Lq, Lk]``, applied to the scaled and capped scores before bias and
        mask, as in torch's flex_attention; indices count from zero whatever the alignment. Minus
        infinity hides a key. A cap after the mask also comes after the function.
    query_bias, key_bias, value_bias, output_bias
        Whether the projections have a bias; if False, a given bias is ignored.
    """

    scale: ScaleRule | float = "inverse-sqrt-head-size"
    scale_factor: float = 1.0
    softmax_axis: SoftmaxAxis = "key"
    null_key: bool = False
    mask_polarity: MaskPolarity = "keep"
    mask_operation: MaskOperation = "replace"
    mask_fill: float = -math.inf
    causal_alignment: Alignment = "bottom-right"
    causal_offset: int = 0
    causal_by: CausalBy = "places"
    causal_combination: CausalCombination = "both"
    one_query_causal: bool = True
    empty_rows: EmptyRows = "zeros"
    bias_order: BiasOrder = "after-scale"
    softcap_order: SoftcapOrder = "before-mask"
    window_offset: int = 0
    head_split: HeadSplit = "blocks"
    head_merge: HeadMerge = "blocks"
    group_order: GroupOrder = "repeat"
    qk_norm: QueryKeyNorm = "none"
    qk_norm_epsilon: float = 1e-6
    qk_norm_over: QueryKeyNormOver = "head"
    norm_order: NormOrder = "before-rotary"
    rotary: Rotary = "none"
    rotary_base: float = 10000.0
    rotary_fraction: float = 1.0
    rotary_scaling: tuple[str | float, ...] | None = None
    rotary_amplitude: float = 1.0
    alibi: bool = False
    relative: Relative = "none"
    relative_distance: int = 128
    score_mod: Callable[..., Any] | None = None
    query_bias: bool = True
    key_bias: bool = True
    value_bias: bool = True
    output_bias: bool = True

    def __post_init__(self) -> None:
        _check_scale(self.scale)
        for name, kind in _plain_kinds().items():
            value = getattr(self, name)
            classes = (int, float) if kind is float else kind
            check_argument(isinstance(value, classes), name, f"is {value!r}, {_SPOKEN[kind]}")
            held = isinstance(value, float) or abs(value) <= _LARGEST
            check_argument(held, name, f"is {value!r}, larger than tensors hold")
        for name, choices in _choices().items():
            value = getattr(self, name)
            if value not in choices:  # only then, for speed: the message searches near matches
                check_argument(False, name, _not_among(value, choices))  # noqa: FBT003
        below = self.mask_fill < math.inf  # false for NaN too
        check_argument(below, "mask_fill", f"is {self.mask_fill}, not finite or minus infinity")
        check_argument(
            math.isfinite(self.scale_factor), "scale_factor", f"is {self.scale_factor}, not finite"
        )
        self._check_positions()

    def _check_positions(self) -> None:
        base, fraction, epsilon = self.rotary_base, self.rotary_fraction, self.qk_norm_epsilon
        check_argument(0 < base < math.inf, "rotary_base", f"is {base}, not positive and finite")
        check_argument(0 < fraction <= 1, "rotary_fraction", f"is {fraction}, not in (0, 1]")
        amplitude = self.rotary_amplitude
        finite = 0 < amplitude < math.inf
        check_argument(finite, "rotary_amplitude", f"is {amplitude}, not positive and finite")
        _check_scaling(self.rotary_scaling)
        ramped = self.rotary_scaling is not None and self.rotary_scaling[0] == "yarn"
        check_argument(base > 1 or not ramped, "rotary_base", f"is {base}, which makes no ramp")
        positive = 0 <= epsilon < math.inf
        check_argument(positive, "qk_norm_epsilon", f"is {epsilon}, negative or not finite")
        distance = self.relative_distance
        check_argument(distance > 0, "relative_distance", f"is {distance}, not positive")
        known = self.score_mod is None or callable(self.score_mod)
        check_argument(known, "score_mod", f"is {self.score_mod!r}, not a function")

    @property
    def normalises_late(self) -> bool:
        """Whether heads are normalised behind a rotation."""
        turned = self.rotary != "none" and self.qk_norm != "none"
        return turned and self.norm_order == "after-rotary"

    def caps(self, part: Literal["bias", "mask"]) -> bool:
        """Whether the softcap also applies to the bias, or to the logits that the mask fills in."""
        return part in _ALSO_CAPPED[self.softcap_order]

    def edits(self) -> tuple[Edit, ...]:
        """The edits of attention's program from the specification to this point."""
        from .choices import edits_of  # noqa: PLC0415 (choices are made of points)

        return edits_of(self)

    def replace(self, **changes: Any) -> Semantics:
        """A copy of the point with some choices changed.

        Raises ValueError for a value outside a field's choices, TypeError for an unknown field.
        """
        return dataclasses.replace(self, **changes)

    def differences(self, other: Semantics) -> dict[str, tuple[Any, Any]]:
        """The fields in which the two points differ, with this point's value and the other's."""
        names = [field.name for field in dataclasses.fields(self)]
        pairs = {name: (getattr(self, name), getattr(other, name)) for name in names}
        return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


_LARGEST: Final = 1 << 62  # a place is added in 64 bits
_SPOKEN: Final = {bool: "not True or False", int: "not an integer", float: "not a number"}


@cache
def _plain_kinds() -> dict[str, type]:
    return {name: kind for name, kind in get_type_hints(Semantics).items() if kind in _SPOKEN}


@cache
def _choices() -> dict[str, tuple[str, ...]]:
    kinds = get_type_hints(Semantics).items()
    return {name: get_args(kind) for name, kind in kinds if get_origin(kind) is Literal}


def _not_among(value: object, choices: Sequence[str]) -> str:
    word = str(value).lower()
    close = difflib.get_close_matches(word, choices, n=1, cutoff=0.5)
    meant = [name for name in (_ALSO_CALLED.get(word), *close) if name in choices]
    hint = f"; did you mean {meant[0]!r}?" if meant else ""
    return f"is {value!r}, not one of {', '.join(choices)}{hint}"


# The numbers of each scaling of rotary frequencies.
_SCALINGS: Final = {
    "linear": ("factor",),
    "ntk": ("factor",),
    "yarn": ("factor", "beta_fast", "beta_slow", "original_length"),
    "llama3": ("factor", "low", "high", "original_length"),
}


def _check_scaling(scaling: object) -> None:
    if scaling is None:
        return
    name, *numbers = scaling if isinstance(scaling, tuple) and scaling else ("",)
    wanted = _SCALINGS.get(name if isinstance(name, str) else "", ())
    fits = len(numbers) == len(wanted) and all(
        type(each) in (int, float) and 0 < each < math.inf for each in numbers
    )
    ways = " or ".join(f"({', '.join([repr(each), *words])})" for each, words in _SCALINGS.items())
    known = bool(wanted) and fits
    check_argument(known, "rotary_scaling", f"is {scaling!r}: give {ways}, of positive numbers")
    if len(numbers) > 1:
        least = {"yarn": 2, "llama3": 1}[str(name)]
        most = 3 - least
        apart = numbers[least] < numbers[most]
        words = f"whose {wanted[least]} is not below {wanted[most]}"
        check_argument(apart, "rotary_scaling", f"is {scaling!r}, {words}")


def _check_scale(scale: object) -> None:
    if isinstance(scale, str):
        rules = get_args(ScaleRule)
        check_argument(scale in rules, "scale", f"is {scale!r}, not a number or one of {rules}")
    else:
        finite = isinstance(scale, (int, float)) and math.isfinite(scale)
        check_argument(finite, "scale", f"is {scale!r}, not a finite number or a rule")


STANDARD: Final = Semantics()


def scale_value(
    semantics: Semantics, *, head_size: int, value_head_size: int, num_heads: int
) -> float:
    """The factor of the dot products under a point's scale rule."""
    rule = semantics.scale
    if not isinstance(rule, str):
        return float(rule) * semantics.scale_factor
    size, exponent = {
        "inverse-sqrt-head-size": (head_size, -0.5),
        "none": (1, 1.0),
        "inverse-head-size": (head_size, -1.0),
        "sqrt-head-size": (head_size, 0.5),
        "inverse-sqrt-model-width": (head_size * num_heads, -0.5),
        "inverse-sqrt-num-heads": (num_heads, -0.5),
        "inverse-sqrt-value-head-size": (value_head_size, -0.5),
    }[rule]
    return math.pow(max(size, 1), exponent) * semantics.scale_factor
