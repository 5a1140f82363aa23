"""Every choice of ``Semantics`` that differs from the specification, as edits of the program."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Final

import torch
from torch import Generator, Tensor

from .alibi import alibi_bias
from .alibi import alibi_slopes as slopes_of
from .checks import check_argument
from .forward import Sizes, by_causality, by_window, cap, places_of_keys
from .heads import merge_heads, split_heads
from .normalisation import normalise_heads, normalised_gradient
from .program import Edit, Program, Rewired, always
from .relative import relative_bias, relative_buckets
from .rotary import prepare_heads, rotary_frequencies, stretch_heads, turn_heads
from .semantics import STANDARD, Semantics, scale_value

# A function acts on single scores if weighted scores have weighted slopes, up to the rounding of
# functions that compute in half precision.
_POINTWISE: Final = 2.0**-6


@lru_cache(maxsize=1024)
def choose_point(program: Program, point: Semantics) -> Program:
    """A program with the choices of a point, as far as it has the edited stages."""
    return program.edited(edits_of(point))


def edits_of(point: Semantics) -> tuple[Edit, ...]:
    """The edits that make a point of the specification; none for ``STANDARD``."""
    if point == STANDARD:
        return ()
    return (
        *_table_edits(point),
        *_head_edits(point),
        *_score_edits(point),
        *_mask_edits(point),
        *_softmax_edits(point),
        *_influence_edits(point),
        *_layer_edits(point),
        *_backward_edits(point),
    )


def counts(point: Semantics, *, causal: bool, masked: bool, query_length: int) -> tuple[bool, bool]:
    """Whether causality, and whether the mask, count in a call that gives them.

    ``masked``: the call has a mask in any form: boolean, additive or lengths.
    """
    causal = causal and (query_length != 1 or point.one_query_causal)
    if not (causal and masked):
        return causal, masked
    rule = point.causal_combination
    return rule != "mask-only", rule != "causal-only"


def _table_edits(point: Semantics) -> Iterator[Edit]:
    if point.causal_alignment == "top-left":
        yield Edit("positions", _places_from_first_key)
    if point.causal_by == "positions":
        yield Edit(
            "ahead",
            lambda query_places, key_places: key_places[..., None, :] - query_places[..., None],
            when=lambda key_positions: key_positions is not None,
        )
    if point.mask_polarity == "drop":
        yield Edit("kept", lambda keep: None if keep is None else ~keep)
    if point.causal_offset:
        yield Edit("by_causality", partial(by_causality, offset=point.causal_offset))
    if point.window_offset:
        yield Edit("by_window", partial(by_window, offset=point.window_offset))

    def counting(
        causal: bool,  # noqa: FBT001 (a name of what is read)
        keep: Tensor | None,
        lengths: Tensor | None,
        given_bias: Tensor | None,
        given_query: Tensor,
    ) -> tuple[bool, bool]:
        masked = any(mask is not None for mask in (keep, lengths, given_bias))
        return counts(point, causal=causal, masked=masked, query_length=given_query.shape[-2])

    if not point.one_query_causal or point.causal_combination != "both":
        yield Edit("counted", counting)
    if point.causal_combination == "either":
        yield Edit(
            "own_admitted",
            lambda by_causality, by_window, by_mask, scores_shape: (
                by_window & (by_causality | by_mask)
            ).expand(scores_shape),
            when=lambda counted, keep, lengths: (
                counted[0] and (keep is not None or lengths is not None)
            ),
        )


def _places_from_first_key(given_query: Tensor) -> Tensor:
    return torch.arange(given_query.shape[-2], device=given_query.device)


def _head_edits(point: Semantics) -> Iterator[Edit]:
    normalise = partial(normalise_heads, semantics=point)
    if point.qk_norm != "none" and not point.normalises_late:
        yield Edit("normalised_query", change=normalise)
        yield Edit("normalised_key", change=normalise)
    if point.rotary != "none":
        turn = partial(turn_heads, semantics=point)
        yield Edit(
            "frequencies",
            lambda given_query: rotary_frequencies(given_query.shape[-1], point).to(
                given_query.device
            ),
        )
        stretch = partial(stretch_heads, semantics=point)
        yield Edit(
            "stretched_query",
            Rewired(stretch, ("tempered_query", "query_places", "rotary_tables")),
        )
        yield Edit(
            "stretched_key", Rewired(stretch, ("weighed_key", "key_places", "rotary_tables"))
        )
        yield Edit("query", Rewired(turn, ("stretched_query", "query_angles")))
        yield Edit("turned_key", Rewired(turn, ("stretched_key", "key_angles")))
        if point.normalises_late:
            yield Edit("query", change=normalise)
            yield Edit("turned_key", change=normalise)
        yield Edit(
            "joined_key",
            change=Rewired(
                partial(_prepare_other_keys, point=point),
                (
                    *("turned_key", "given_key", "key_positions"),
                    *("given_tables", "turned_keys", "key_weight"),
                ),
            ),
            when=lambda turned_keys: turned_keys > 0,
        )
    if point.group_order == "tile":
        yield Edit("shared_key", lambda every_key, sizes: _tiled(every_key, sizes))
        yield Edit("shared_value", lambda every_value, sizes: _tiled(every_value, sizes))


def _prepare_other_keys(
    turned_key: Tensor,
    given_key: Tensor,
    positions: Tensor | None,
    tables: Tensor | None,
    count: int,
    weight: Tensor | None,
    point: Semantics,
) -> Tensor:
    """The keys; the first ``count`` are given heads, prepared without other edits."""
    places = places_of_keys(given_key, positions)[..., :count]
    first = prepare_heads(given_key[..., :count, :], places, point, tables, weight)
    lead = turned_key.shape[: turned_key.dim() - first.dim()]
    return torch.cat([first.expand(*lead, *first.shape), turned_key[..., count:, :]], dim=-2)


def _tiled(heads: Tensor, sizes: Sizes) -> Tensor:
    """Query head h reads key/value head ``h % num_kv_heads``."""
    return torch.cat([heads] * (sizes.num_heads // sizes.num_kv_heads), dim=-3)


def _score_edits(point: Semantics) -> Iterator[Edit]:
    if (point.scale, point.scale_factor) != (STANDARD.scale, STANDARD.scale_factor):
        yield Edit(
            "default_scale",
            lambda sizes: scale_value(
                point,
                head_size=sizes.head_size,
                value_head_size=sizes.value_head_size,
                num_heads=sizes.num_heads,
            ),
        )
    if point.bias_order == "before-scale":
        yield Edit(
            "scores",
            lambda products, scale, bias: scale * (products + _finite(bias)),
            when=lambda bias: bias is not None,
        )
        # The scores contain the finite part of the bias already.
        yield Edit(
            "biased",
            lambda modified, distance_bias, bias: (
                modified if distance_bias is None else modified + distance_bias
            ).masked_fill(torch.isneginf(bias), -math.inf),
            when=lambda bias: bias is not None,
        )
    if point.score_mod is not None:
        yield Edit("modified", change=partial(modify, semantics=point))
        yield Edit("allowed", lambda attended, modified: attended & ~torch.isneginf(modified))
        yield Edit(
            "function_slope",
            lambda capped, logits: slope_of_function(capped, point).masked_fill(
                ~torch.isfinite(logits), 0.0
            ),
        )
    if point.alibi:
        yield Edit(
            "slopes",
            lambda sizes, alibi_slopes: torch.atleast_2d(
                slopes_of(sizes.num_heads) if alibi_slopes is None else alibi_slopes
            ),
        )
        yield Edit(
            "distance_bias",
            lambda sizes, query_places, key_places, slopes: alibi_bias(
                sizes.num_heads, query_places, key_places, slopes
            ),
        )
    if point.relative != "none":

        def buckets(query_places: Tensor, key_places: Tensor, relative_table: Tensor) -> Tensor:
            ahead = key_places[..., None, :] - query_places[..., None]
            return relative_buckets(ahead, relative_table.shape[-2], point)

        known = lambda relative_table: relative_table is not None  # noqa: E731 (of both edits)
        yield Edit("buckets", buckets, when=known)
        if point.alibi:  # an edit that changes a result reads it
            yield Edit("distance_bias", change=_and_relative, when=known)
        else:
            yield Edit(
                "distance_bias", Rewired(relative_bias, ("buckets", "relative_table")), when=known
            )


def _and_relative(distance_bias: Tensor, buckets: Tensor, relative_table: Tensor) -> Tensor:
    return distance_bias + relative_bias(buckets, relative_table)


def _finite(bias: Tensor) -> Tensor:
    return torch.where(torch.isneginf(bias), 0.0, bias)


def modify(scores: Tensor, semantics: Semantics) -> Tensor:
    """Apply ``score_mod`` to ``[B, H, Lq, Lk]``, with the indices as broadcasting int64 tensors.

    Raises TypeError or ValueError, naming ``score_mod``, for an answer of another type or shape.
    """
    change = semantics.score_mod
    if change is None:
        return scores
    batch, head, query, key = (torch.arange(size, device=scores.device) for size in scores.shape)
    places = batch[:, None, None, None], head[:, None, None], query[:, None], key
    modified = change(scores.clone(), *places)  # a copy, since a function may write in place
    if not isinstance(modified, Tensor):
        msg = f"score_mod returned a {type(modified).__name__}, not a torch.Tensor"
        raise TypeError(msg)
    fits = modified.dim() <= scores.dim() and all(
        have in (1, want)
        for have, want in zip(reversed(modified.shape), reversed(scores.shape), strict=False)
    )
    shown = list(modified.shape)
    check_argument(fits, "score_mod", f"returned shape {shown} for scores {list(scores.shape)}")
    return modified.double().expand(scores.shape)


def slope_of_function(scores: Tensor, semantics: Semantics) -> Tensor:
    """The derivative of ``score_mod`` at scores ``[B, H, Lq, Lk]``.

    NaN everywhere if torch finds no separate slope for each score.
    """
    unknown = torch.full_like(scores, math.nan)
    weights = torch.rand(scores.shape, generator=Generator().manual_seed(0)).double()
    with torch.inference_mode(mode=False), torch.enable_grad():
        leaf = scores.detach().clone().requires_grad_()
        directions = (torch.ones_like(leaf), weights.clone())
        try:
            modified = modify(leaf, semantics)
            if not modified.requires_grad:
                return torch.zeros_like(scores)
            gradients = [
                torch.autograd.grad(
                    (modified * each).sum(), leaf, retain_graph=True, allow_unused=True
                )[0]
                for each in directions
            ]
        except Exception:  # noqa: BLE001 (a user's function, and what torch says of it)
            return unknown
    slope, weighed = (torch.zeros_like(scores) if each is None else each for each in gradients)
    finite = torch.isfinite(slope)
    room = _POINTWISE * slope.abs().where(finite, 0.0).amax(dim=-1, keepdim=True)
    alone = (weighed - weights * slope).abs() <= room
    return slope if bool(alone[finite].all()) else unknown


def hide(logits: Tensor, admitted: Tensor, point: Semantics) -> Tensor:
    """Hide the keys outside ``admitted`` from the logits ``[B, H, Lq, Lk]``."""
    fill = point.mask_fill
    operations: dict[str, Callable[[], Tensor]] = {
        "replace": lambda: logits.masked_fill(~admitted, fill),
        "add": lambda: torch.where(admitted, logits, logits + fill),
        "add-to-kept": lambda: logits + admitted,
        "multiply-logits": lambda: torch.where(admitted | torch.isneginf(logits), logits, 0.0),
        "multiply-weights": lambda: logits,
        "ignore": lambda: logits,
    }
    return operations[point.mask_operation]()


def _mask_edits(point: Semantics) -> Iterator[Edit]:
    if (point.mask_operation, point.mask_fill) != (STANDARD.mask_operation, STANDARD.mask_fill):
        yield Edit("masked", lambda biased, admitted: hide(biased, admitted, point))
    if point.mask_operation == "multiply-weights":
        yield Edit("weights", lambda shares, admitted: shares * admitted)
    if point.caps("bias"):
        yield Edit("capped", lambda scores: scores)
    if point.caps("mask"):
        yield Edit("logits", lambda masked, softcap: cap(masked, softcap))


def _softmax_edits(point: Semantics) -> Iterator[Edit]:
    if point.softmax_axis == "key":
        if point.null_key:
            yield Edit("sinks", _join_null_key)
        return
    yield Edit("sinks", lambda: None)  # another axis knows none
    if point.softmax_axis == "none":
        yield Edit("shares", lambda logits: torch.where(torch.isneginf(logits), 0.0, logits))
        return
    dim = {"batch": 0, "head": 1, "query": 2}[point.softmax_axis]
    least = torch.finfo(torch.float64).min
    yield Edit(
        "largest",
        lambda logits: (
            logits.amax(dim=dim, keepdim=True).clamp_min(least) if logits.numel() else logits
        ),
    )
    yield Edit("total", lambda exponentials: exponentials.sum(dim=dim, keepdim=True).clamp_min(1.0))


def _join_null_key(given_sinks: Tensor | None, logits: Tensor) -> Tensor:
    """The logits of each head's sink and of a key of zeros, as one."""
    null = logits.new_zeros(logits.shape[-3])
    return null if given_sinks is None else torch.logaddexp(given_sinks, null)


def excludes_exactly(point: Semantics, *, capped: bool) -> bool:
    """Whether an ignored key has exactly no influence, as specified; ``capped`` by a softcap."""
    return (
        point.mask_operation in ("replace", "add")
        and point.mask_fill == -math.inf
        and point.softmax_axis == "key"
        and not (capped and point.caps("mask"))
    )


def _influence_edits(point: Semantics) -> Iterator[Edit]:
    """Edits for ignored keys with influence, and else for the answers of rows without keys."""
    exact = excludes_exactly(point, capped=False)
    if not excludes_exactly(point, capped=True):
        when = _has_softcap if exact else always
        yield Edit("unread_keys", lambda: None, when=when)
        yield Edit("unread_values", lambda: None, when=when)
        yield Edit("output", lambda weights, value: weights @ value, when=when)
    rule = _EMPTY_ROWS.get(point.empty_rows)
    if exact and rule is not None:
        yield Edit(
            "weights",
            rule,
            when=lambda sinks, softcap, empty: (
                sinks is None
                and excludes_exactly(point, capped=softcap is not None)
                and bool(empty.any())
            ),
        )


def _has_softcap(softcap: float | None) -> bool:
    return softcap is not None


def _mean_of_admitted(shares: Tensor, empty: Tensor, structure: Tensor) -> Tensor:
    """Equal weights over the keys that causality and window admit."""
    kept = structure.double()
    uniform = kept / kept.sum(dim=-1, keepdim=True).clamp_min(1.0)
    return torch.where(empty.unsqueeze(-1), uniform, shares)


def _layer_edits(point: Semantics) -> Iterator[Edit]:
    if point.head_split != "blocks":
        split = partial(split_heads, semantics=point)
        yield Edit(
            "given_query", lambda projected_query, num_heads: split(projected_query, num_heads)
        )
        yield Edit(
            "given_key", lambda projected_key, num_kv_heads: split(projected_key, num_kv_heads)
        )
        yield Edit(
            "given_value",
            lambda projected_value, num_kv_heads: split(projected_value, num_kv_heads),
        )
    if point.head_merge != "blocks":
        yield Edit("merged", lambda output: merge_heads(output, point))


def _backward_edits(point: Semantics) -> Iterator[Edit]:
    """Edits of the gradients through prepared heads, other head groups, and scores."""
    back = partial(normalised_gradient, semantics=point)
    if point.rotary != "none":
        for role in ("query", "key"):
            names = (f"{role}_gradient", f"stretched_{role}", f"{role}_angles", f"{role}_places")
            turned = Rewired(partial(_turned_back, point=point), (*names, "rotary_tables"))
            yield Edit(f"turned_{role}_gradient", turned)
    if point.qk_norm != "none" and not point.normalises_late:
        yield Edit(
            "given_query_gradient",
            lambda normalised_query_gradient, given_query: back(
                normalised_query_gradient, given_query
            ),
        )
        yield Edit(
            "given_key_gradient",
            lambda normalised_key_gradient, given_key: back(normalised_key_gradient, given_key),
        )
    if point.group_order == "tile":
        yield Edit("key_gradient", lambda key_gradients, sizes: _untiled(key_gradients, sizes))
        yield Edit(
            "value_gradient", lambda value_gradients, sizes: _untiled(value_gradients, sizes)
        )
    if point.mask_operation not in ("replace", "multiply-logits"):
        yield Edit("passed", lambda logits: torch.ones_like(logits))
    if point.caps("bias"):
        yield Edit("score_slope", _slope_of_capped_logits)
        yield Edit(
            "bias_slope",
            lambda passed, logits, softcap: _slope_of_capped_logits(passed, logits, softcap, None),
        )
    if point.bias_order == "before-scale":
        yield Edit("bias_slope", lambda score_slope, scale: score_slope * scale)


def _turned_back(
    gradient: Tensor,
    stretched: Tensor,
    angles: Tensor,
    places: Tensor,
    tables: Tensor | None,
    *,
    point: Semantics,
) -> Tensor:
    """The gradient of heads before their rotation, and before a norm behind the rotation."""
    if point.normalises_late:
        gradient = normalised_gradient(gradient, turn_heads(stretched, angles, point), point)
    return stretch_heads(turn_heads(gradient, -angles, point), places, tables, point)


def _slope_of_capped_logits(
    passed: Tensor, logits: Tensor, softcap: float | None, function_slope: Tensor | None
) -> Tensor:
    """Minus infinity where a mask comes after the cap: there the slope is zero."""
    slope = passed
    if softcap is not None:
        ratio = logits.clamp_min(-softcap) / softcap
        slope = passed * (1.0 - ratio) * (1.0 + ratio)
    return slope if function_slope is None else slope * function_slope


def _untiled(heads: Tensor, sizes: Sizes) -> Tensor:
    """The sum of the query heads that read a common key/value head, ``h % num_kv_heads``."""
    summed: Tensor = heads.unflatten(-3, (-1, sizes.num_kv_heads)).sum(dim=-4)
    return summed


_EMPTY_ROWS: Final[dict[str, Callable[..., Tensor]]] = {
    "nan": lambda shares, empty: shares.masked_fill(empty.unsqueeze(-1), math.nan),
    "mean-of-all": lambda shares, empty: torch.where(
        empty.unsqueeze(-1), 1.0 / max(shares.shape[-1], 1), shares
    ),
    "mean-of-valid": _mean_of_admitted,
}
