"""A candidate's declaration as JSON, and its complete check when read.

The judge never imports a candidate's file: all its knowledge of a candidate passes through here.
Failures the candidate declares as expected are dropped: it cannot excuse itself.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from ..._golden import golden
from ...base.geometry import Geometry
from ...base.printable_text import printable
from ...declare.declaration import DEFAULT_FEATURES, KINDS, SEQUENCES, WHOLE_MODEL, Declaration
from ...declare.promises import declare
from ...errors import DeclarationError, UsageError
from ...graphs.protocol import Head, ProtocolError
from .wire import field

# Keywords of ``declare`` with the same name in a declaration.
_SAME: Final = (
    "causal always_causal inputs batched dtypes devices accumulate tf32 scores precision position "
    "max_length layout arrays operator mixed memory strides unchecked block_size grid "
    "rotary_tables rotary_table_shape alibi_slope_shape lse_base lse_shape lse_empty padded_rows "
    "page_sizes kv_format kv_scales"
).split()
Fit = Callable[[Geometry], Geometry]


def as_json(declared: Declaration) -> Head:
    """The declaration as plain data; raises UsageError for what another process cannot hold."""
    if declared.semantics.score_mod is not None:
        msg = (
            "a score_mod is a function that the golden answer runs as well, and would bring the "
            "candidate's code into the judge: check this candidate without --isolated"
        )
        raise UsageError(msg)
    if declared.ranks is not None:
        msg = "the ranks of a candidate start processes of their own: check it without --isolated"
        raise UsageError(msg)
    if declared.cache is not None:
        msg = (
            "the cache of a module is made by functions of its own, which the judge does not "
            "import: check it without --isolated"
        )
        raise UsageError(msg)
    if declared.kind == WHOLE_MODEL:
        msg = (
            "this candidate is a model, whose attentions the judge has to call alone: check it "
            "without --isolated, or declare the attention that is meant"
        )
        raise UsageError(msg)
    pins = declared.pins
    return {
        **{name: getattr(declared, name) for name in _SAME},
        "kind": declared.kind,
        "masks": declared.masks,
        "mask_shapes": (*declared.mask_shapes, *declared.length_shapes),
        "empty_rows": dict(declared.empty_rows_by) or declared.empty_rows,
        "features": sorted(declared.features),
        "declared_features": sorted(declared.declared_features),
        "assumptions": declared.assumptions,
        "mask_pairs": declared.mask_pairs,
        "semantics": dataclasses.asdict(declared.semantics),
        "geometry": None if pins.build else {**pins.equal_to, **pins.sizes},
    }


def read(data: Any, fit: Fit) -> Declaration:
    """Read a declaration written by :func:`as_json`, with the checks of a local declaration.

    ``fit`` asks the candidate's own rule of geometries. Raises ProtocolError, and DeclarationError
    (a UsageError) for promises nobody could declare.
    """
    if not isinstance(data, dict):
        msg = "no declaration"
        raise ProtocolError(msg)
    kind, features = field(data, "kind", str), texts(data, "features")
    if kind not in KINDS or kind == WHOLE_MODEL:
        msg = "a declaration of no known kind"
        raise ProtocolError(msg)
    try:
        return _declared(kind, features, data, fit)
    except (DeclarationError, ProtocolError):
        raise
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise ProtocolError(printable(f"a declaration that cannot be: {error}")) from error


def _declared(kind: str, features: list[str], data: Head, fit: Fit) -> Declaration:
    hints = get_type_hints(Declaration)
    same = {name: _check_kind(hints[name], data.get(name), name) for name in _SAME}
    points = get_type_hints(golden.Semantics)
    point = {
        name: _check_kind(points[name], value, name)
        for name, value in field(data, "semantics", dict).items()
        if name != "score_mod"
    }
    point = {name: tuple(v) if type(v) is list else v for name, v in point.items()}
    masks = texts(data, "masks")
    declared = declare(
        kind,
        **same,
        masks=[form for form in masks if form != SEQUENCES],
        mask_shapes=texts(data, "mask_shapes"),
        empty_rows=data["empty_rows"],
        features=features,
        without=sorted(DEFAULT_FEATURES[kind] - set(features)),
        geometry=_geometry(data["geometry"], fit),
        semantics=golden.Semantics(**point),
    )
    pairs = data["mask_pairs"]
    if pairs is not None and {str(form) for form, _ in pairs} != set(masks):
        msg = "forms of masks that come in no shape"
        raise ProtocolError(msg)
    return dataclasses.replace(
        declared,
        declared_features=declared.features & frozenset(texts(data, "declared_features")),
        assumptions=tuple(printable(text) for text in texts(data, "assumptions")),
        mask_pairs=None
        if pairs is None
        else tuple((str(form), str(shape)) for form, shape in pairs),
    )


def _geometry(pins: Any, fit: Fit) -> Any:
    if pins is None:
        return fit
    return {
        str(name): tuple(pin) if isinstance(pin, list) else str(pin) for name, pin in pins.items()
    }


def texts(data: Any, name: str) -> list[str]:
    """Return the texts under a name of a description; raises ProtocolError for other values."""
    values: list[str] = field(data, name, list)
    if not all(type(value) is str for value in values):
        msg = f"{name} that are no texts"
        raise ProtocolError(msg)
    return values


def _check_kind(hint: Any, value: Any, name: str) -> Any:
    """Check that a plain value matches an annotation; raises ProtocolError."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType, Literal):
        kinds = [type(word) for word in get_args(hint)] if origin is Literal else get_args(hint)
        fits = any(value is None if kind is type(None) else _is(kind, value) for kind in kinds)
    elif origin is tuple:
        kind = get_args(hint)[0]
        fits = isinstance(value, list) and all(type(entry) is kind for entry in value)
    else:
        fits = _is(hint, value)
    if not fits:
        msg = f"a declaration whose {name} is no {hint}"
        raise ProtocolError(msg)
    return value


def _is(kind: Any, value: Any) -> bool:
    if get_origin(kind) is Literal:
        return type(value) is str
    if get_origin(kind) is tuple:  # of numbers and words
        return type(value) is list and all(type(each) in (str, int, float) for each in value)
    return type(value) in ((int, float) if kind is float else (kind,))
