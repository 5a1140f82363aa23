"""Scaled dot-product attention, as the paper writes it, at any point of ``Semantics``.

    Attention(Q, K, V) = softmax(Q K^T / sqrt(D)) V

Vaswani et al., "Attention Is All You Need", 2017, equation 1. Everything is float64.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor

from .alignment import query_positions
from .checks import (
    check_argument,
    check_broadcasts,
    check_lengths,
    check_size,
    check_tensor,
    check_window,
)
from .choices import choose_point
from .forward import FORWARD, SOFTMAX, shared
from .program import Edit, Run
from .relative import check_table
from .rotary import prepare_heads
from .semantics import STANDARD, Semantics


@dataclass(frozen=True, kw_only=True)
class Attention:
    """One evaluation with its intermediate values, all float64, key/value heads repeated.

    ``query`` and ``key`` are the factors of the dot products; ``given_query`` and ``given_key`` are
    the same heads before normalisation and rotation; query i stands at key ``positions[i]``. If
    ignored keys have no influence, ``key``, ``given_key`` and ``value`` are zero at keys that no
    query reads. ``alibi`` is the bias by distance, ``sinks [H]`` the given logits of keys without a
    value, ``rotary_tables [B or 1, Lk, R/2]`` the tables of the call, or None; ``learned`` are its
    learned arguments, and ``slopes [B or 1, H]`` those of the bias by distance. ``query_places``
    and ``key_places`` are the positions ``[L]``, or ``[B, 1, L]`` if given. ``scores`` are the
    scaled dot products, ``capped`` the scores after the softcap, ``modified`` after ``score_mod``,
    ``logits`` the input of the softmax, ``weights`` its result, all ``[B, H, Lq, Lk]``. ``allowed``
    is the table of attended keys, and ``empty`` marks the rows ``[B, H, Lq]`` without any.
    ``semantics`` is the point of the evaluation, ``run`` the run of the program.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    given_query: Tensor
    given_key: Tensor
    positions: Tensor
    query_places: Tensor
    key_places: Tensor
    bias: Tensor | None
    alibi: Tensor | None
    sinks: Tensor | None
    rotary_tables: Tensor | None
    learned: Mapping[str, Tensor]
    slopes: Tensor | None
    scale: float
    softcap: float | None
    allowed: Tensor
    empty: Tensor
    scores: Tensor
    capped: Tensor
    modified: Tensor
    logits: Tensor
    weights: Tensor
    output: Tensor
    semantics: Semantics
    run: Run = field(compare=False, repr=False)

    @property
    def log_sum_exp(self) -> Tensor:
        """The natural logarithm of each row's denominator in the softmax: float64 ``[B, H, Lq]``.

        A sink's exponential counts; minus infinity where no logit is finite.
        """
        largest, total = self.run["largest"], self.run["total"]
        result = (largest + total.log()).squeeze(-1)
        none = largest.squeeze(-1) <= torch.finfo(largest.dtype).min
        return torch.where(none, -math.inf, result)


# The stages whose results an evaluation holds under their own names.
RESULTS: Final = (
    "positions",
    "slopes",
    "query_places",
    "key_places",
    "bias",
    "sinks",
    "scale",
    "softcap",
    "query",
    "key",
    "scores",
    "capped",
    "modified",
    "logits",
    "allowed",
    "empty",
    "weights",
    "value",
    "output",
)


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    bias: Tensor | None = None,
    lengths: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    softcap: float | None = None,
    window: tuple[int, int] | None = None,
    sinks: Tensor | None = None,
    rotary_tables: Tensor | None = None,
    turned_keys: int = 0,
    learned: Mapping[str, Tensor] | None = None,
    query_positions: Tensor | None = None,
    key_positions: Tensor | None = None,
    semantics: Semantics = STANDARD,
) -> Tensor:
    """Attention over ``query [B, H, Lq, D]``, ``key [B, Hkv, Lk, D]``, ``value [B, Hkv, Lk, Dv]``.

    ``keep`` (bool, True attends) and ``bias`` (added to the scaled logits, finite or -inf) have
    four axes that broadcast to ``[B, H, Lq, Lk]``; ``lengths`` is int64 ``[B]`` or ``[B, Lq]``.
    ``scale`` overrides the point's rule. ``sinks [H]`` are logits that join the softmax over the
    keys, in every head like a key that every query attends and whose value is zero: sinks take
    weight away, and a query without a real key returns zeros whatever its rule. Other softmax axes
    ignore sinks. ``rotary_tables``, for points with rotary positions, are complex128 ``[B or 1, Lk,
    R/2]``: the cosine and, as the imaginary part, the sine of every pair of channels at the place
    of every key; or angles in float64. The first ``turned_keys`` keys reach an implementation
    already turned, as from a cache. ``query_positions [B, Lq]`` and ``key_positions [B, Lk]``,
    int64, replace the places in memory by which tokens are turned and distances are counted.

    ``learned`` has learned arguments by name: ``query_norm_weight`` and ``key_norm_weight``,
    ``[D]`` or a factor for each channel of all heads, multiply the heads behind their norm;
    ``temperature [H]`` multiplies the dot products of each head, as ``scale`` does;
    ``alibi_slopes``, ``[H]`` or ``[B, H]``, replace the slopes at a point with ``alibi``;
    ``relative_table [N, H]`` has a bias for each bucket at a point with ``relative``; and
    ``bias_k [Hkv, D]`` with ``bias_v [Hkv, Dv]`` are one more key and value behind those of each
    item, which every query attends, whatever the masks: tables of keys have one more column then.
    Returns float64 ``[B, H, Lq, Dv]``.

    Raises ValueError or TypeError that names the argument of wrong shape or value.
    """
    return attend(
        query,
        key,
        value,
        keep=keep,
        bias=bias,
        lengths=lengths,
        causal=causal,
        scale=scale,
        softcap=softcap,
        window=window,
        sinks=sinks,
        rotary_tables=rotary_tables,
        turned_keys=turned_keys,
        learned=learned,
        query_positions=query_positions,
        key_positions=key_positions,
        semantics=semantics,
    ).output


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    bias: Tensor | None = None,
    lengths: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    softcap: float | None = None,
    window: tuple[int, int] | None = None,
    sinks: Tensor | None = None,
    rotary_tables: Tensor | None = None,
    turned_keys: int = 0,
    learned: Mapping[str, Tensor] | None = None,
    query_positions: Tensor | None = None,
    key_positions: Tensor | None = None,
    semantics: Semantics = STANDARD,
) -> Attention:
    """Like :func:`scaled_dot_product_attention`, with every intermediate value."""
    run = run_of_attention(
        query,
        key,
        value,
        semantics,
        keep=keep,
        bias=bias,
        lengths=lengths,
        causal=causal,
        scale=scale,
        softcap=softcap,
        window=window,
        sinks=sinks,
        rotary_tables=rotary_tables,
        turned_keys=turned_keys,
        learned=learned,
        query_positions=query_positions,
        key_positions=key_positions,
    )
    return evaluation_of(run, semantics)


def run_of_attention(
    query: Tensor, key: Tensor, value: Tensor, semantics: Semantics, **options: Any
) -> Run:
    """The run behind :func:`attend`, with checked options and no result made yet."""
    check_order(semantics, options.get("learned"))
    given = given_options(_check_shapes(query, key, value), **options)
    given |= {"given_query": query.double(), "given_key": key.double()}
    given["given_value"] = value.double()
    return Run(choose_point(FORWARD, semantics), given)


def given_options(
    shape: tuple[int, int, int, int],
    *,
    keep: Tensor | None = None,
    bias: Tensor | None = None,
    lengths: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    softcap: float | None = None,
    window: tuple[int, int] | None = None,
    sinks: Tensor | None = None,
    rotary_tables: Tensor | None = None,
    turned_keys: int = 0,
    learned: Mapping[str, Tensor] | None = None,
    query_positions: Tensor | None = None,
    key_positions: Tensor | None = None,
) -> dict[str, Any]:
    """The options of a call as values for the program, checked against scores of a shape."""
    _check_numbers(scale, softcap, window)
    _check_sinks(sinks, shape[1])
    _check_masks(shape, keep, bias, lengths)
    _check_positions(query_positions, key_positions, shape)
    _check_tables(rotary_tables, shape, turned_keys, placed=key_positions is not None)
    return {
        "keep": keep,
        "given_bias": None if bias is None else bias.double(),
        "lengths": lengths,
        "causal": causal,
        "given_scale": scale,
        "softcap": softcap,
        "window": window,
        "given_sinks": None if sinks is None else sinks.double(),
        # A second name, for keys given turned: edits of ``rotary_tables`` must not reach them.
        "rotary_tables": rotary_tables,
        "given_tables": rotary_tables,
        "turned_keys": turned_keys,
        **_learned(learned or {}, shape),
        "query_positions": query_positions,
        "key_positions": key_positions,
    }


def evaluation_of(run: Run, semantics: Semantics) -> Attention:
    """The intermediate values of a run, made in the order of the program."""
    run.complete()
    results = {name: run[name] for name in RESULTS}
    unchanged = run["turned_key"] is run["given_key"]
    of_every_head = run["key"]
    if not unchanged:
        given = run.edited(Edit("joined_key", lambda given_key: given_key))
        if semantics.qk_norm_over == "all-heads":  # a norm reads a key that any head reads
            given = given.edited(Edit("unread_keys", change=_unread_by_all))
        of_every_head = given["key"]
    run.forget_but(RESULTS)
    return Attention(
        **results,
        given_query=run["given_query"],
        given_key=of_every_head,
        alibi=run["distance_bias"],
        rotary_tables=run["rotary_tables"],
        learned={name: run[name] for name in LEARNED if run[name] is not None},
        semantics=semantics,
        run=run,
    )


def _unread_by_all(unread_keys: Tensor) -> Tensor:
    return unread_keys.all(dim=-3, keepdim=True)


# A key and a value that every query attends.
MEMORY: Final = ("bias_k", "bias_v")
# Learned arguments of a call: their axes. A norm weight has a factor for each channel of a head,
# or of all heads.
LEARNED: Final = {
    "query_norm_weight": ("D",),
    "key_norm_weight": ("D",),
    "temperature": ("H",),
    "alibi_slopes": ("H", "BH"),
    "relative_table": ("NH",),
    "bias_k": ("GD",),
    "bias_v": ("GV",),
}


def position_heads(query: Tensor, key: Tensor, semantics: Semantics) -> tuple[Tensor, Tensor]:
    """Query ``[B, H, Lq, D]`` and key ``[B, H, Lk, D]``, normalised and turned; float64.

    Heads are independent of each other: any selection of heads gives equal results.
    """
    positions = query_positions(query.shape[-2], key.shape[-2], semantics)
    keys = torch.arange(key.shape[-2])
    return prepare_heads(query, positions, semantics), prepare_heads(key, keys, semantics)


_SOFTMAX_AXES: Final = ("batch", "head", "query", "key", "none")


def softmax(logits: Tensor, axis: str = "key", *, sinks: Tensor | None = None) -> Tensor:
    """Exponentials over their sum along an axis; slices of -inf alone become zeros.

    ``axis`` is a value of ``Semantics.softmax_axis``; raises ValueError otherwise. ``sinks [H]``
    are logits that count only in the sums over the keys of each head.
    """
    check_tensor(logits, "logits", "B H Lq Lk")
    known = axis in _SOFTMAX_AXES
    check_argument(known, "axis", f"is {axis!r}, not one of {', '.join(_SOFTMAX_AXES)}")
    given = {"logits": logits, "given_sinks": None if sinks is None else sinks.double()}
    program = (
        SOFTMAX if axis == "key" else choose_point(SOFTMAX, STANDARD.replace(softmax_axis=axis))
    )
    shares: Tensor = Run(program, given)["shares"]
    return shares


def repeat_heads(heads: Tensor, num_heads: int, semantics: Semantics = STANDARD) -> Tensor:
    """Give each query head its key/value head: ``[B, Hkv, L, D]`` to ``[B, H, L, D]``."""
    check_tensor(heads, "heads", "B Hkv L D")
    num_kv_heads = heads.shape[1]
    fits = num_kv_heads > 0 and num_heads % num_kv_heads == 0
    check_argument(fits, "heads", f"has {num_kv_heads} heads, which does not divide {num_heads}")
    if num_kv_heads == num_heads:
        return heads
    if semantics.group_order == "tile":
        return heads.repeat(1, num_heads // num_kv_heads, 1, 1)
    return shared(heads, num_heads)


def _check_shapes(query: Tensor, key: Tensor, value: Tensor) -> tuple[int, int, int, int]:
    check_tensor(query, "query", "B H Lq D")
    check_tensor(key, "key", "B Hkv Lk D")
    check_tensor(value, "value", "B Hkv Lk Dv")
    batch, num_heads, query_length, head_size = query.shape
    num_kv_heads, key_length = key.shape[1], key.shape[2]
    check_size(key, "key", 0, batch, "the batch size of query")
    check_size(key, "key", 3, head_size, "the head size of query")
    check_size(value, "value", 0, batch, "the batch size of query")
    check_size(value, "value", 1, num_kv_heads, "the number of heads of key")
    check_size(value, "value", 2, key_length, "the length of key")
    check_argument(
        num_kv_heads > 0 and num_heads % num_kv_heads == 0,
        "key",
        f"has {num_kv_heads} heads, which does not divide the {num_heads} heads of query",
    )
    return batch, num_heads, query_length, key_length


def _check_masks(
    shape: tuple[int, int, int, int],
    keep: Tensor | None,
    bias: Tensor | None,
    lengths: Tensor | None,
) -> None:
    if bias is not None:
        check_broadcasts(bias, "bias", shape)
        floating = bias.is_floating_point()
        check_argument(floating, "bias", f"has dtype {bias.dtype}, not a floating-point one")
    if keep is not None:
        check_broadcasts(keep, "keep", shape)
        check_argument(keep.dtype == torch.bool, "keep", f"has dtype {keep.dtype}, not torch.bool")
    if lengths is not None:
        check_lengths(lengths, shape)


def check_order(semantics: Semantics, learned: Mapping[str, Tensor] | None) -> None:
    """Raise ValueError for learned factors of heads that are normalised behind their rotation."""
    given = {*(learned or {})}
    factors = given - {"alibi_slopes", "relative_table", *MEMORY}
    if learned is not None and "relative_table" in learned:
        check_table(learned["relative_table"], semantics)
    if given & {*MEMORY}:
        _check_memory(given, semantics)
    if semantics.normalises_late and factors:
        msg = f"{min(factors)} is given with norm_order='after-rotary', for which it is not defined"
        raise ValueError(msg)


def _check_memory(given: set[str], point: Semantics) -> None:
    check_argument(given >= {*MEMORY}, "bias_k", "is given without bias_v, or the reverse")
    placed = (
        point.rotary != "none"
        or point.alibi
        or point.relative != "none"
        or point.score_mod is not None
    )
    defined = not placed and point.qk_norm == "none"
    rule = "with a norm, positions or score_mod, for which it is not defined"
    check_argument(defined, "bias_k", f"is given {rule}")


def _learned(learned: Mapping[str, Tensor], shape: tuple[int, int, int, int]) -> dict[str, Any]:
    """Learned arguments by name in float64, None for those that a call does not give."""
    sizes = {"B": shape[0], "H": shape[1]}
    made: dict[str, Any] = dict.fromkeys(LEARNED)
    for name, value in learned.items():
        check_argument(name in LEARNED, name, f"is none of {', '.join(LEARNED)}")
        allowed = [axes for axes in LEARNED[name] if len(axes) == value.dim()]
        check_argument(bool(allowed), name, f"has shape {list(value.shape)}")
        for axis, letter in enumerate(allowed[0]):
            if letter in sizes:
                check_size(value, name, axis, sizes[letter], f"the size of axis {letter}")
        made[name] = value.double()
    return made


def _check_sinks(sinks: Tensor | None, num_heads: int) -> None:
    if sinks is None:
        return
    check_tensor(sinks, "sinks", "H")
    check_size(sinks, "sinks", 0, num_heads, "the number of heads of query")
    floating = sinks.is_floating_point()
    check_argument(floating, "sinks", f"has dtype {sinks.dtype}, not a floating-point one")
    known = not bool((sinks.isnan() | sinks.isposinf()).any())
    check_argument(known, "sinks", "has entries that are neither finite nor minus infinity")


def _check_positions(
    queries: Tensor | None, keys: Tensor | None, shape: tuple[int, int, int, int]
) -> None:
    both = (queries is None) == (keys is None)
    check_argument(both, "query_positions", "are given without key_positions, or the reverse")
    for name, each, length in (
        ("query_positions", queries, shape[2]),
        ("key_positions", keys, shape[3]),
    ):
        if each is None:
            continue
        check_tensor(each, name, "B L")
        check_argument(each.dtype == torch.int64, name, f"has dtype {each.dtype}, not torch.int64")
        check_size(each, name, 0, shape[0], "the batch size of query")
        check_size(each, name, 1, length, f"the length of {name[:-10]}")


def _check_tables(
    tables: Tensor | None, shape: tuple[int, int, int, int], turned: int, *, placed: bool
) -> None:
    known = turned == 0 or ((tables is not None or placed) and 0 < turned <= shape[3])
    check_argument(known, "turned_keys", f"is {turned}: of {shape[3]} keys none comes turned")
    if tables is None:
        return
    check_tensor(tables, "rotary_tables", "B Lk R/2")
    known = tables.is_complex() or tables.is_floating_point()
    check_argument(known, "rotary_tables", f"has dtype {tables.dtype}: neither complex nor real")
    check_size(tables, "rotary_tables", 1, shape[3], "the length of key")
    items = tables.shape[0] in (1, shape[0])
    check_argument(items, "rotary_tables", f"has {tables.shape[0]} items, not 1 or {shape[0]}")


def _check_numbers(
    scale: float | None, softcap: float | None, window: tuple[int, int] | None
) -> None:
    if scale is not None:
        check_argument(math.isfinite(scale), "scale", f"is {scale}, not finite")
    if softcap is not None:
        positive = 0 < softcap < math.inf
        check_argument(positive, "softcap", f"is {softcap}, not positive and finite")
    check_window(window)
