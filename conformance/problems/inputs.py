"""The tensors of an example, in the harness's canonical layout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Final, Literal, TypedDict

import torch
from torch import Tensor

from .._golden import golden
from ..base.geometry import Geometry
from ..base.results import Replaceable
from ..declare.declaration import PADDED_QUERIES, SEQUENCES
from ..declare.head_layouts import HEAD_LAYOUTS, HeadLayout
from ..tolerance.visible_keys import owners
from .learned import LearnedArguments
from .paging import KeyStore
from .positions import Positions
from .quantised import Quantised
from .rotary_tables import RotaryTables

# The options of a call with None for an omission.
OPTIONAL: Final = ("bias", "scale", "softcap", "window")


class CallOptions(TypedDict):
    """The keywords common to all functions of the golden, except the point of the semantics."""

    keep: Tensor | None
    bias: Tensor | None
    causal: bool
    scale: float | None
    softcap: float | None
    window: tuple[int, int] | None
    sinks: Tensor | None
    rotary_tables: Tensor | None
    turned_keys: int
    learned: dict[str, Tensor]
    query_positions: Tensor | None
    key_positions: Tensor | None


def most_cached(key_length: int) -> int:
    """The largest number of cached keys among ``key_length``: one key is always new."""
    return max(key_length - 1, 0)


def rows_of_answer(marked: Tensor, semantics: golden.Semantics) -> Tensor:
    """The rows of a layer's answer ``[B, L]`` that contain marked rows of heads ``[B, H, Lq]``."""
    return _merged(marked.unsqueeze(-1), semantics).squeeze(-1)


def _merged(marked: Tensor, semantics: golden.Semantics) -> Tensor:
    """Marks in rows of heads ``[B, H, Lq, N]``, carried to the merged rows."""
    if semantics.head_merge in ("blocks", "interleaved"):  # these move channels, not rows
        return marked.any(dim=1)
    in_a_row = 1 if semantics.head_merge == "tokens" else marked.shape[1]
    merged = golden.merge_heads(marked, semantics).unflatten(-1, (in_a_row, marked.shape[-1]))
    rows: Tensor = merged.any(dim=-2)
    return rows


def _by_token(allowed: Tensor, read: Tensor, num_kv_heads: int, kind: golden.Semantics) -> Tensor:
    """The tokens that rows of heads attend, ``[B, H, Lq, Lk]``, from the attended rows of keys.

    ``read [H]`` is the key/value head of each head.
    """
    if kind.head_split != "reinterpret":
        return allowed
    length = allowed.shape[-1]
    tokens = torch.eye(length).unsqueeze(-1).expand(-1, -1, num_kv_heads)
    pieces = golden.split_heads(tokens, num_kv_heads, kind).squeeze(-1)  # [token, Hkv, key]
    return allowed.float() @ pieces.permute(1, 2, 0)[read] > 0.0


def of_rows(mask: Tensor | None, rows: Tensor | None) -> Tensor | None:
    """Some rows of a mask with four axes, unless the mask repeats along rows; by default all."""
    if mask is None or rows is None or mask.shape[2] == 1:
        return mask
    return mask.index_select(2, rows)


@dataclass(frozen=True, kw_only=True, eq=False)
class Inputs(Replaceable):
    """The inputs of both the candidate and the golden.

    query, key, value
        Heads ``[B, H, Lq, D]``, ``[B, Hkv, Lk, D]``, ``[B, Hkv, Lk, Dv]`` for a core; tokens
        ``[B, L, width]`` for a layer; in the working dtype. With ``mode="self"`` the three are one
        object, with ``mode="memory"`` key and value are; the value of a core then is the first
        channels of the key.
    keep, bias
        The mask: bool, True attends, and additive finite values, both with four axes, of size 1
        along constant axes. ``mask_form`` and ``mask_shape`` say how to hand the mask over.
    present
        The existing queries ``[B, Lq]`` and keys ``[B, Lk]`` of sequences, where ``keep`` does not
        tell: some have queries or keys alone, or a structure hides keys. None for other masks.
    return_weights, dropout
        Further keywords of the call.
    return_lse
        The axes of the log-sum-exps that the call asks for, such as "BHQ"; "" if it asks for none.
    generic
        Whether tokens and weights are independent random numbers, to which the statistical bound
        applies; changed tokens lose the flag.
    layout, mask_layout
        The memory layout of tensors and mask in a call; see
        :mod:`conformance.problems.memory_layouts`.
    grad_mode
        Whether the call records gradients, though none is computed.
    shared
        Whether a call keeps the object identity of inputs.
    always_causal
        Whether the candidate applies the causal rule in every call without a flag.
    past
        The number of first keys and values that are handed over as a cache. With ``mode="self"``
        the query is the rest.
    empty_cache
        Whether the call gets a cache without tokens.
    own_cache, past_calls
        Whether a module keeps the cache itself: it is then given the first tokens beforehand, in
        ``past_calls`` calls.
    point
        The declared point, used to project the tokens of a layer's cache.
    sinks
        For each head ``[H]`` the logit of a further key with the value zero; working dtype.
    tables
        The rotary tables for all keys, if the call takes tables; else None.
    learned
        The learned arguments, if the call takes some; else None.
    positions
        The positions of all tokens, if the call takes positions; else None.
    store
        How keys and values lie in caches, if the layout has caches; else None.
    quantised
        The format and the scales of keys and values, whose codes stand for ``exact_key`` and
        ``exact_value``; None for keys and values in the dtype of the query.
    block_size, grid
        The numbers of queries and keys in a block of a block mask; a grid that is declared.
    device, head_layout
        The device of a call's tensors, and the declared ``layout`` of a core's heads; the tensors
        here are always on the CPU and ``[B, H, L, D]``.
    """

    geometry: Geometry
    mode: Literal["separate", "self", "memory"]
    batched: bool
    query: Tensor
    key: Tensor
    value: Tensor
    weights: golden.ProjectionWeights | None = None
    keep: Tensor | None = None
    bias: Tensor | None = None
    mask_form: str | None = None
    mask_shape: str = ""
    present: tuple[Tensor, Tensor] | None = None
    causal: bool = False
    scale: float | None = None
    softcap: float | None = None
    window: tuple[int, int] | None = None
    return_weights: bool = False
    return_lse: str = ""
    dropout: float | None = None
    generic: bool = False
    layout: str = "contiguous"
    mask_layout: str = "contiguous"
    grad_mode: bool = False
    shared: bool = False
    always_causal: bool = False
    past: int = 0
    empty_cache: bool = False
    own_cache: bool = False
    past_calls: int = 1
    point: golden.Semantics = golden.STANDARD
    sinks: Tensor | None = None
    tables: RotaryTables | None = None
    learned: LearnedArguments | None = None
    positions: Positions | None = None
    quantised: Quantised | None = None
    device: str = "cpu"
    head_layout: HeadLayout = HEAD_LAYOUTS["BHSD"]
    block_size: tuple[int, int] = (1, 1)
    grid: tuple[int, int] | None = None
    store: KeyStore | None = None

    @cached_property
    def exact(self) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value; quantised ones as their codes and scales have them."""
        if self.quantised is None:
            return self.query, self.key, self.value
        key, value = (self.quantised.exact(name, getattr(self, name)) for name in ("key", "value"))
        return self.query, key, value

    @property
    def is_layer(self) -> bool:
        """Whether the tensors are tokens for a layer rather than heads."""
        return self.query.dim() == len("BLE")

    @property
    def masked(self) -> bool:
        """Whether a mask is handed over."""
        return self.mask_form is not None

    @property
    def writes(self) -> bool:
        """Whether the call is to write into its caches."""
        return self.store is not None and self.store.writes

    @property
    def has_own_lengths(self) -> bool:
        """Whether items have lengths of their own, which hide what lies outside of them."""
        own = self.mask_form == SEQUENCES or self.present is not None
        return own and self.keep is not None

    @property
    def absent(self) -> Tensor | None:
        """The queries outside all sequences or lengths, bool ``[B, 1, Lq]``; None without those."""
        if self.keep is None or not (self.has_own_lengths or self.mask_form == PADDED_QUERIES):
            return None
        if self.has_own_lengths and self.head_layout.has_all_queries:
            return None  # every item has all queries
        if self.present is not None:
            return ~self.present[0].unsqueeze(1)
        return ~self.keep.any(dim=-1)

    @property
    def options(self) -> CallOptions:
        """The options of the call, for the golden."""
        positions = self.given_positions
        return CallOptions(
            keep=self.keep,
            bias=self.bias,
            causal=self.causal,
            scale=self.scale,
            softcap=self.softcap,
            window=self.window,
            sinks=self.sinks,
            rotary_tables=self.rotary_tables,
            turned_keys=self.past if self.gets_turned_keys else 0,
            query_positions=None if positions is None else positions[0],
            key_positions=None if positions is None else positions[1],
            learned=self.learned_arguments,
        )

    @property
    def learned_arguments(self) -> dict[str, Tensor]:
        """The learned arguments of the call by keyword, in the dtype of the query."""
        made = {} if self.learned is None else self.learned.of(self.geometry)
        return {name: value.to(self.query.dtype) for name, value in made.items()}

    @property
    def given_positions(self) -> tuple[Tensor, Tensor] | None:
        """The positions ``[B, Lq]`` and ``[B, Lk]`` of queries and keys; None if none are given."""
        return None if self.positions is None else self.positions.of(self.geometry)

    @property
    def gets_turned_keys(self) -> bool:
        """Whether cached keys come turned: the call does not say where they stand."""
        by_own = self.positions is not None and self.mode == "self"
        return not self.own_cache and (self.tables is not None or by_own)

    @property
    def rotary_tables(self) -> Tensor | None:
        """The rotary tables of all keys in the golden's form; None if the call gives none."""
        sizes = self.geometry
        if self.tables is None:
            return None
        return self.tables.of(sizes.batch, sizes.key_length, self.query.dtype)

    @cached_property
    def weights_in_float64(self) -> golden.ProjectionWeights | None:
        """The projections of a layer in float64, without gradient history."""
        with torch.no_grad():
            return self.weights and self.weights.taking_part(golden.STANDARD)

    def with_own_weights(self) -> Inputs:
        """The inputs with copied projections, if any."""
        weights = self.weights
        if weights is None:
            return self
        own = {one.name: getattr(weights, one.name) for one in fields(weights)}
        copied: dict[str, Any] = {role: w if w is None else w.clone() for role, w in own.items()}
        return self.replace(weights=golden.ProjectionWeights(**copied))

    def without_mask(self) -> Inputs:
        """The inputs with every key kept and no mask handed over."""
        return self.replace(keep=None, bias=None, mask_form=None, mask_shape="", present=None)

    def with_tokens(
        self, *, query: Tensor | None = None, key: Tensor | None = None, value: Tensor | None = None
    ) -> Inputs:
        """Change tokens; shared objects stay shared, and sizes follow the tensors.

        In mode "self" give ``key``: the tensor becomes query, key and value. In mode "memory" give
        ``key`` for both key and value. A cache shrinks until one key is new.
        """
        key = self.key if key is None else key
        past = min(self.past, most_cached(key.shape[-2]))
        if self.mode == "self":
            query, value = key[..., past:, :] if past else key, key
        elif self.mode == "memory":
            value = key if self.is_layer else key[..., : self.geometry.value_head_size]
        query = self.query if query is None else query
        value = self.value if value is None else value
        geometry = self.geometry.replace(
            batch=query.shape[0], query_length=query.shape[-2], key_length=key.shape[-2]
        )
        return self.replace(
            geometry=geometry, query=query, key=key, value=value, past=past, generic=False
        )

    def map_tokens(self, change: Callable[[Tensor], Tensor]) -> Inputs:
        """Change query, key and value, in this order, by one function; see :meth:`with_tokens`."""
        return self.with_tokens(
            query=change(self.query), key=change(self.key), value=change(self.value)
        )

    def counted(self, semantics: golden.Semantics) -> tuple[bool, bool]:
        """Whether causality, and whether the mask, count at a point of the semantics."""
        return golden.counts(
            semantics,
            causal=self.causal,
            masked=self.keep is not None or self.bias is not None,
            query_length=self.geometry.query_length,
        )

    def structure(self, semantics: golden.Semantics) -> Tensor:
        """The keys that window and, if it counts, causality admit: bool ``[Lq, Lk]``.

        ``[B, 1, Lq, Lk]`` where causality goes by given positions.
        """
        return golden.structural_mask(
            self.geometry.query_length,
            self.geometry.key_length,
            causal=self.counted(semantics)[0],
            window=self.window,
            semantics=semantics,
            positions=self.given_positions,
        )

    def allowed(self, semantics: golden.Semantics, rows: Tensor | None = None) -> Tensor:
        """The keys that queries may attend: bool ``[B, H, Lq, Lk]``.

        ``rows`` (int64 ``[R]``) selects queries: ``[B, H, R, Lk]``.
        """
        return golden.attended_keys(
            self.score_shape,
            keep=of_rows(self.keep, rows),
            bias=of_rows(self.bias, rows),
            causal=self.causal,
            window=self.window,
            semantics=semantics,
            device=self.query.device,
            rows=rows,
            positions=self.given_positions,
        )

    def answer_rows(self, marked: Tensor, semantics: golden.Semantics) -> Tensor:
        """The rows of the answer that contain marked rows of heads, broadcastable to the answer.

        ``marked`` is bool ``[B, H, Lq]``.
        """
        return (rows_of_answer(marked, semantics) if self.is_layer else marked).unsqueeze(-1)

    def reached(self, semantics: golden.Semantics, allowed: Tensor | None = None) -> Tensor:
        """The keys and values that reach each row of the answer, by ``allowed`` or at a point.

        Bool ``[B, H, Lq, Lk]`` for a core, ``[B, Lq, Lk]`` with tokens for keys for a layer. Tokens
        are the rows of keys, except if heads are split by a view of memory.
        """
        allowed = self.allowed(semantics) if allowed is None else allowed
        if not self.is_layer:
            return allowed
        read = self.read_heads(semantics)
        by_token = _by_token(allowed, read, self.geometry.num_kv_heads, semantics)
        return _merged(by_token, semantics)

    def own_rows(self, semantics: golden.Semantics, counted: Tensor | None = None) -> Tensor:
        """The queries behind each row of the answer, among ``counted [B, H, Lq]`` rows of heads.

        Bool ``[B, H, Lq, Lq]`` for a core, ``[B, Lq, Lq]`` for a layer.
        """
        batch, heads, length, _ = self.score_shape
        own = torch.eye(length, dtype=torch.bool).expand(batch, heads, -1, -1)
        if counted is not None:
            own = own & counted.unsqueeze(-1)
        if not self.is_layer:
            return own
        return _merged(_by_token(own, torch.arange(heads), heads, semantics), semantics)

    def attending(self, table: Tensor, semantics: golden.Semantics) -> Inputs:
        """The inputs for the golden at a point, with a table ``[B, H, Lq, Lk]`` as the only mask.

        The bias still counts if it counted before.
        """
        return self.replace(
            keep=table if semantics.mask_polarity == "keep" else ~table,
            bias=self.bias if self.counted(semantics)[1] else None,
            causal=False,
            window=None,
        )

    def read_heads(self, semantics: golden.Semantics) -> Tensor:
        """The key/value head that each query head reads, ``[H]``."""
        return owners(self.geometry.num_heads, self.geometry.num_kv_heads, semantics)

    @property
    def score_shape(self) -> tuple[int, int, int, int]:
        """``[B, H, Lq, Lk]``."""
        sizes = self.geometry
        return (sizes.batch, sizes.num_heads, sizes.query_length, sizes.key_length)

    @property
    def output_shape(self) -> tuple[int, ...]:
        """The shape the answer must have, batch axis included."""
        sizes = self.geometry
        if self.is_layer:
            return (sizes.batch, sizes.query_length, sizes.output_size)
        return (sizes.batch, sizes.num_heads, sizes.query_length, sizes.value_head_size)
