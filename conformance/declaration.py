"""What a candidate promises, in the words of the public contract, checked as far as they go."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from ._golden import golden
from .dtypes import DTYPES
from .errors import DeclarationError, did_you_mean
from .expected import ExpectedFailure, GivenExpectations, read_expected
from .geometry import GeometryRule, Pins, read_pins

KINDS: Final = ("core", "layer", "positions")
MASK_FORMS: Final = ("keep", "drop", "keep_int", "bias", "lengths")
ALIGNMENTS: Final = ("bottom-right", "top-left")
EMPTY_ROWS: Final = ("zeros", "nan", "mean-of-all", "mean-of-valid", "any")
PRECISIONS: Final = ("int8-dynamic",)
INPUTS: Final = ("separate", "self", "memory")
POSITIONS: Final = ("sinusoidal", "learned", "rotary", "alibi", "relative")
DEFAULT_FEATURES: Final[dict[str, frozenset[str]]] = {
    "core": frozenset({"gradients"}),
    "layer": frozenset({"gradients", "cross"}),
    "positions": frozenset(),
}
FEATURES: Final = frozenset(
    {
        "cross",
        "dropout",
        "gqa",
        "grad_weights",
        "gradients",
        "kv_cache",
        "scale",
        "softcap",
        "weights",
        "window",
    }
)
FEATURE_KEYWORDS: Final[dict[str, tuple[str, ...]]] = {
    "scale": ("scale",),
    "softcap": ("softcap",),
    "window": ("window",),
    "weights": ("return_weights",),
    "dropout": ("dropout",),
    "kv_cache": ("past_key", "past_value"),
}
DEFAULT_MASK_SHAPES: Final = ("BHQK", "B1QK", "B11K", "11QK")
DEFAULT_LENGTH_SHAPES: Final = ("B",)


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """A candidate's promises.

    ``mask_shapes`` are the accepted shapes of masks that have a key axis, ``length_shapes`` those
    of ``lengths``. ``semantics`` is the point the candidate is judged by, with ``causal`` and
    ``empty_rows`` already in it. ``always_causal`` says that every call is causal unasked, so that
    no keyword is passed; ``precision`` is "int8-dynamic" for a layer whose projections are made of
    8-bit integers, "" for others. ``assumptions`` says what an adapter took for granted;
    ``mask_pairs`` which form an adapter takes in which shape, None for any in any.
    """

    kind: str
    masks: tuple[str, ...]
    mask_shapes: tuple[str, ...]
    length_shapes: tuple[str, ...]
    causal: str | None
    empty_rows: str
    features: frozenset[str]
    inputs: str
    batched: bool
    dtypes: tuple[str, ...]
    devices: tuple[str, ...]
    accumulate: str | None
    tf32: bool
    scores: str
    pins: Pins
    semantics: golden.Semantics
    position: str | None
    max_length: int | None
    expected_failures: tuple[ExpectedFailure, ...]
    assumptions: tuple[str, ...] = ()
    mask_pairs: tuple[tuple[str, str], ...] | None = None
    always_causal: bool = False
    precision: str = ""

    def shapes_of(self, form: str) -> tuple[str, ...]:
        """The shapes in which masks of a form are accepted."""
        shapes = self.length_shapes if form == "lengths" else self.mask_shapes
        if self.mask_pairs is None:
            return shapes
        return tuple(shape for shape in shapes if (form, shape) in self.mask_pairs)

    @property
    def keywords(self) -> tuple[str, ...]:
        """Every keyword that a call may use."""
        flagged = self.causal is not None and not self.always_causal
        offered = [*self.masks, *(["causal"] if flagged else [])]
        for feature in sorted(self.features):
            offered.extend(FEATURE_KEYWORDS.get(feature, ()))
        return tuple(offered)

    @property
    def positional(self) -> tuple[str, ...]:
        """The names of the inputs that are passed by position."""
        if self.kind == "positions" or self.inputs == "self":
            return ("x",)
        return ("query", "context") if self.inputs == "memory" else ("query", "key", "value")

    def as_json(self) -> dict[str, Any]:
        """The declaration as plain data, for the report."""
        changed = golden.STANDARD.differences(self.semantics)
        return {
            "kind": self.kind,
            "masks": list(self.masks),
            "mask_shapes": list(self.mask_shapes + self.length_shapes),
            "causal": self.causal,
            "always_causal": self.always_causal,
            "empty_rows": self.empty_rows,
            "features": sorted(self.features),
            "inputs": self.inputs,
            "batched": self.batched,
            "dtypes": list(self.dtypes),
            "devices": list(self.devices),
            "accumulate": self.accumulate,
            "tf32": self.tf32,
            "scores": self.scores,
            "precision": self.precision,
            "position": self.position,
            "semantics": {name: str(pair[1]) for name, pair in changed.items()},
            "assumptions": list(self.assumptions),
        }


def declare(
    kind: str,
    *,
    masks: Iterable[str] = (),
    mask_shapes: Iterable[str] | None = None,
    causal: str | None = None,
    always_causal: bool = False,
    empty_rows: str = "any",
    features: Iterable[str] = (),
    without: Iterable[str] = (),
    inputs: str = "separate",
    batched: bool = True,
    dtypes: Iterable[str] = ("float32",),
    devices: Iterable[str] = ("cpu",),
    accumulate: str | None = None,
    tf32: bool = False,
    scores: str = "eager",
    precision: str = "",
    geometry: GeometryRule | None = None,
    semantics: golden.Semantics | None = None,
    position: str | None = None,
    max_length: int | None = None,
    expected_failures: GivenExpectations = None,
) -> Declaration:
    """Check every promise and put them together; raises DeclarationError with one sentence."""
    forms = _words("masks", masks, MASK_FORMS)
    key_shapes, length_shapes = _read_shapes(mask_shapes, batched=batched)
    _choice("inputs", inputs, INPUTS)
    _choice("empty_rows", empty_rows, EMPTY_ROWS)
    _choice("scores", scores, ("eager", "fused"))
    if causal is not None:
        _choice("causal", causal, ALIGNMENTS)
    if always_causal and causal is None:
        msg = (
            "always_causal is True but causal is not declared: give its alignment, causal="
            f"{' or '.join(repr(word) for word in ALIGNMENTS)}"
        )
        raise DeclarationError(msg)
    if accumulate is not None:
        _choice("accumulate", accumulate, (*DTYPES, "native"))
    if position is not None:
        _choice("position", position, POSITIONS)
    if kind == "core" and inputs != "separate":
        msg = f"inputs is {inputs!r} for a core: a core takes query, key and value; declare a layer"
        raise DeclarationError(msg)
    if max_length is not None and (type(max_length) is not int or max_length < 1):
        msg = f"max_length is {max_length!r}: give a positive integer"
        raise DeclarationError(msg)
    return Declaration(
        kind=kind,
        masks=forms,
        mask_shapes=key_shapes,
        length_shapes=length_shapes,
        causal=causal,
        empty_rows=empty_rows,
        features=_read_features(kind, features, without),
        inputs=inputs,
        batched=batched,
        dtypes=_some("dtypes", _words("dtypes", dtypes, DTYPES), "float32"),
        devices=_some("devices", _texts("devices", devices), "cpu"),
        accumulate=accumulate,
        tf32=bool(tf32),
        scores=scores,
        pins=read_pins(geometry),
        semantics=_read_semantics(semantics, causal, empty_rows),
        position=position,
        max_length=max_length,
        expected_failures=read_expected(expected_failures),
        always_causal=bool(always_causal),
        precision=_read_precision(precision, kind, dtypes),
    )


def _read_precision(precision: str, kind: str, dtypes: Iterable[str]) -> str:
    """A declared precision beyond that of the dtype: DynamicQuantizeLinear knows float32 alone."""
    if not precision:
        return ""
    _choice("precision", precision, PRECISIONS)
    if kind != "layer" or set(dtypes) != {"float32"}:
        msg = (
            f"precision is {precision!r}, which speaks of the projections of a layer in float32: "
            "declare a layer with dtypes=['float32'], or drop it"
        )
        raise DeclarationError(msg)
    return precision


def _choice(name: str, value: object, known: Iterable[str]) -> None:
    known = tuple(known)
    if value not in known:
        msg = f"{name} is {value!r}, which is unknown{did_you_mean(str(value), known)}"
        raise DeclarationError(msg)


def _texts(name: str, values: Iterable[str]) -> tuple[str, ...]:
    if isinstance(values, str):
        msg = f"{name} is the text {values!r}: give a list, such as [{values!r}]"
        raise DeclarationError(msg)
    try:
        texts = tuple(values)
    except TypeError:
        msg = f"{name} is {values!r}: give a list of texts"
        raise DeclarationError(msg) from None
    return texts


def _words(name: str, values: Iterable[str], known: Iterable[str]) -> tuple[str, ...]:
    words = _texts(name, values)
    for word in words:
        _choice(f"an entry of {name}", word, known)
    return tuple(dict.fromkeys(words))


def _some(name: str, values: tuple[str, ...], example: str) -> tuple[str, ...]:
    """Require at least one value: without any, no clause would be run, and none would fail."""
    if not values:
        msg = f"{name} is empty, so nothing would be judged: give at least one, such as {example!r}"
        raise DeclarationError(msg)
    return values


def _read_features(kind: str, added: Iterable[str], removed: Iterable[str]) -> frozenset[str]:
    more = _words("features", added, FEATURES)
    fewer = _words("without", removed, FEATURES)
    return (DEFAULT_FEATURES[kind] | set(more)) - set(fewer)


def _read_shapes(
    given: Iterable[str] | None, *, batched: bool
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Shapes with a key axis and shapes of lengths, each in the letters of the axes, in order."""
    shapes: tuple[str, ...]
    if given is not None:
        shapes = _texts("mask_shapes", given)
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
    lengths = tuple(shape for shape in shapes if not shape.endswith("K"))
    default_lengths = ("B",) if batched else ("",)
    return with_keys, lengths or default_lengths


def _check_shape(shape: object) -> None:
    letters = [sign for sign in str(shape) if sign != "1"]
    in_order = [sign for sign in "BHQK" if sign in letters]
    if not isinstance(shape, str) or letters != in_order or len(shape) > len("BHQK"):
        msg = (
            f"an entry of mask_shapes is {shape!r}: write the axes in the order B, H, Q, K, each "
            "at most once, and 1 for an axis of size 1, such as 'B1QK' or 'BK'"
        )
        raise DeclarationError(msg)


def _read_semantics(
    given: golden.Semantics | None, causal: str | None, empty_rows: str
) -> golden.Semantics:
    point = golden.STANDARD if given is None else given
    if not isinstance(point, golden.Semantics):
        msg = f"semantics is {point!r}: give a conformance.Semantics"
        raise DeclarationError(msg)
    changed = golden.STANDARD.differences(point)
    for name, declared, field in (
        ("causal", causal, "causal_alignment"),
        ("empty_rows", None if empty_rows == "any" else empty_rows, "empty_rows"),
    ):
        if declared is None:
            continue
        if field in changed and getattr(point, field) != declared:
            other = f"{field}={getattr(point, field)!r}"
            msg = f"{name} is {declared!r} but semantics says {other}: drop one"
            raise DeclarationError(msg)
        point = point.replace(**{field: declared})
    return point
