"""Checks the promises about caches of keys and values: dense with lengths, or in pages."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Final

from ..base.geometry import Geometry, Pins
from ..base.printable_text import repr_of
from ..errors import DeclarationError, did_you_mean
from .declaration import CACHE_LENGTHS, CACHE_WRITE, DEFAULT_PAGE_SIZES
from .head_layouts import HEAD_LAYOUTS, LENGTHS_ENDING, PAGE_AXES, PAGE_INDEX, QUERIES

PAGED: Final = "paged"
LATENT: Final = "latent"
_OPTIONS: Final = {"page_axes": PAGE_AXES, "page_index": PAGE_INDEX, "queries": QUERIES}


def read_cache_layout(
    layout: object, options: Mapping[str, str | None], features: tuple[str, ...], *, sized: bool
) -> object:
    """The name of the layout with its options; raises DeclarationError.

    ``options`` are ``page_axes``, ``page_index`` and ``queries``, None where not declared;
    ``sized``: sizes of pages are declared, which puts latents in pages as each option does.
    """
    latent = isinstance(layout, str) and layout == LATENT
    paged = isinstance(layout, str) and layout == PAGED
    paged = paged or (latent and (sized or any(value is not None for value in options.values())))
    for name, value in options.items():
        words = _OPTIONS[name]
        if value is not None and (not isinstance(value, str) or value not in words):
            hint = did_you_mean(value if isinstance(value, str) else "", words)
            msg = f"{name} is {repr_of(value)}, which is unknown{hint}"
            raise DeclarationError(msg)
        if value is not None and not paged:
            msg = f"{name} is {value!r} with layout={repr_of(layout)}: only 'paged' has pages"
            raise DeclarationError(msg)
    if paged:
        return _in_pages(options, latent=latent)
    if not isinstance(layout, str):
        return layout  # refused as an unknown layout
    known = HEAD_LAYOUTS.get(layout)
    cached = known is not None and bool(known.cache_axes)
    if CACHE_LENGTHS in features and not cached:
        axes = "BSHD" if latent else layout
        dense = f"{LATENT}-" * latent + f"{axes}{LENGTHS_ENDING}"
        if dense not in HEAD_LAYOUTS:
            msg = (
                f"features has {CACHE_LENGTHS!r} with layout={layout!r}: dense caches are for "
                "'BHSD', 'BSHD' and 'latent'; layout='paged' has lengths anyway"
            )
            raise DeclarationError(msg)
        return dense
    if CACHE_WRITE in features and not cached:
        msg = (
            f"features has {CACHE_WRITE!r} with layout={layout!r}, which has no cache to write "
            f"into: declare layout='paged', or features=[{CACHE_LENGTHS!r}]"
        )
        raise DeclarationError(msg)
    return layout


def _in_pages(options: Mapping[str, str | None], *, latent: bool) -> str:
    """The name of a layout in pages; raises DeclarationError for heads of latents."""
    endings = (words[options[name] or next(iter(words))] for name, words in _OPTIONS.items())
    name = f"{LATENT}-" * latent + PAGED + "".join(endings)
    if name not in HEAD_LAYOUTS:
        msg = "page_axes is 'HND' with layout='latent', which has no axis of heads: drop it"
        raise DeclarationError(msg)
    return name


def read_page_sizes(page_sizes: Iterable[int] | None, layout: str) -> tuple[int, ...]:
    """The sizes of pages, () for a layout without; raises DeclarationError."""
    given = () if page_sizes is None else page_sizes
    try:
        sizes = tuple(given)
    except TypeError:
        sizes = (None,)  # type: ignore[assignment]  # refused below
    if not HEAD_LAYOUTS[layout].is_paged:
        if sizes:
            msg = f"page_sizes is {repr_of(page_sizes)} with layout={layout!r}, which has no pages"
            raise DeclarationError(msg)
        return ()
    sizes = sizes or DEFAULT_PAGE_SIZES
    if any(type(size) is not int or size < 1 for size in sizes):
        msg = f"page_sizes is {repr_of(page_sizes)}: give positive whole numbers, such as [16, 32]"
        raise DeclarationError(msg)
    return tuple(dict.fromkeys(sizes))


def without_gradients(layout: str, offered: frozenset[str], named: Iterable[str]) -> frozenset[str]:
    """The features without the gradients that no cache has, unless they were declared by name."""
    if not HEAD_LAYOUTS[layout].cache_axes or "gradients" in named:
        return offered
    return offered - {"gradients"}


def for_caches(layout: str, named: tuple[str, ...], pins: Pins) -> Pins:
    """The pins of a core with caches: one query an item, or a key for each that is written."""
    known = HEAD_LAYOUTS[layout]
    if layout.endswith(QUERIES["single"]) and known.cache_axes:
        if 1 not in pins.sizes.get("query_length", (1,)):
            pinned = list(pins.sizes["query_length"])
            msg = f"geometry pins query_length to {pinned}, but queries='single' makes it 1"
            raise DeclarationError(msg)
        pins = dataclasses.replace(pins, sizes={**pins.sizes, "query_length": (1,)})
    if CACHE_WRITE not in named:
        return pins
    build = pins.build

    def with_written_keys(geometry: Geometry) -> Geometry:
        built = geometry if build is None else build(geometry)
        return built.replace(query_length=min(built.query_length, built.key_length))

    return dataclasses.replace(pins, build=with_written_keys)
