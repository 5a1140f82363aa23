"""Every choice that decides what attention computes, as one point of a space."""

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
CausalCombination = Literal["both", "causal-only", "mask-only", "either", "refused"]
EmptyRows = Literal["zeros", "nan", "mean-of-all", "mean-of-valid"]
BiasOrder = Literal["after-scale", "before-scale"]
SoftcapOrder = Literal["before-mask", "after-mask"]
HeadSplit = Literal["blocks", "interleaved", "reinterpret"]
HeadMerge = Literal["blocks", "interleaved", "reinterpret", "tokens"]
GroupOrder = Literal["repeat", "tile"]
Rotary = Literal["none", "halves", "interleaved"]
QueryKeyNorm = Literal["none", "rms", "l2", "layer"]

# What each order caps besides the scaled products: the bias (and what ``score_mod`` makes of them),
# and the logits that a mask fills in.
_ALSO_CAPPED: Final[dict[SoftcapOrder, tuple[str, ...]]] = {
    "before-mask": (),
    "after-mask": ("bias", "mask"),
}
# What others call some of the choices: GPT-NeoX and LLaMA turn halves, GPT-J interleaved pairs.
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
        What the dot products are multiplied by: a rule, or the number itself. "Attention Is All
        You Need" (Vaswani et al. 2017, equation 1) divides by the square root of the head size.
    scale_factor
        A further factor on the rule's scale, 1 in the specification. A ``scale`` that a call gives
        replaces the rule and this factor.
    softmax_axis
        The axis along which the weights sum to one: the keys. A slice whose logits are all minus
        infinity gets zero weights. "none" leaves the softmax out: the logits are the weights, with
        minus infinity counting as zero.
    mask_polarity
        What True means in a boolean mask: "keep" attends, "drop" ignores. Lengths have no polarity.
    mask_operation, mask_fill
        What happens to the logit of an ignored key: replaced by ``mask_fill`` (minus infinity in
        the specification), ``mask_fill`` added to it, 1 added to the kept ones instead, the logit
        multiplied by the 0/1 mask, the weight multiplied after the softmax without renormalising,
        or nothing at all. Keys that causality or the window hides are ignored keys like any other.
        A bias of minus infinity makes its logit minus infinity whatever the scale; only a "replace"
        of that logit undoes it.
    causal_alignment, causal_offset
        Which corner of the score matrix the causal diagonal runs through when lengths differ, and
        how many keys beyond the diagonal are seen (0; -1 hides the query's own key).
    causal_combination
        What counts where causality and a mask (boolean, additive or lengths) are both given: a key
        must be admitted by both; the flag replaces the mask ("causal-only"); the mask replaces the
        flag ("mask-only"), as in transformers' ``sdpa_attention_forward``; either admits it, but
        for what a bias of minus infinity hides; or the call is "refused", as torch's SDPA is
        documented to do (a golden answer then is that of both, which is what torch 2.13 gives on a
        CPU). Where one of them is given, it counts. A window always counts.
    one_query_causal
        Whether a call with a single query can be causal. Decoders that take a single query for the
        newest token say no: it then sees every key, whatever the alignment.
    empty_rows
        What a query without any key returns, before the output projection: zeros, NaN, the mean of
        all values, or the mean of the values that causality and window admit (zeros where they
        admit none). The rule holds where ignored keys have no influence at all: logits replaced by
        minus infinity, or minus infinity added, a softmax over the keys, no cap after the mask.
        Elsewhere such a query returns what the arithmetic gives. With no keys at all (length 0)
        every rule gives zeros, the empty sum.
    bias_order
        The additive bias joins after the scaling, or before it and is scaled too.
    softcap_order
        The cap ``c * tanh(logits / c)`` applies before the bias and the mask, or after them.
    window_offset
        How many keys more than declared the window shows on either side.
    head_split, head_merge
        How a width of heads x size is cut into heads ("blocks": head h owns channels
        ``h*D .. (h+1)*D``; "interleaved": it owns channels ``h, h + H, h + 2*H ..``) and put
        together again. "reinterpret" re-reads row-major memory without moving the head axis;
        "tokens" concatenates the heads along the token axis, and they meet the first ``Dv`` columns
        of the output matrix only.
    group_order
        With fewer key/value heads than heads, query head h reads key/value head ``h // group``
        ("repeat") or ``h % num_kv_heads`` ("tile").
    qk_norm, qk_norm_epsilon
        How the channels of each head of query and key are normalised before anything else, behind
        the projections: divided by the root of their mean square plus epsilon ("rms"), by their
        norm, but no less than epsilon ("l2"), or after their mean is taken off by the root of the
        variance (over all channels, not one less) plus epsilon ("layer"); no learned factor.
    rotary, rotary_base, rotary_fraction
        Rotary positions (Su et al. 2021, RoFormer): channels are turned in pairs by the angle
        ``position * rotary_base ** (-2 i / R)``: ``(a, b)`` becomes ``(a cos - b sin, a sin + b
        cos)``. Pair i is channel i with ``i + R / 2`` ("halves") or channel ``2 i`` with ``2 i +
        1`` ("interleaved"), among the first R channels, the largest even number within
        ``rotary_fraction`` of the head size; the others stay. Key j stands at position j; query i
        at ``i + Lk - Lq`` where causality is aligned bottom-right, else at i, whether or not a call
        is causal. Query and key are turned after they are normalised and before they meet; values
        are not.
    rotary_scaling, rotary_amplitude
        Other frequencies for longer contexts: ``("linear", factor)``, ``("ntk", factor)``,
        ``("yarn", factor, beta_fast, beta_slow, original_length)`` or ``("llama3", factor, low,
        high, original_length)``; and what cosines and sines are multiplied by (YaRN's factor).
    alibi
        Attention with linear biases (Press et al. 2022): the distance of both positions, counted as
        for rotary ones, times the slope of the head is taken off the logits, whatever the scale.
        Slopes of n heads, n a power of two: ``2 ** (-8 (h + 1) / n)``; else those of the next lower
        power of two, then every other one of twice that power.
    score_mod
        A function ``(score, batch, head, query_index, key_index) -> score`` of tensors that
        broadcast to ``[B, H, Lq, Lk]``, applied to the scaled and capped scores before bias and
        mask, as in torch's flex_attention; indices count from zero whatever the alignment. Minus
        infinity hides a key. A cap that comes after the mask comes after it, too.
    query_bias, key_bias, value_bias, output_bias
        Which projections have a bias; a bias that is given where there is none is left out.
    """

    scale: ScaleRule | float = "inverse-sqrt-head-size"
    scale_factor: float = 1.0
    softmax_axis: SoftmaxAxis = "key"
    mask_polarity: MaskPolarity = "keep"
    mask_operation: MaskOperation = "replace"
    mask_fill: float = -math.inf
    causal_alignment: Alignment = "bottom-right"
    causal_offset: int = 0
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
    rotary: Rotary = "none"
    rotary_base: float = 10000.0
    rotary_fraction: float = 1.0
    rotary_scaling: tuple[str | float, ...] | None = None
    rotary_amplitude: float = 1.0
    alibi: bool = False
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
            if value not in choices:  # what was likely meant is searched for then alone
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
        known = self.score_mod is None or callable(self.score_mod)
        check_argument(known, "score_mod", f"is {self.score_mod!r}, not a function")

    def caps(self, part: Literal["bias", "mask"]) -> bool:
        """Whether the softcap applies to the bias, too, or to what the mask fills in."""
        return part in _ALSO_CAPPED[self.softcap_order]

    def edits(self) -> tuple[Edit, ...]:
        """The edits of the program of attention that make this point of the specification."""
        from .choices import edits_of  # noqa: PLC0415 (choices are made of points)

        return edits_of(self)

    def replace(self, **changes: Any) -> Semantics:
        """The same point with some choices changed.

        Raises ValueError for a value that is not among a field's choices, TypeError for a field
        that does not exist.
        """
        return dataclasses.replace(self, **changes)

    def differences(self, other: Semantics) -> dict[str, tuple[Any, Any]]:
        """The fields in which the two points differ, with this point's value and the other's."""
        names = [field.name for field in dataclasses.fields(self)]
        pairs = {name: (getattr(self, name), getattr(other, name)) for name in names}
        return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


_LARGEST: Final = 1 << 62  # a place is added to it in 64 bits
_SPOKEN: Final = {bool: "not True or False", int: "not an integer", float: "not a number"}


@cache
def _plain_kinds() -> dict[str, type]:
    """The fields that are numbers or yes or no."""
    return {name: kind for name, kind in get_type_hints(Semantics).items() if kind in _SPOKEN}


@cache
def _choices() -> dict[str, tuple[str, ...]]:
    """The fields that are one of a few words, and these words."""
    kinds = get_type_hints(Semantics).items()
    return {name: get_args(kind) for name, kind in kinds if get_origin(kind) is Literal}


def _not_among(value: object, choices: Sequence[str]) -> str:
    """That a value is none of the choices, which these are, and which was likely meant."""
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
    """The number that the dot products are multiplied by under a point's scale rule."""
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
