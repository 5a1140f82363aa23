"""Mistakes in the backward pass of attention, found by comparing gradients.

A mistake needs one entry here, with the edited stages of both passes: an edited forward stage is
one that the backward pass recomputes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from ..._golden import golden
from .named_mistake import Edits, NamedMistake, changed, named

Edit = golden.Edit
GOLDEN_GRADIENTS: Final = "gradients.golden"
SHARED: Final = "add up the gradients of all query heads that read a key/value head"
# The mistake that forgets several rules at once; a single rule has a more specific name.
EVERY_RULE: Final = "masks-forgotten-backward"
RECOMPUTE: Final = "recompute the weights exactly as the forward pass makes them"
_ADD_UP: Final = "add up over items and tokens"


def _backward(name: str, primary: str = GOLDEN_GRADIENTS) -> Callable[..., list[NamedMistake]]:
    def entries(sentence: str, fix: str, *ways: Edits) -> list[NamedMistake]:
        return named(name, primary)(sentence, fix, *({"backward": way} for way in ways))

    return entries


def _made(rule: Callable[..., Any], *stages: str) -> Edits:
    return tuple(Edit(stage, rule) for stage in stages)


def logarithms_of_sums(right: golden.Run) -> Tensor:
    """Return the logarithm of each row's sum of exponentials that the forward pass saved."""
    total: Tensor = right["largest"] + right["total"].log()
    return total


def _over_saved_sums(logits: Tensor, right: golden.Run) -> Tensor:
    exponentials = torch.exp(logits - logarithms_of_sums(right))
    return exponentials.masked_fill(right["empty"].unsqueeze(-1), 0.0)


def _row_term_of_answer(output_gradient: Tensor, right: golden.Run) -> Tensor:
    term: Tensor = (output_gradient * right["output"]).sum(dim=-1, keepdim=True)
    return term


# A pass that saves sums and answer alone, as FlashAttention does (Dao et al., 2022).
SAVED_SUMS: Final = Edit("shares", _over_saved_sums)
SAVED_ANSWER: Final = Edit("row_term", _row_term_of_answer)
MASK_LEFT_OUT: Final = Edit("by_mask", change=torch.ones_like)
CAUSALITY_LEFT_OUT: Final = Edit("by_causality", change=torch.ones_like)
WINDOW_LEFT_OUT: Final = Edit("by_window", change=torch.ones_like)
BIAS_LEFT_OUT: Final = Edit("bias", lambda: None)
# An additive mask hides keys by its values, not by a table.
_TABLE_LEFT_OUT: Final = Edit(
    "by_mask", change=torch.ones_like, when=lambda inputs: inputs.mask_form != "bias"
)
_SLOPE_KEPT: Final = Edit("score_slope", lambda right: right["score_slope"])
_UNCAPPED: Final = (
    Edit("capped", lambda scores: scores),
    Edit("logits", lambda masked: masked),
    _SLOPE_KEPT,
)
_UNMODIFIED: Final = Edit("modified", lambda capped: capped)
_FLAT_FUNCTION: Final = Edit("function_slope", lambda: None)


def recomputed(*edits: golden.Edit) -> list[Edits]:
    """Return ways to recompute weights: divided by their own sum or by the forward pass's sum.

    The row term is made of these weights, or of the forward pass's answer.
    """
    terms: tuple[Edits, ...] = ((), (SAVED_ANSWER,))
    sums: tuple[Edits, ...] = ((), (SAVED_SUMS,))
    return [(*edits, *divided, *term) for term in terms for divided in sums]


def _move_to_other_corner(positions: Tensor, given_query: Tensor, given_key: Tensor) -> Tensor:
    apart = given_key.shape[-2] - given_query.shape[-2]
    return positions + apart - 2 * positions[:1]


def _uncapped_slope(passed: Tensor, function_slope: Tensor | None) -> Tensor:
    return passed if function_slope is None else passed * function_slope


def _times_scale(power: int) -> Callable[..., float]:
    return lambda scale: scale**power


def total_neighbours(total: Callable[[Tensor], Tensor]) -> Edits:
    """Make gradients of key/value heads from their groups ``[B, Hkv, group, L, D]``."""

    def change(heads: Tensor, sizes: golden.Sizes) -> Tensor:
        return total(heads.unflatten(1, (sizes.num_kv_heads, -1)))

    return make_shared_gradients(change)


def make_shared_gradients(change: Callable[[Tensor, golden.Sizes], Tensor]) -> Edits:
    """Make gradients of query heads into gradients of the key/value heads that they share."""
    return tuple(
        Edit(f"{role}_gradient", golden.Rewired(change, (f"{role}_gradients", "sizes")))
        for role in ("key", "value")
    )


def _sum_in_turns(heads: Tensor, sizes: golden.Sizes) -> Tensor:
    tiled: Tensor = heads.unflatten(1, (-1, sizes.num_kv_heads)).sum(dim=1)
    return tiled


def _has_equal_sizes(sizes: golden.Sizes) -> bool:
    return sizes.head_size == sizes.value_head_size


_SWAPPED: Final = tuple(
    Edit(
        f"{role}_gradient",
        golden.Rewired(golden.summed_groups, (f"{other}_gradients", "sizes")),
        when=_has_equal_sizes,
    )
    for role, other in (("key", "value"), ("value", "key"))
)


def _turned(matrix: Tensor) -> Tensor:
    return matrix.mT if matrix.shape[-1] == matrix.shape[-2] else matrix


def _first_item(gradient: Tensor) -> Tensor:
    kept = torch.zeros_like(gradient)
    kept[:1] = gradient[:1]
    return kept


_OPERANDS: Final = {
    "o": ("upstream", "merged"),
    **{r[0]: (f"projected_{r}_gradient", f"{r}_tokens") for r in ("query", "key", "value")},
}


def _matrices(of: Callable[[Tensor, Tensor], Tensor]) -> Edits:
    return tuple(
        Edit(f"{role}_gradient", golden.Rewired(of, names)) for role, names in _OPERANDS.items()
    )


def _matrices_of(items: slice) -> Edits:
    return _matrices(lambda gradient, tokens: golden.outer(gradient[items], tokens[items]))


def _mean_over_tokens(gradient: Tensor) -> Tensor:
    return gradient.mean(dim=(0, 1))


ATTENTION: Final[tuple[NamedMistake, ...]] = (
    *(
        mistake
        for name in ("query", "key", "value")
        for mistake in _backward(f"gradient-of-{name}-cut")(
            f"no gradient reaches the {name}",
            f"do not detach the {name}, and return its gradient",
            changed(torch.zeros_like, f"{name}_gradient"),
        )
    ),
    *_backward("gradient-of-weights-cut")(
        "gradients flow to the values alone: the weights are detached",
        "do not detach the weights",
        changed(torch.zeros_like, "query_gradient", "key_gradient"),
    ),
    *_backward("gradients-halved")(
        "every gradient is half of what it must be",
        "look for a factor of 2 between the answer and the backward pass",
        changed(lambda gradient: 0.5 * gradient, "output_gradient"),
    ),
    *_backward("gradients-doubled")(
        "every gradient is twice what it must be",
        "look for a gradient that is added twice",
        changed(lambda gradient: 2.0 * gradient, "output_gradient"),
    ),
    *_backward("gradients-negated")(
        "every gradient has the other sign",
        "look for a sign in the backward pass",
        changed(torch.neg, "output_gradient"),
    ),
    *_backward("gradients-averaged-over-items")(
        "every gradient is divided by the number of items",
        "do not average in the backward pass: the loss says what is averaged",
        changed(lambda gradient: gradient / gradient.shape[0], "output_gradient"),
    ),
    *_backward("gradients-of-first-item")(
        "only the first item of a batch gets a gradient",
        "go over the whole batch in the backward pass",
        changed(_first_item, "output_gradient"),
    ),
    *_backward("softmax-jacobian-ignored")(
        "the row term is missing in the backward pass of the softmax: dS is P * dP",
        "dS = P * (dP - rowsum(P * dP))",
        changed(torch.zeros_like, "row_term"),
    ),
    *_backward("row-term-of-another-row")(
        "the row term of the softmax's backward pass is that of the row before",
        "index rowsum(dO * O) by the query",
        changed(lambda term: term.roll(1, dims=2), "row_term"),
    ),
    *_backward("row-term-of-first-head")(
        "every head uses the row term of the first head",
        "index rowsum(dO * O) by the head",
        changed(lambda term: term[:, :1].expand_as(term), "row_term"),
    ),
    *_backward("mask-forgotten-backward", "gradients.masked-zero")(
        "the backward pass recomputes the weights without the mask",
        RECOMPUTE,
        *recomputed(_TABLE_LEFT_OUT),
        *recomputed(MASK_LEFT_OUT),
    ),
    *_backward("causal-forgotten-backward", "gradients.causal")(
        "the backward pass recomputes the weights without the causal rule",
        RECOMPUTE,
        *recomputed(CAUSALITY_LEFT_OUT),
    ),
    *_backward(EVERY_RULE, "gradients.options")(
        "the backward pass recomputes the weights with every key, whatever hides it",
        RECOMPUTE,
        *recomputed(MASK_LEFT_OUT, CAUSALITY_LEFT_OUT, WINDOW_LEFT_OUT),
    ),
    *_backward("causal-other-corner-backward")(
        "the backward pass aligns the causal diagonal with the other corner",
        RECOMPUTE,
        changed(_move_to_other_corner, "positions"),
    ),
    *_backward("window-forgotten-backward", "gradients.options")(
        "the backward pass recomputes the weights without the window",
        RECOMPUTE,
        *recomputed(WINDOW_LEFT_OUT),
    ),
    *_backward("bias-forgotten-backward", "gradients.options")(
        "the backward pass recomputes the weights without the additive mask's values",
        RECOMPUTE,
        *recomputed(BIAS_LEFT_OUT),
    ),
    *_backward("softcap-derivative-forgotten", "gradients.options")(
        "the backward pass takes the capped scores for the scores",
        "multiply dS by 1 - tanh(scores / cap) ** 2",
        _made(_uncapped_slope, "score_slope"),
    ),
    *_backward("softcap-forgotten-backward", "gradients.options")(
        "the backward pass recomputes the weights without the cap",
        RECOMPUTE,
        *recomputed(*_UNCAPPED),
    ),
    *_backward("score-mod-derivative-forgotten")(
        "the backward pass takes the modified scores for the scores",
        "multiply dS by the derivative of score_mod",
        (_FLAT_FUNCTION,),
    ),
    *_backward("score-mod-forgotten-backward")(
        "the backward pass recomputes the weights without score_mod",
        RECOMPUTE,
        (_UNMODIFIED, _FLAT_FUNCTION),
        (_UNMODIFIED, _SLOPE_KEPT),
    ),
    *_backward("scale-forgotten-backward")(
        "the gradients of query and key are not multiplied by the scale",
        "dQ = scale * dS K, dK = scale * dS^T Q",
        _made(_times_scale(0), "query_factor", "key_factor"),
    ),
    *_backward("scale-forgotten-for-query")(
        "the gradient of the query is not multiplied by the scale",
        "dQ = scale * dS K",
        _made(_times_scale(0), "query_factor"),
    ),
    *_backward("scale-forgotten-for-key")(
        "the gradient of the key is not multiplied by the scale",
        "dK = scale * dS^T Q",
        _made(_times_scale(0), "key_factor"),
    ),
    *_backward("scaled-twice-backward")(
        "the gradients of query and key are multiplied by the scale twice",
        "dQ = scale * dS K, dK = scale * dS^T Q",
        _made(_times_scale(2), "query_factor", "key_factor"),
    ),
    *_backward("scaled-twice-for-key")(
        "the gradient of the key is multiplied by the scale twice",
        "dK = scale * dS^T Q, with the query as it was given",
        _made(_times_scale(2), "key_factor"),
    ),
    *_backward("default-scale-backward", "gradients.options")(
        "the backward pass uses the default scale where the call gives another",
        "keep the scale of the call for the backward pass",
        _made(lambda default_scale: default_scale, "query_factor", "key_factor"),
    ),
    *_backward("groups-tiled-backward")(
        "a key/value head gets the gradients of query heads in turns, not of neighbours",
        SHARED,
        make_shared_gradients(_sum_in_turns),
    ),
    *_backward("groups-of-first-head-backward")(
        "a key/value head gets the gradient of the first query head that reads it alone",
        SHARED,
        total_neighbours(lambda heads: heads[:, :, 0]),
    ),
    *_backward("groups-of-last-head-backward")(
        "a key/value head gets the gradient of the last query head that reads it alone",
        SHARED,
        total_neighbours(lambda heads: heads[:, :, -1]),
    ),
    *_backward("groups-averaged-backward")(
        "the gradients of query heads that share a key/value head are averaged",
        SHARED,
        total_neighbours(lambda heads: heads.mean(dim=2)),
    ),
    *_backward("gradients-of-key-and-value-swapped")(
        "key and value get each other's gradient",
        "return the gradients in the order of the arguments",
        _SWAPPED,
    ),
    *_backward("scores-transposed-backward")(
        "the gradient of the scores meets the keys transposed",
        "dQ = scale * dS K, with dS [queries, keys]",
        _made(
            lambda score_gradient, key, query_factor: (
                query_factor * (_turned(score_gradient) @ key)
            ),
            "query_gradient",
        ),
    ),
)


LAYERS: Final[tuple[NamedMistake, ...]] = (
    *_backward("gradient-of-output-matrix-cut")(
        "no gradient reaches the output matrix",
        "do not detach the output projection's weight",
        changed(torch.zeros_like, "o_gradient"),
    ),
    *_backward("gradient-of-value-bias-cut")(
        "no gradient reaches the bias of the values",
        "do not detach the bias",
        changed(torch.zeros_like, "v_bias_gradient"),
    ),
    *_backward("gradient-of-matrix-transposed")(
        "the gradient of a square matrix is transposed",
        "dW = dY^T X for W [out, in]",
        changed(_turned, *(f"{role}_gradient" for role in _OPERANDS)),
    ),
    *_backward("gradient-of-matrix-of-last-item")(
        "the gradient of a matrix is that of the last item alone",
        _ADD_UP,
        _matrices_of(slice(-1, None)),
    ),
    *_backward("gradient-of-matrix-of-first-item")(
        "the gradient of a matrix is that of the first item alone",
        _ADD_UP,
        _matrices_of(slice(0, 1)),
    ),
    *_backward("gradient-of-matrix-averaged")(
        "the gradient of a matrix is averaged over the items",
        _ADD_UP,
        _matrices(lambda gradient, tokens: golden.outer(gradient, tokens) / len(gradient)),
    ),
    *_backward("gradient-of-bias-averaged")(
        "the gradient of a bias is averaged over items and tokens",
        _ADD_UP,
        tuple(
            Edit(f"{role}_bias_gradient", golden.Rewired(_mean_over_tokens, names[:1]))
            for role, names in _OPERANDS.items()
        ),
    ),
)

# Named by the clause that fails though the plain gradients of every problem are right.
OF_CALLS: Final[tuple[NamedMistake, ...]] = (
    *named("gradients-overwritten", "gradients.accumulate")(
        "the backward pass replaces the gradients that are there",
        "return gradients and leave .grad alone: autograd adds them up",
    ),
    *named("strides-ignored-backward", "gradients.strided")(
        "the backward pass reads a tensor as if it lay row after row in memory",
        "honour strides, or call contiguous() on the gradient of the answer and on the inputs",
    ),
    *named("state-of-the-last-call", "gradients.interleaved")(
        "the backward pass uses what the last call has left behind",
        "keep what the backward pass needs in its own context (save_for_backward)",
    ),
    *named("gradient-needs-another-input", "gradients.alone")(
        "the gradient of an input depends on which others require one",
        "look at ctx.needs_input_grad of each input by itself",
    ),
    *named("buffers-overwritten-backward", "gradients.repeated")(
        "the backward pass overwrites what it needs a second time",
        "leave saved tensors as they are",
    ),
    *named("empty-rows-poison-gradients", "gradients.empty-row-finite")(
        "a row without keys is mended in the answer, but not in the backward pass",
        "fill masked logits with masked_fill, or mend the row before the softmax",
    ),
    *named("gradient-of-bias-wrong", "gradients.bias")(
        "the gradient of an additive mask is not dS, added up over the axes it is broadcast along",
        "sum dS over the axes of size 1 of the mask",
    ),
    *named("gradient-of-returned-weights-lost", "gradients.weights")(
        "the gradients of the answer and of the returned weights do not both flow back",
        "add the gradient of the returned weights to dO V^T, or return them detached "
        "(mark_non_differentiable)",
    ),
    *named("other-weights-dropped-backward", "gradients.dropout")(
        "the backward pass does not drop the weights that the answer has dropped, or does not "
        "divide the others as it did",
        "keep the mask, or the state of the generator, in the context of the call, and multiply "
        "dO V^T and the weights of dV by mask / (1 - p)",
    ),
    *named("gradient-of-shared-input-lost", "gradients.shared")(
        "an input that is key and value (or query, too) does not get the sum of their gradients",
        "return a gradient for each argument, in memory of its own: autograd adds them up",
    ),
    *named("no-queries-no-backward", "gradients.no-queries")(
        "without queries or items the backward pass fails, or leaves gradients unwritten",
        "return zeros for keys and values before anything is launched",
    ),
    *named("second-gradients-cut", "gradients.double-backward")(
        "the backward pass has no history of its own, or not all of it",
        "write the backward pass in operations that autograd follows, or use once_differentiable",
    ),
)

# Named where gradients are right without an option of the call; every problem of the clause in
# ``also`` has that option.
OF_OPTIONS: Final[tuple[NamedMistake, ...]] = (
    *named(
        "cache-wrong-backward", GOLDEN_GRADIENTS, right_without="past", also=("gradients.cache",)
    )(
        "gradients are right without a cache of keys and values, and wrong with one",
        "cut up the gradient of the joined keys as they were joined, and recompute the weights "
        "with the places that the forward pass gives cached and new keys",
    ),
    *named(
        "sinks-wrong-backward", GOLDEN_GRADIENTS, right_without="sinks", also=("gradients.sinks",)
    )(
        "gradients are right without sinks, and wrong beside them",
        "keep the sink in the log-sum-exp that weights are recomputed with, and give the sink "
        "minus the sum over its rows of its weight times rowsum(dO * O)",
    ),
)
