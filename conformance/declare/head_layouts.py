"""The layouts of a core's heads: an object for each declared ``layout``.

Everywhere else heads are ``[B, H, S, D]``. A new order of these axes is a new entry here.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ..base.geometry import Geometry, Pins, possible
from ..errors import DeclarationError

if TYPE_CHECKING:  # scripts of failures are written without torch
    from torch import Tensor

OWN_AXES: Final = "BHSD"
SEQUENCE_KEYWORDS: Final = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")


@dataclass(frozen=True, kw_only=True)
class HeadLayout:
    """The axes of heads, and the tensors of query, key and value.

    axes
        ``B`` items, ``H`` heads, ``S`` positions, ``D`` channels, in order; ``T`` for the tokens of
        all sequences of a batch, one after another.
    inputs
        The positional inputs and their contents. Contents that share a tensor have an extra axis in
        front of the heads.
    ties
        Sizes made equal by a shared tensor: geometry field to geometry field.
    impossible
        Features without a form in this layout, and why.
    sequence_keywords
        Keywords of the first token of each sequence, of the longest length, and, with padding rows
        between sequences, of each sequence's first row. With caches, those of their lengths and
        pages.
    cache_axes
        The axes of caches that hold the keys and values, ``P`` for pages; "" without caches.
    value_in_key
        Whether all heads share a key without an axis of heads, and its first channels are the
        value.
    """

    axes: str = OWN_AXES
    inputs: Mapping[str, tuple[str, ...]] = field(
        default_factory=lambda: {name: (name,) for name in ("query", "key", "value")}
    )
    ties: Mapping[str, str] = field(default_factory=dict)
    impossible: Mapping[str, str] = field(default_factory=dict)
    sequence_keywords: tuple[str, ...] = ()
    cache_axes: str = ""
    value_in_key: bool = False

    @property
    def mode(self) -> str:
        """The inputs of a call, as ``inputs=`` says it for layers."""
        return "memory" if self.value_in_key else "separate"

    @property
    def is_own(self) -> bool:
        """Whether heads keep the harness' own layout."""
        return self.axes == OWN_AXES and not (self.is_packed or self.cache_axes)

    @property
    def is_packed(self) -> bool:
        """Whether one tensor holds several of query, key and value."""
        return any(len(parts) > 1 for parts in self.inputs.values())

    @property
    def has_sequences(self) -> bool:
        """Whether sequences of different lengths lie one after another, without an item axis."""
        return "T" in self.axes

    @property
    def has_lengths(self) -> bool:
        """Whether the items of a batch have lengths of their own, and no other mask."""
        return self.has_sequences or bool(self.cache_axes)

    @property
    def has_all_queries(self) -> bool:
        """Whether every item of a batch has as many queries: no offsets say otherwise."""
        return not any(word.startswith("cu_") for word in self.sequence_keywords)

    @property
    def is_paged(self) -> bool:
        """Whether keys and values lie in pages."""
        return "P" in self.cache_axes

    @property
    def has_gaps(self) -> bool:
        """Whether padding rows lie between the sequences."""
        return any(word.endswith("_padded") for word in self.sequence_keywords)

    def arranged(self, heads: Tensor) -> Tensor:
        """A view of heads ``[B, H, S, D]`` with the axes of this layout."""
        return heads if self.axes == OWN_AXES else heads.permute(*map(OWN_AXES.index, self.axes))

    def restored(self, tensor: Tensor) -> Tensor:
        """The inverse of :meth:`arranged`, for a tensor with one input."""
        return tensor if self.axes == OWN_AXES else tensor.permute(*map(self.axes.index, OWN_AXES))


_OF_SEQUENCES: Final = {
    "kv_cache": "sequences of a batch lie one after another",
    "weights": "queries of different sequences have different numbers of keys",
}
_HEAD_LAYOUTS: Final[dict[str, HeadLayout]] = {
    "BHSD": HeadLayout(),
    "BSHD": HeadLayout(axes="BSHD"),
    # One tensor [B, S, 3, H, D].
    "packed-qkv": HeadLayout(
        axes="BSHD",
        inputs={"qkv": ("query", "key", "value")},
        ties={
            "num_kv_heads": "num_heads",
            "key_length": "query_length",
            "value_head_size": "head_size",
        },
        impossible={
            "gqa": "one tensor holds as many key heads as query heads",
            "kv_cache": "one tensor holds as many keys as queries",
        },
    ),
    # Query [B, S, H, D], and one tensor [B, S, 2, Hkv, D].
    "packed-kv": HeadLayout(
        axes="BSHD",
        inputs={"query": ("query",), "kv": ("key", "value")},
        ties={"value_head_size": "head_size"},
        impossible={"kv_cache": "keys and values of a cache are apart"},
    ),
    # Query [B, H, S, D], and one tensor [B, S, D] for all heads.
    "latent": HeadLayout(
        inputs={"query": ("query",), "latent": ("key", "value")},
        impossible={"kv_cache": "one tensor holds keys and values, which a cache has apart"},
        value_in_key=True,
    ),
    # [total, H, D] with cu_seqlens and max_seqlen, as FlashAttention takes it.
    "varlen": HeadLayout(axes="THD", impossible=_OF_SEQUENCES, sequence_keywords=SEQUENCE_KEYWORDS),
    # varlen with a common cu_seqlens and max_seqlen for queries and keys.
    "varlen-shared": HeadLayout(
        axes="THD",
        ties={"key_length": "query_length"},
        impossible=_OF_SEQUENCES,
        sequence_keywords=("cu_seqlens", "max_seqlen"),
    ),
}
_OF_CACHES: Final = {
    **dict.fromkeys(
        ("gradients", "double_backward", "grad_weights"), "no gradient flows into a cache"
    ),
    "kv_cache": "keys and values lie in caches already",
    "weights": "the items of a batch have different numbers of keys",
    "positions": "a query's place follows from the length of its cache",
}
_INTO_CACHES: Final = {"query": ("query",), "key_cache": ("key",), "value_cache": ("value",)}
# What follows "paged" in the name of a layout: page_axes, page_index and queries, as declared.
PAGE_AXES: Final = {"NHD": "", "HND": "-HND"}
PAGE_INDEX: Final = {"table": "", "csr": "-csr"}
QUERIES: Final = {"dense": "", "varlen": "-varlen", "single": "-single"}
# What follows the layout of dense caches.
LENGTHS_ENDING: Final = "-lengths"
_BY_INDEX: Final = {
    "table": ("block_table", "cache_lengths"),
    "csr": ("kv_indptr", "kv_indices", "last_page_lengths"),
}


_LATENT_CACHE: Final = {"query": ("query",), "latent_cache": ("key", "value")}


def _paged(axes: str, index: str, queries: str) -> HeadLayout:
    varlen = queries == "varlen"
    return HeadLayout(
        axes="BSHD" if queries == "dense" else "THD",  # [B, H, D] is one query an item
        inputs=_INTO_CACHES,
        impossible=_OF_CACHES,
        sequence_keywords=(*_BY_INDEX[index], *(("cu_seqlens_q",) if varlen else ())),
        cache_axes="PSHD" if axes == "NHD" else "PHSD",
    )


def _of_latents(cached: HeadLayout) -> HeadLayout:
    """The layout with one cache of latents ``[pages, page, D]``, or ``[B, slots, D]``."""
    return dataclasses.replace(
        cached,
        inputs=_LATENT_CACHE,
        impossible={**cached.impossible, "cache_write": "one tensor holds keys and values"},
        cache_axes=cached.cache_axes.replace("H", ""),
        value_in_key=True,
    )


_OF_HEADS: Final[dict[str, HeadLayout]] = {
    **{
        f"{axes}{LENGTHS_ENDING}": HeadLayout(
            axes=axes,
            inputs=_INTO_CACHES,
            impossible=_OF_CACHES,
            sequence_keywords=("cache_lengths",),
            cache_axes=axes,
        )
        for axes in ("BHSD", "BSHD")
    },
    **{
        f"paged{PAGE_AXES[axes]}{PAGE_INDEX[index]}{QUERIES[queries]}": _paged(axes, index, queries)
        for axes, index, queries in itertools.product(PAGE_AXES, PAGE_INDEX, QUERIES)
    },
}
_CACHES: Final[dict[str, HeadLayout]] = _OF_HEADS | {
    f"latent-{name}": _of_latents(layout)
    for name, layout in _OF_HEADS.items()
    if PAGE_AXES["HND"] not in name and not name.startswith("BHSD")
}
# Layouts with padding rows between sequences, as in cuDNN and TransformerEngine, and with caches.
HEAD_LAYOUTS: Final[Mapping[str, HeadLayout]] = (
    _HEAD_LAYOUTS
    | {
        f"{name}-padded": dataclasses.replace(
            layout,
            sequence_keywords=(
                *layout.sequence_keywords,
                *(f"{word}_padded" for word in layout.sequence_keywords if word.startswith("cu_")),
            ),
        )
        for name, layout in _HEAD_LAYOUTS.items()
        if layout.has_sequences
    }
    | _CACHES
)

# The names that messages list: those of caches follow from options.
LISTED: Final = (*(name for name in HEAD_LAYOUTS if name not in _CACHES), "paged")


def check_company(layout: str, features: frozenset[str], empty_rows: str) -> None:
    """Raise DeclarationError for features and rules that a layout cannot have."""
    for feature, why in HEAD_LAYOUTS[layout].impossible.items():
        if feature in features:
            msg = f"the feature {feature!r} cannot be had with layout={layout!r}: {why}; drop one"
            raise DeclarationError(msg)
    if HEAD_LAYOUTS[layout].has_lengths and empty_rows == "mean-of-all":
        msg = (
            f"empty_rows is 'mean-of-all' with layout={layout!r}, where no sequence has keys that "
            "are masked: write 'mean-of-valid'"
        )
        raise DeclarationError(msg)


def tied_by_layout(layout: str, pins: Pins) -> Pins:
    """The declared pins together with the sizes that a layout makes equal.

    Raises DeclarationError for pins that the layout contradicts.
    """
    pins = tied(pins, HEAD_LAYOUTS[layout].ties, f"layout={layout!r}")
    return _with_value_in_key(pins) if HEAD_LAYOUTS[layout].value_in_key else pins


def tied(pins: Pins, ties: Mapping[str, str], promise: str) -> Pins:
    """The pins with sizes that a promise makes equal; raises DeclarationError."""
    for name, other in ties.items():
        first, second = pins.sizes.get(name), pins.sizes.get(other)
        if first is not None and second is not None and not set(first) & set(second):
            msg = (
                f"geometry pins {name} to {list(first)} and {other} to {list(second)}, but "
                f"{promise} makes them one size"
            )
            raise DeclarationError(msg)
        if pins.equal_to.get(name, other) != other:
            msg = (
                f"geometry makes {name} equal to {pins.equal_to[name]}, but {promise} "
                f"makes it equal to {other}"
            )
            raise DeclarationError(msg)
    build = pins.build
    if build is None:
        return possible(dataclasses.replace(pins, equal_to={**pins.equal_to, **ties}))

    def alike(geometry: Geometry) -> Geometry:
        built = build(geometry)
        return built.replace(**{name: getattr(built, other) for name, other in ties.items()})

    return dataclasses.replace(pins, build=alike)


def _with_value_in_key(pins: Pins) -> Pins:
    """The pins of a key for all heads that holds the value; raises DeclarationError."""
    kv_heads = pins.sizes.get("num_kv_heads", (1,))
    if 1 not in kv_heads or "num_kv_heads" in pins.equal_to:
        given = pins.equal_to.get("num_kv_heads", list(kv_heads))
        msg = (
            f"geometry pins num_kv_heads to {given}, but layout='latent' has one key for all heads"
        )
        raise DeclarationError(msg)
    if pins.build is None and "value_head_size" not in {*pins.sizes, *pins.equal_to}:
        msg = (
            "layout is 'latent', but nothing says how many channels of the latent are the value: "
            "give geometry={'value_head_size': 512}, or how many there are"
        )
        raise DeclarationError(msg)
    widths, values = (pins.sizes.get(name) for name in ("head_size", "value_head_size"))
    if widths and values and min(values) > max(widths):
        msg = (
            f"geometry pins value_head_size to {list(values)} and head_size to {list(widths)}, but "
            "with layout='latent' the value is the first channels of the key"
        )
        raise DeclarationError(msg)
    pinned = possible(dataclasses.replace(pins, sizes={**pins.sizes, "num_kv_heads": (1,)}))

    def fitted(geometry: Geometry) -> Geometry:
        built = pinned.apply(geometry)  # --isolated asks for nothing else
        width, value = built.head_size, built.value_head_size
        if value > width:
            within = [size for size in values or (width,) if size <= width]
            value = max(within, default=min(values or (value,)))
            width = max(width, min(size for size in widths or (value,) if size >= value))
        return built.replace(num_kv_heads=1, head_size=width, value_head_size=value)

    return dataclasses.replace(pinned, build=fitted)
