"""Checks a candidate's promises, and builds its declaration."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Final, get_args

import torch

from .._golden import golden
from ..base.expected import GivenExpectations, read_expected
from ..base.geometry import (
    FIELDS,
    LENGTHS,
    Geometry,
    GeometryRule,
    Pins,
    grouped,
    possible,
    read_pins,
)
from ..base.printable_text import raised_text, repr_of
from ..base.profile import DTYPES
from ..errors import DeclarationError, did_you_mean
from .caches import (
    for_caches,
    read_cache_layout,
    read_page_sizes,
    without_gradients,
)
from .declaration import (
    ALIGNMENTS,
    ARRAYS,
    BY_CAUSALITY,
    DEFAULT_FEATURES,
    DEFAULT_LENGTH_SHAPES,
    DEFAULT_MASK_SHAPES,
    DEFAULT_TABLE_SHAPES,
    EMPTY_ROWS,
    FEATURES,
    FORMS_OF_ITEMS,
    GRID_FORMS,
    INPUTS,
    KV_FORMATS,
    KV_SCALES,
    LSE_BASES,
    LSE_EMPTY,
    LSE_SHAPES,
    MASK_FORMS,
    MEMORY,
    MIXED,
    OF_JAX,
    OF_TENSORS,
    OFFSETS,
    PADDED_ROWS,
    POSITIONS,
    PRECISIONS,
    SEQUENCES,
    SLOPE_SHAPES,
    STRIDES,
    STRUCTURED_FORMS,
    TABLE_KEYWORDS,
    WITH_WEIGHTS,
    Declaration,
    is_mask_shape,
    mixed_in,
)
from .exclusions import check_exclusions
from .head_layouts import HEAD_LAYOUTS, LISTED, check_company, tied, tied_by_layout
from .ranks import FEATURES as OF_RANKS
from .ranks import Ranks


def _forms_of_layout(layout: str, forms: tuple[str, ...]) -> tuple[str, ...]:
    """The declared mask forms; with lengths of items the structured ones and "sequences".

    Raises DeclarationError for other mask forms declared with such a layout.
    """
    if not HEAD_LAYOUTS[layout].has_lengths:
        return forms
    others = [form for form in forms if form not in FORMS_OF_ITEMS]
    if others:
        words = "lengths" if HEAD_LAYOUTS[layout].cache_axes else "cu_seqlens"
        msg = (
            f"masks has {others[0]!r} with layout={layout!r}, whose {words} say which keys a "
            f"query has: drop it (of masks {', '.join(FORMS_OF_ITEMS)} are judged there)"
        )
        raise DeclarationError(msg)
    return (*forms, SEQUENCES)


def declare(
    kind: str,
    *,
    masks: Iterable[str] = (),
    mask_shapes: Iterable[str] | Mapping[str, Iterable[str]] | None = None,
    causal: str | None = None,
    always_causal: bool = False,
    empty_rows: str | Mapping[str, str] = "any",
    features: Iterable[str] = (),
    without: Iterable[str] = (),
    inputs: str = "separate",
    batched: bool = True,
    dtypes: Iterable[str] = ("float32",),
    devices: Iterable[str] = ("cpu",),
    accumulate: str | None = None,
    tf32: bool = False,
    scores: str = "eager",
    precision: str | None = "",
    geometry: GeometryRule | None = None,
    semantics: golden.Semantics | None = None,
    position: str | None = None,
    max_length: int | None = None,
    layout: str = "BHSD",
    arrays: str = "torch",
    operator: str = "",
    mixed: str | None = None,
    memory: str | None = None,
    strides: str = "any",
    unchecked: Iterable[str] = (),
    ranks: Ranks | None = None,
    block_size: tuple[int, int] | None = None,
    grid: tuple[int, int] | None = None,
    padded_rows: str = "any",
    rotary_tables: str | None = None,
    rotary_table_shape: str | None = None,
    lse_base: str | None = None,
    lse_shape: str | None = None,
    lse_empty: str | None = None,
    alibi_slope_shape: str | None = None,
    causal_by: str | None = None,
    offsets: str = "each",
    padded: bool = False,
    queries: str | None = None,
    page_axes: str | None = None,
    page_index: str | None = None,
    page_sizes: Iterable[int] | None = None,
    kv_format: str | None = None,
    kv_scales: str | None = None,
    expected_failures: GivenExpectations = None,
) -> Declaration:
    """Check every promise and build the declaration; raises DeclarationError with a sentence."""
    _flags(always_causal=always_causal, batched=batched, tf32=tf32, padded=padded)
    forms = _words("masks", masks, (*MASK_FORMS, *STRUCTURED_FORMS), _COMMON_MASKS)
    grid = _read_pair("grid", grid, forms, GRID_FORMS, "rows and columns its tokens have", (4, 6))
    pins = _for_grids(forms, grid, _for_structured(forms, read_pins(geometry)))
    _choice("offsets", offsets, OFFSETS)
    if offsets == "shared":
        layout = _of_sequences(layout, "-shared", "offsets is 'shared'")
    if padded:
        layout = _of_sequences(layout, "-padded", "padded is True")
    named = _words("features", features, FEATURES)
    options = {"page_axes": page_axes, "page_index": page_index, "queries": queries}
    sized = page_sizes is not None
    layout = read_cache_layout(layout, options, named, sized=sized)  # type: ignore[assignment]  # checked below
    if not (isinstance(layout, str) and layout == "BHSD"):
        pins, forms = _read_layout(layout, forms, pins)
        pins = for_caches(layout, named, pins)
    mask_shapes, mask_pairs = _read_pairs(mask_shapes, forms)
    key_shapes, length_shapes = _read_shapes(mask_shapes, forms, batched=batched)
    choices = {
        "inputs": (inputs, INPUTS),
        "scores": (scores, ("eager", "fused")),
        "arrays": (arrays, ARRAYS),
        "strides": (strides, STRIDES),
        "padded_rows": (padded_rows, PADDED_ROWS),
    }
    optional = {
        "causal": (causal, ALIGNMENTS),
        "accumulate": (accumulate, (*DTYPES, "native")),
        "position": (position, POSITIONS),
        "mixed": (mixed, MIXED),
        "memory": (memory, MEMORY),
        "causal_by": (causal_by, get_args(golden.CausalBy)),
    }
    _choices(choices | {name: pair for name, pair in optional.items() if pair[0] is not None})
    if always_causal and causal is None:
        msg = (
            "always_causal is True but causal is not declared: give its alignment, causal="
            f"{' or '.join(repr(word) for word in ALIGNMENTS)}"
        )
        raise DeclarationError(msg)
    offered = without_gradients(layout, _read_features(kind, named, without), named)
    common_rule, rules = _read_empty_rows(empty_rows, forms, causal, offered)
    for rule in (common_rule, *rules.values()):
        check_company(layout, offered, rule)
    chosen = _some("dtypes", _words("dtypes", dtypes, DTYPES), "float32")
    places = _some("devices", _devices(devices), "cpu")
    if arrays != "torch":
        offered = _read_arrays(arrays, places, offered, frozenset(named))
    kv_scales, offered = _read_kv_format(
        kv_format, kv_scales, kind, layout, offered, named, alone=ranks is None and mixed is None
    )
    point = _read_semantics(semantics, causal, rules or common_rule, causal_by)
    inputs = _read_inputs(kind, inputs, layout)
    rotary_table_shape = _read_tables(rotary_tables, rotary_table_shape, batched=batched)
    pins = _for_tables(rotary_tables, kind, point, pins)
    if "alibi_slopes" in offered:
        point = point.replace(alibi=True)
    _check_slopes(alibi_slope_shape, batched=batched)
    if ranks is not None:
        ranks, pins = _read_ranks(
            ranks, kind, layout, arrays, offered, pins, forms=forms, batched=batched
        )
    _check_longest(max_length, pins)
    lse = _read_lse({"lse_base": lse_base, "lse_shape": lse_shape, "lse_empty": lse_empty}, offered)
    declaration = Declaration(
        kind=kind,
        masks=forms,
        mask_shapes=key_shapes,
        length_shapes=length_shapes,
        mask_pairs=mask_pairs,
        causal=causal,
        empty_rows=common_rule,
        features=offered,
        inputs=inputs,
        batched=batched,
        dtypes=chosen,
        devices=places,
        accumulate=accumulate,
        tf32=tf32,
        scores=scores,
        pins=pins,
        semantics=point,
        position=_read_position(position, point),
        max_length=max_length,
        expected_failures=read_expected(expected_failures),
        always_causal=always_causal,
        precision=_read_precision(precision, kind, chosen),
        layout=layout,
        arrays=arrays,
        operator=str(operator),
        mixed=mixed,
        memory=memory,
        strides=strides,
        declared_features=frozenset(named),
        empty_rows_by=tuple(rules.items()),
        unchecked=_names("unchecked", unchecked),
        ranks=ranks,
        block_size=_read_block_size(block_size, forms),
        grid=grid,
        padded_rows=padded_rows,
        rotary_tables=rotary_tables,
        rotary_table_shape=rotary_table_shape,
        lse_base=lse.get("lse_base"),
        lse_shape=lse.get("lse_shape"),
        lse_empty=lse.get("lse_empty"),
        alibi_slope_shape=alibi_slope_shape,
        page_sizes=read_page_sizes(page_sizes, layout),
        kv_format=kv_format,
        kv_scales=kv_scales,
    )
    check_exclusions(declaration)
    return declaration


def _read_kv_format(
    kv_format: str | None,
    kv_scales: str | None,
    kind: str,
    layout: str,
    offered: frozenset[str],
    named: tuple[str, ...],
    *,
    alone: bool,
) -> tuple[str | None, frozenset[str]]:
    """The scales of quantised keys and values, and the features left; raises DeclarationError."""
    if kv_format is None:
        if kv_scales is not None:
            msg = f"kv_scales is {kv_scales!r} without kv_format: declare it, or drop kv_scales"
            raise DeclarationError(msg)
        return None, offered
    _choice("kv_format", kv_format, KV_FORMATS)
    kv_scales = KV_SCALES[0] if kv_scales is None else kv_scales
    _choice("kv_scales", kv_scales, KV_SCALES)
    heads = HEAD_LAYOUTS[layout]
    said = f"kv_format is {kv_format!r}"
    shared = next(iter(heads.inputs.values())) != ("query",)
    if kind != "core" or shared:
        other = f"layout={layout!r}, whose queries lie with its keys" if shared else f"a {kind}"
        msg = f"{said} with {other}: drop one"
        raise DeclarationError(msg)
    if kv_scales == "slot" and not heads.cache_axes:
        msg = f"kv_scales is 'slot' with layout={layout!r}, which has no caches: declare 'token'"
        raise DeclarationError(msg)
    if not alone:
        msg = f"{said} with ranks, or with mixed, which are judged without: drop one"
        raise DeclarationError(msg)
    for feature in sorted((OF_TENSORS | {"kv_cache"}) & set(named)):
        why = "codes have no gradients" if feature in OF_TENSORS else "which is judged without"
        msg = f"features has {feature!r}, and {said}: {why}; drop one"
        raise DeclarationError(msg)
    return kv_scales, offered - OF_TENSORS


def _read_inputs(kind: str, inputs: str, layout: str) -> str:
    """The inputs of a call; a core has those of its layout. Raises DeclarationError."""
    if kind != "core":
        return inputs
    of_layout = HEAD_LAYOUTS[layout].mode
    if inputs not in ("separate", of_layout):
        msg = f"inputs is {inputs!r} for a core: a core takes query, key and value; declare a layer"
        raise DeclarationError(msg)
    return of_layout


def _of_sequences(layout: object, ending: str, promise: str) -> str:
    """The layout of sequences with an ending for its offsets; raises DeclarationError."""
    if not (isinstance(layout, str) and layout.startswith("varlen")):
        msg = f"{promise} with layout={layout!r}: only layout='varlen' has offsets"
        raise DeclarationError(msg)
    return layout if ending in layout else layout + ending


def _for_structured(forms: tuple[str, ...], pins: Pins) -> Pins:
    """The pins of a candidate with structured masks: a tree has a key for each query."""
    if "tree" not in forms:
        return pins
    build = pins.build

    def with_new_keys(geometry: Geometry) -> Geometry:
        built = geometry if build is None else build(geometry)
        return built.replace(key_length=max(built.key_length, built.query_length))

    return dataclasses.replace(pins, build=with_new_keys)


def _for_grids(forms: tuple[str, ...], grid: tuple[int, int] | None, pins: Pins) -> Pins:
    """The pins of a candidate whose tokens, queries and keys alike, are the cells of a grid."""
    own = [form for form in GRID_FORMS if form in forms]
    if not own:
        return pins
    free = pins.build is None and set(LENGTHS).isdisjoint({*pins.sizes, *pins.equal_to})
    if grid is not None:
        cells = dict.fromkeys(LENGTHS, (grid[0] * grid[1],))
        if not all(set(pins.sizes.get(name, size)) >= set(size) for name, size in cells.items()):
            count = grid[0] * grid[1]
            msg = f"geometry pins lengths other than the {count} cells of grid={grid}: drop them"
            raise DeclarationError(msg)
        pins = dataclasses.replace(pins, sizes={**pins.sizes, **cells})
    elif free:
        pins = dataclasses.replace(pins, sizes={**pins.sizes, "query_length": _CELLS})
    return tied(pins, {"key_length": "query_length"}, f"masks=[{own[0]!r}]")


def _read_block_size(block_size: object, forms: tuple[str, ...]) -> tuple[int, int] | None:
    words, example = "queries and keys a block has", (16, 16)
    sizes = _read_pair("block_size", block_size, forms, ("blocks",), words, example)
    if sizes is None and "blocks" in forms:
        msg = f"block_size is None: give how many {words}, such as {example}"
        raise DeclarationError(msg)
    return sizes


def _read_pair(
    name: str,
    pair: object,
    forms: tuple[str, ...],
    wanted: tuple[str, ...],
    words: str,
    example: tuple[int, int],
) -> tuple[int, int] | None:
    """Two positive sizes that forms of masks have; raises DeclarationError."""
    if pair is None:
        return None
    if not set(wanted) & set(forms):
        msg = f"{name} is {pair!r}, but masks has no {wanted[0]!r}: drop it, or declare them"
        raise DeclarationError(msg)
    sizes = pair if isinstance(pair, (tuple, list)) else ()
    if len(sizes) != len(example) or any(type(size) is not int or size < 1 for size in sizes):
        msg = f"{name} is {pair!r}: give how many {words}, such as {example}"
        raise DeclarationError(msg)
    return sizes[0], sizes[1]


def _read_tables(form: str | None, shape: object, *, batched: bool) -> str | None:
    if form is None and shape is None:
        return None
    if form is None:
        msg = f"rotary_table_shape is {shape!r} without rotary_tables: declare them, or drop it"
        raise DeclarationError(msg)
    _choice("rotary_tables", form, TABLE_KEYWORDS)
    shape = DEFAULT_TABLE_SHAPES[form] if shape is None else shape
    known = isinstance(shape, str) and re.fullmatch(r"(1*(B1*)?L1*|L1*)R(/2)?", shape)
    if not known:
        msg = (
            f"rotary_table_shape is {shape!r}: write the axes in the order B, L, R, with B or not, "
            "1 for an axis of size 1 and R/2 for one entry a pair of channels, such as 'LR', "
            "'B1LR' or 'LR/2'"
        )
        raise DeclarationError(msg)
    text = str(shape)
    if form == "complex" and not text.endswith("/2"):
        text += "/2"  # a complex number turns a pair of channels
    if "B" in text and not batched:
        msg = f"rotary_table_shape is {text!r}, but batched=False leaves no axis B"
        raise DeclarationError(msg)
    return text


_OF_LSE: Final = {"lse_base": LSE_BASES, "lse_shape": LSE_SHAPES, "lse_empty": LSE_EMPTY}


def _read_lse(given: Mapping[str, str | None], offered: frozenset[str]) -> dict[str, str]:
    """The promises about log-sum-exps, {} without the feature; raises DeclarationError."""
    if "lse" not in offered:
        for name, value in given.items():
            if value is not None:
                msg = f"{name} is {value!r} without features=['lse']: declare it, or drop {name}"
                raise DeclarationError(msg)
        return {}
    for name, choices in _OF_LSE.items():
        if given[name] is not None:
            _choice(name, given[name], choices)
    return {name: given[name] or choices[0] for name, choices in _OF_LSE.items()}


def _check_slopes(shape: object, *, batched: bool) -> None:
    if shape is None:
        return
    _choice("alibi_slope_shape", shape, SLOPE_SHAPES)
    if shape == "BH" and not batched:
        msg = "alibi_slope_shape is 'BH', but batched=False leaves no axis B"
        raise DeclarationError(msg)


# Lengths of grids that are drawn: those with more than one row and column, and a single cell.
_CELLS: Final = (1, *(n for n in range(4, 129) if any(n % m == 0 for m in range(2, n))), 256, 1024)
_COMMON_MASKS: Final = "keep: True attends, drop: True hides, bias: added to the scores"
# The largest head size drawn for tables when no head size is pinned.
_WIDEST_HEAD: Final = 128


def _for_tables(form: str | None, kind: str, point: golden.Semantics, pins: Pins) -> Pins:
    """Pins for rotary tables: the head size must give an even number of turning channels."""
    alike = next(group for group in grouped(pins.ties) if "head_size" in group)
    decided = pins.build is not None or not set(alike).isdisjoint(pins.sizes)
    if form is None or kind not in ("core", "layer") or decided:
        return pins
    turning = {size: size * point.rotary_fraction for size in range(1, _WIDEST_HEAD + 1)}
    sizes = tuple(size for size, turned in turning.items() if turned % 2 == 0)
    return dataclasses.replace(pins, sizes={**pins.sizes, "head_size": sizes}) if sizes else pins


def _read_empty_rows(
    declared: str | Mapping[str, str],
    forms: tuple[str, ...],
    causal: str | None,
    offered: frozenset[str],
) -> tuple[str, dict[str, str]]:
    """The rule for rows without keys and {}, or "any" and the rules by way where they differ."""
    if not isinstance(declared, Mapping):
        _choice("empty_rows", declared, EMPTY_ROWS)
        return declared, {}
    ways = [*forms, *([] if causal is None else [BY_CAUSALITY])]
    accepted = [*ways, *([WITH_WEIGHTS] if "weights" in offered else [])]
    for way, rule in declared.items():
        if way not in accepted:
            msg = (
                f"empty_rows has the key {way!r}, but rows without keys can come by "
                f"{', '.join(accepted) or 'nothing'} here: give one of "
                f"these{did_you_mean(way, accepted)}"
            )
            raise DeclarationError(msg)
        _choice(f"empty_rows[{way!r}]", rule, EMPTY_ROWS)
    rules = {way: declared.get(way, "any") for way in ways}
    if WITH_WEIGHTS in declared:
        rules[WITH_WEIGHTS] = declared[WITH_WEIGHTS]
    if len(set(rules.values())) == 1:
        return next(iter(rules.values())), {}
    return "any", rules


def _read_ranks(
    ranks: object,
    kind: str,
    layout: str,
    arrays: str,
    offered: frozenset[str],
    pins: Pins,
    *,
    forms: tuple[str, ...],
    batched: bool,
) -> tuple[Ranks, Pins]:
    """The ranks with places in words, and the pins of divided sizes; raises DeclarationError."""
    if not isinstance(ranks, Ranks):
        msg = f"ranks is {ranks!r}: give a conformance.Ranks, such as Ranks(2, query='sequence')"
        raise DeclarationError(msg)
    if kind not in ("core", "layer") or layout != "BHSD" or arrays != "torch" or not batched:
        msg = (
            "ranks is given to what is no core or layer of torch's tensors with a batch, their "
            "axes in the usual order: drop ranks, or the layout"
        )
        raise DeclarationError(msg)
    impossible = sorted(offered - OF_RANKS)
    if impossible:
        msg = f"the feature {impossible[0]!r} is judged in one process: drop it, or ranks"
        raise DeclarationError(msg)
    axes = "heads" if kind == "core" else "tokens"
    for name in ("query", "key", "value", "output", "x", "context"):
        ranks.places(name, axes)
    placed = ranks.in_words(axes)
    if "lengths" in forms and placed.mask not in ("replicated", "batch"):
        msg = (
            f"mask of Ranks is {ranks.mask!r}, and masks has 'lengths', which are one number an "
            "item: place the mask by 'replicated' or 'batch', or drop 'lengths'"
        )
        raise DeclarationError(msg)
    pins = possible(dataclasses.replace(pins, sizes=_divisible(pins.sizes, placed.multiples)))
    build = pins.build

    def fitted(geometry: Geometry) -> Geometry:
        return placed.fitted(geometry if build is None else build(geometry), pins)

    tiny = Geometry(**dict.fromkeys(FIELDS, 1))
    odd = Geometry(**dict.fromkeys(FIELDS, 3))
    divided = any(placed.fitted(each) != each for each in (tiny, odd))
    return placed, dataclasses.replace(pins, build=fitted) if divided else pins


def _divisible(
    pinned: Mapping[str, tuple[int, ...]], multiples: Mapping[str, int]
) -> dict[str, tuple[int, ...]]:
    """The pinned sizes that ranks can divide; raises DeclarationError if none is left."""
    result = {}
    for name, sizes in pinned.items():
        multiple = multiples.get(name, 1)
        result[name] = tuple(size for size in sizes if size % multiple == 0)
        if not result[name]:
            msg = (
                f"geometry pins {name} to {list(sizes)}, but ranks divides it evenly: give a "
                f"multiple of {multiple}, or place what has this axis otherwise"
            )
            raise DeclarationError(msg)
    return result


def _check_longest(max_length: int | None, pins: Pins) -> None:
    if max_length is not None and (type(max_length) is not int or max_length < 1):
        msg = f"max_length is {max_length!r}: give a positive integer"
        raise DeclarationError(msg)
    for name in LENGTHS:
        shortest = min(pins.sizes.get(name, (1,)))
        if max_length is not None and shortest > max_length:
            msg = f"max_length is {max_length}, but geometry pins {name} to {shortest} or more"
            raise DeclarationError(msg)


def _flags(**flags: object) -> None:
    """Require True or False: a text such as "no" would count as True."""
    for name, value in flags.items():
        if not isinstance(value, bool):
            msg = f"{name} is {repr_of(value)}: give True or False"
            raise DeclarationError(msg)


def _choices(choices: Mapping[str, tuple[object, Iterable[str]]]) -> None:
    for name, (value, accepted) in choices.items():
        _choice(name, value, accepted)


def _read_layout(layout: str, forms: tuple[str, ...], pins: Pins) -> tuple[Pins, tuple[str, ...]]:
    known = isinstance(layout, str) and layout in HEAD_LAYOUTS
    _choice("layout", layout, HEAD_LAYOUTS if known else LISTED)
    return tied_by_layout(layout, pins), _forms_of_layout(layout, forms)


def _read_arrays(
    arrays: str,
    devices: tuple[str, ...],
    offered: frozenset[str],
    named: frozenset[str],
) -> frozenset[str]:
    own = named & OF_JAX if arrays == "jax" else frozenset()
    impossible = sorted(named & (OF_TENSORS | ({"out"} if arrays == "jax" else set())) - own)
    if impossible:
        msg = f"the feature {impossible[0]!r} needs tensors, but arrays is {arrays!r}: drop one"
        raise DeclarationError(msg)
    if devices != ("cpu",):
        msg = f"devices is {list(devices)} with arrays={arrays!r}, which are handed over on the CPU"
        raise DeclarationError(msg)
    return offered - OF_TENSORS | own


def _read_position(position: str | None, point: golden.Semantics) -> str | None:
    mixed = mixed_in(point)
    if position is not None and mixed is not None and position != mixed:
        msg = f"position is {position!r} but semantics mixes in {mixed} positions: drop one"
        raise DeclarationError(msg)
    return position or mixed


def _read_precision(precision: str | None, kind: str, dtypes: tuple[str, ...]) -> str:
    """A precision besides the dtype's own; float32 only, as DynamicQuantizeLinear requires."""
    if precision is None or (isinstance(precision, str) and not precision):
        return ""
    _choice("precision", precision, PRECISIONS)
    if kind != "layer" or set(dtypes) != {"float32"}:
        msg = (
            f"precision is {precision!r}, which speaks of the projections of a layer in float32: "
            "declare a layer with dtypes=['float32'], or drop it"
        )
        raise DeclarationError(msg)
    return precision


def _choice(name: str, value: object, accepted: Iterable[str], meanings: str = "") -> None:
    accepted = tuple(accepted)
    if not isinstance(value, str) or value not in accepted:
        hint = did_you_mean(value if isinstance(value, str) else "", accepted)
        hint += f" ({meanings})" if meanings and hint.startswith("; known") else ""
        msg = f"{name} is {repr_of(value)}, which is unknown{hint}"
        raise DeclarationError(msg)


def _texts(name: str, values: Iterable[str]) -> tuple[str, ...]:
    if isinstance(values, str):
        msg = f"{name} is the text {repr_of(values)}: give a list, such as [{repr_of(values)}]"
        raise DeclarationError(msg)
    try:
        texts = tuple(values)
    except TypeError:
        msg = f"{name} is {repr_of(values)}: give a list of texts"
        raise DeclarationError(msg) from None
    return texts


def _names(name: str, values: Iterable[str]) -> tuple[str, ...]:
    names = _texts(name, values)
    for entry in names:
        if not isinstance(entry, str) or not entry.isidentifier():
            msg = f"an entry of {name} is {repr_of(entry)}: give the name of a parameter"
            raise DeclarationError(msg)
    return names


def _words(
    name: str, values: Iterable[str], accepted: Iterable[str], meanings: str = ""
) -> tuple[str, ...]:
    words = _texts(name, values)
    for word in words:
        _choice(f"an entry of {name}", word, accepted, meanings)
    return tuple(dict.fromkeys(words))


def _devices(names: Iterable[str]) -> tuple[str, ...]:
    """Names of devices that torch knows, present on this machine or not."""
    entries = _texts("devices", names)
    for name in entries:
        try:
            torch.device(name)
        except (RuntimeError, TypeError):
            msg = (
                f"an entry of devices is {repr_of(name)}, which torch does not know: try 'cpu' or "
                "'cuda:0'"
            )
            raise DeclarationError(msg) from None
    return entries


def _some(name: str, values: tuple[str, ...], example: str) -> tuple[str, ...]:
    """Require a value: an empty list would run no clause, and nothing could fail."""
    if not values:
        msg = f"{name} is empty, so nothing would be judged: give at least one, such as {example!r}"
        raise DeclarationError(msg)
    return values


def _read_features(kind: str, named: Iterable[str], removed: Iterable[str]) -> frozenset[str]:
    fewer = _words("without", removed, FEATURES)
    return (DEFAULT_FEATURES[kind] | set(named)) - set(fewer)


def _read_pairs(
    declared: Iterable[str] | Mapping[str, Iterable[str]] | None, forms: tuple[str, ...]
) -> tuple[Iterable[str] | None, tuple[tuple[str, str], ...] | None]:
    """The shapes of all forms; and, where shapes are declared by form, each form with a shape."""
    if not isinstance(declared, Mapping):
        return declared, None
    if {*declared} != {*forms}:
        msg = (
            f"mask_shapes has {', '.join(map(repr, declared)) or 'no form'}, and masks is "
            f"{list(forms)}: give the shapes of each of these forms, or one list for all"
        )
        raise DeclarationError(msg)
    pairs = [(form, one) for form in forms for one in _texts("mask_shapes", declared[form])]
    return list(dict.fromkeys(shape for _, shape in pairs)), tuple(pairs)


def _read_shapes(
    declared: Iterable[str] | None, forms: tuple[str, ...], *, batched: bool
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Shapes with a key axis and shapes of lengths, in the letters of their axes."""
    shapes: tuple[str, ...]
    if declared is not None:
        shapes = _texts("mask_shapes", declared)
    else:
        shapes = (*DEFAULT_MASK_SHAPES, *DEFAULT_LENGTH_SHAPES)
        if not batched:
            shapes = tuple(dict.fromkeys(shape[1:] for shape in shapes))
    for shape in shapes:
        _check_shape(shape)
        if "B" in shape and not batched:
            msg = f"an entry of mask_shapes is {shape!r}, but batched=False leaves no axis B"
            raise DeclarationError(msg)
    with_keys = tuple(shape for shape in shapes if shape.endswith("K"))
    tables = [form for form in forms if form not in ("lengths", SEQUENCES, *STRUCTURED_FORMS)]
    if tables and not with_keys:
        msg = (
            f"masks has {tables[0]!r}, whose shape ends in K, but mask_shapes is {list(shapes)}: "
            "give one that does, such as 'B11K'"
        )
        raise DeclarationError(msg)
    lengths = tuple(shape for shape in shapes if not shape.endswith("K"))
    default_lengths = ("B",) if batched else ("",)
    return with_keys, lengths or default_lengths


def _check_shape(shape: object) -> None:
    if not is_mask_shape(shape):
        msg = (
            f"an entry of mask_shapes is {shape!r}: write the axes in the order B, H, Q, K, each "
            "at most once and nothing behind K, and 1 for an axis of size 1, such as 'B1QK' or 'BK'"
        )
        raise DeclarationError(msg)


def _check_score_mod(point: golden.Semantics) -> None:
    """Call score_mod once, to report a wrong function at its declaration."""
    try:
        golden.modify(torch.zeros(1, 1, 2, 3, dtype=torch.float64), point)
    except Exception as error:
        msg = (
            f"score_mod fails on scores [1, 1, 2, 3]: it {raised_text(error)}; it is given scores "
            "[B, H, Lq, Lk] and the indices of batch, head, query and key, and returns the scores"
        )
        raise DeclarationError(msg) from error


def _read_semantics(
    declared_point: golden.Semantics | None,
    causal: str | None,
    empty_rows: str | dict[str, str],
    causal_by: str | None,
) -> golden.Semantics:
    point = golden.STANDARD if declared_point is None else declared_point
    if not isinstance(point, golden.Semantics):
        msg = f"semantics is {point!r}: give a conformance.Semantics"
        raise DeclarationError(msg)
    _check_score_mod(point)
    changed = golden.STANDARD.differences(point)
    for name, declared, field in (
        ("causal", causal, "causal_alignment"),
        ("causal_by", causal_by, "causal_by"),
        ("empty_rows", None if empty_rows == "any" else empty_rows, "empty_rows"),
    ):
        if declared is None:
            continue
        if field in changed and getattr(point, field) != declared:
            other = f"{field}={getattr(point, field)!r}"
            msg = f"{name} is {declared!r} but semantics says {other}: drop one"
            raise DeclarationError(msg)
        if isinstance(declared, dict):  # each call looks up its own rule
            continue
        point = point.replace(**{field: declared})
    return point
