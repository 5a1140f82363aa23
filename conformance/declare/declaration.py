"""What a candidate promises, in the words of the public contract."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from .._golden import golden
from ..base.expected import ExpectedFailure
from ..base.geometry import Pins
from .head_layouts import HEAD_LAYOUTS, HeadLayout
from .module_caches import Cache
from .ranks import Ranks

WHOLE_MODEL: Final = "model"
KINDS: Final = ("core", "layer", "positions", WHOLE_MODEL)
MASK_FORMS: Final = ("keep", "drop", "keep_int", "bias", "lengths")
# Masks with a structure of their own: the keywords of each form.
STRUCTURED_FORMS: Final[dict[str, tuple[str, ...]]] = {
    "segments": ("query_segments", "key_segments"),
    "prefix": ("prefix_lengths",),
    "chunks": ("chunk",),
    "tree": ("parents",),
    "indices": ("key_indices",),
    "blocks": ("block_mask",),
    "query_lengths": ("query_lengths",),
    "grid": ("grid", "window"),
    "shifted_grid": ("grid", "window", "shift"),
    "neighborhood": ("grid", "window"),
}
# Those whose tokens are the cells of a grid, row after row.
GRID_FORMS: Final = ("grid", "shifted_grid", "neighborhood")
# The form that hides no key: rows behind its lengths are padding.
PADDED_QUERIES: Final = "query_lengths"
PADDED_ROWS: Final = ("any", "zeros")
# Those that items with lengths of their own may have, by their own tokens.
FORMS_OF_ITEMS: Final = ("segments", "prefix", "chunks", "tree", "indices")
# The axes of their tables; axes of other forms are declared.
STRUCTURED_SHAPES: Final = {
    **dict.fromkeys(STRUCTURED_FORMS, "B1QK"),
    **dict.fromkeys(("chunks", *GRID_FORMS), "11QK"),
    "blocks": "BHQK",
}
# Rotary tables that are arguments: the keywords of each form, and the axes of a table.
TABLE_KEYWORDS: Final[dict[str, tuple[str, ...]]] = {
    "cos-sin": ("cos", "sin"),
    "complex": ("freqs_cis",),
    "angles": ("angles",),
}
SLOPE_SHAPES: Final = ("H", "BH")
# The feature of calls that give the positions of their tokens.
GIVEN_POSITIONS: Final = "positions"
POSITION_KEYWORDS: Final = {
    "self": ("positions",),
    **dict.fromkeys(("separate", "memory"), ("query_positions", "key_positions")),
}
# The features of caches whose items have lengths, and of calls that write into caches.
CACHE_LENGTHS: Final = "cache_lengths"
CACHE_WRITE: Final = "cache_write"
NEW_KEYS: Final = ("key", "value")
DEFAULT_PAGE_SIZES: Final = (16,)
DEFAULT_TABLE_SHAPES: Final = {"cos-sin": "LR", "complex": "LR/2", "angles": "LR/2"}
# Learned arguments, which every call gives: the keywords of each feature.
LEARNED_KEYWORDS: Final[dict[str, tuple[str, ...]]] = {
    "norm_weight": ("query_norm_weight", "key_norm_weight"),
    "temperature": ("temperature",),
    "alibi_slopes": ("alibi_slopes",),
    "relative_table": ("relative_table",),
    "bias_kv": ("bias_k", "bias_v"),
}
# Formats of keys and values, with the scales of each call.
KV_FORMATS: Final = ("float8_e4m3fn", "float8_e5m2", "int8")
KV_SCALES: Final = ("tensor", "head", "token", "slot")
SCALE_KEYWORDS: Final = ("key_scale", "value_scale")
ALIGNMENTS: Final = ("bottom-right", "top-left")
EMPTY_ROWS: Final = ("zeros", "nan", "mean-of-all", "mean-of-valid", "any")
# Ways to a row without keys, besides mask forms, that may have separate rules.
BY_CAUSALITY: Final = "causal"
WITH_WEIGHTS: Final = "weights"
LSE_BASES: Final = ("e", "2")
LSE_SHAPES: Final = ("BHQ", "BQH")
LSE_EMPTY: Final = ("-inf", "inf", "any")
PRECISIONS: Final = ("int8-dynamic",)
INPUTS: Final = ("separate", "self", "memory")
POSITIONS: Final = ("sinusoidal", "learned", "rotary", "alibi", "relative")
ARRAYS: Final = ("torch", "numpy", "jax")
MIXED: Final = ("refuse", "promote", "query")
MEMORY: Final = ("linear", "quadratic")
OFFSETS: Final = ("each", "shared")
STRIDES: Final = ("any", "contiguous")
DEFAULT_FEATURES: Final[dict[str, frozenset[str]]] = {
    "core": frozenset({"gradients"}),
    "layer": frozenset({"gradients", "cross"}),
    "positions": frozenset(),
    WHOLE_MODEL: frozenset(),
}
FEATURES: Final = frozenset(
    {
        "autocast",
        "batch_invariant",
        "cross",
        CACHE_LENGTHS,
        CACHE_WRITE,
        "double_backward",
        "dropout",
        "gqa",
        "grad_bias",
        "grad_weights",
        "gradients",
        "graph_capture",
        "kv_cache",
        "lse",
        "out",
        GIVEN_POSITIONS,
        "scale",
        "sinks",
        "softcap",
        "weights",
        "window",
        *LEARNED_KEYWORDS,
    }
)
# Features that only torch's own tensors can show.
OF_TENSORS: Final = frozenset(
    {"autocast", "double_backward", "grad_bias", "grad_weights", "gradients", "graph_capture"}
)
# Those that functions of JAX's arrays may promise by name: jax.vjp pulls gradients back.
OF_JAX: Final = frozenset({"gradients", "grad_bias"})
FEATURE_KEYWORDS: Final[dict[str, tuple[str, ...]]] = {
    "scale": ("scale",),
    "softcap": ("softcap",),
    "window": ("window",),
    "weights": ("return_weights",),
    "lse": ("return_lse",),
    "dropout": ("dropout",),
    "kv_cache": ("past_key", "past_value"),
    "sinks": ("sinks",),
    "out": ("out",),
    CACHE_WRITE: NEW_KEYS,
}
# Every keyword that a function may be declared to take.
OWN_KEYWORDS: Final = frozenset(
    {
        "causal",
        *MASK_FORMS,
        *(word for words in STRUCTURED_FORMS.values() for word in words),
        *(word for words in TABLE_KEYWORDS.values() for word in words),
        *(word for words in LEARNED_KEYWORDS.values() for word in words),
        *SCALE_KEYWORDS,
        *(word for words in POSITION_KEYWORDS.values() for word in words),
        *(word for words in FEATURE_KEYWORDS.values() for word in words),
        *(word for layout in HEAD_LAYOUTS.values() for word in layout.sequence_keywords),
    }
)
# The mask form of layout="varlen": lengths that arrive as these keywords, in every call.
SEQUENCES: Final = "sequences"
# The memory address in the text of a function or an object.
_ADDRESS: Final = re.compile(r" at 0x[0-9a-fA-F]+")
# The fields of a declaration in a record, in order.
_IN_JSON: Final = (
    "kind masks mask_shapes causal always_causal empty_rows features inputs batched dtypes devices "
    "accumulate tf32 scores precision position layout arrays operator mixed memory strides "
    "unchecked semantics assumptions"
).split()


def is_mask_shape(shape: object) -> bool:
    """Whether a text names axes in the order B, H, Q, K, with 1 for some, and K last if present."""
    if not isinstance(shape, str) or len(shape) > len("BHQK"):
        return False
    letters = [sign for sign in shape if sign != "1"]
    in_order = [sign for sign in "BHQK" if sign in letters]
    return letters == in_order and ("K" not in letters or shape.endswith("K"))


DEFAULT_MASK_SHAPES: Final = ("BHQK", "B1QK", "B11K", "11QK")
DEFAULT_LENGTH_SHAPES: Final = ("B",)


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """A candidate's promises.

    ``empty_rows`` is the rule for rows without keys, "any" without a promise; if the rule depends
    on how a row loses its keys, ``empty_rows_by`` holds pairs of a way and its rule.
    ``mask_shapes`` are the accepted shapes of masks with a key axis, ``length_shapes`` the shapes
    of ``lengths``. ``semantics`` is the point to judge by, with ``causal`` and ``empty_rows``
    filled in; hidden keys must have no influence at any point, except under a softcap declared to
    come after the mask. ``always_causal`` means that every call is causal without a keyword;
    ``precision`` is "int8-dynamic" for a layer with projections in 8-bit integers, else "".
    ``layout`` is a core's layout of heads, ``arrays`` its array library, ``operator`` the
    registered torch operator behind it, ``mixed`` its behaviour with inputs of several dtypes,
    ``memory`` the growth of its peak memory with the length (None: no promise), ``strides`` whether
    it may refuse tensors that are not contiguous. ``assumptions`` are an adapter's assumptions;
    ``mask_pairs`` the pairs of mask form and shape that an adapter takes, None for all pairs.
    ``declared_features`` are the named ``features``, without defaults. ``unchecked`` names
    parameters left unchecked on purpose. ``ranks`` describes ranks that compute an answer together,
    None for a candidate of one process. ``block_size`` is the number of queries and keys in a block
    of the mask form "blocks"; ``grid`` the rows and columns of cells that all calls of a grid's
    forms have, None where each call says them. ``rotary_tables`` is the form in which every call
    gives the cosines and sines of its tokens, or their angles, ``rotary_table_shape`` their axes,
    such as "LR", or "LR/2" with one entry a pair of channels. ``alibi_slope_shape`` is that of
    given slopes, "H" or "BH", None for either. ``lse_base``, ``lse_shape`` and ``lse_empty`` are
    base and axes of returned log-sum-exps, and their value in rows without keys; None without the
    feature "lse".
    ``cache`` is a module's own cache, ``padded_rows`` the promised answer of queries behind their
    ``query_lengths``. ``page_sizes`` are the slots of a page that a core with paged caches takes.
    ``kv_format`` is the format of keys and values in every call, with scales for the whole tensor,
    for a head or for a token: ``kv_scales``.
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
    layout: str = "BHSD"
    arrays: str = "torch"
    operator: str = ""
    mixed: str | None = None
    memory: str | None = None
    strides: str = "any"
    declared_features: frozenset[str] = frozenset()
    unchecked: tuple[str, ...] = ()
    empty_rows_by: tuple[tuple[str, str], ...] = ()
    ranks: Ranks | None = None
    block_size: tuple[int, int] | None = None
    grid: tuple[int, int] | None = None
    rotary_tables: str | None = None
    rotary_table_shape: str | None = None
    lse_base: str | None = None
    lse_shape: str | None = None
    lse_empty: str | None = None
    alibi_slope_shape: str | None = None
    cache: Cache | None = None
    padded_rows: str = "any"
    page_sizes: tuple[int, ...] = ()
    kv_format: str | None = None
    kv_scales: str | None = None

    def empty_rule(self, *, form: str | None, causal: bool, weights: bool) -> str:
        """The promised rule for rows without keys, by a call's mask form, causality and weights.

        Calls that return weights follow the rule for weights, if declared. A call with mask and
        flag under different rules has no promise: "any".
        """
        if not self.empty_rows_by:
            return self.empty_rows
        rules = dict(self.empty_rows_by)
        if weights and WITH_WEIGHTS in rules:
            return rules[WITH_WEIGHTS]
        ways = [*([] if form is None else [form]), *([BY_CAUSALITY] if causal else [])]
        result = {rules.get(way, "any") for way in ways}
        return result.pop() if len(result) == 1 else "any"

    @property
    def empty_rules(self) -> frozenset[str]:
        """Every rule that a call may follow; "any" only without any promise."""
        named = {rule for _, rule in self.empty_rows_by if rule != "any"}
        return frozenset(named or {self.empty_rows})

    @property
    def compiles_sizes(self) -> bool:
        """Whether the candidate compiles each new size: problems then have few different sizes."""
        return self.arrays == "jax"

    @property
    def positions_known(self) -> bool:
        """Whether the declared point covers the mixed-in positions, if any."""
        return self.position is None or self.position == mixed_in(self.semantics)

    def shapes_of(self, form: str) -> tuple[str, ...]:
        """The accepted shapes of masks of a form."""
        if form in STRUCTURED_SHAPES:
            shape = STRUCTURED_SHAPES[form]
            return (shape if self.batched else shape[1:],)
        shapes = self.length_shapes if form in ("lengths", SEQUENCES) else self.mask_shapes
        if self.mask_pairs is None:
            return shapes
        return tuple(shape for shape in shapes if (form, shape) in self.mask_pairs)

    @property
    def keywords(self) -> tuple[str, ...]:
        """Every keyword that a call may pass."""
        flagged = self.causal is not None and not self.always_causal
        offered = [
            word
            for form in self.masks
            if form != SEQUENCES
            for word in STRUCTURED_FORMS.get(form, (form,))
            if word != "grid" or self.grid is None
        ]
        offered += [*self.required, *(["causal"] if flagged else [])]
        for feature in sorted(self.features):
            offered.extend(FEATURE_KEYWORDS.get(feature, ()))
        return tuple(dict.fromkeys(offered))

    @property
    def required(self) -> tuple[str, ...]:
        """Every keyword that all calls pass."""
        return (
            *self.head_layout.sequence_keywords,
            *TABLE_KEYWORDS.get(self.rotary_tables or "", ()),
            *self.learned,
            *(SCALE_KEYWORDS if self.kv_format is not None else ()),
            *(POSITION_KEYWORDS[self.inputs] if GIVEN_POSITIONS in self.features else ()),
            *(NEW_KEYS if CACHE_WRITE in self.features else ()),
        )

    @property
    def learned(self) -> tuple[str, ...]:
        """The keywords of learned arguments."""
        every = LEARNED_KEYWORDS.items()
        return tuple(word for name, words in every if name in self.features for word in words)

    @property
    def positional(self) -> tuple[str, ...]:
        """The names of the positional inputs."""
        if self.kind == "positions" or self.inputs == "self":
            return ("x",)
        if self.inputs == "memory" and self.kind != "core":
            return ("query", "context")
        return tuple(self.head_layout.inputs)

    @property
    def head_layout(self) -> HeadLayout:
        """The HeadLayout that ``layout`` names."""
        return HEAD_LAYOUTS[self.layout]

    def as_json(self) -> dict[str, Any]:
        """The declaration as plain data, for the report."""
        changed = golden.STANDARD.differences(self.semantics)
        special: dict[str, Any] = {
            "mask_shapes": [*self.mask_shapes, *self.length_shapes],
            "empty_rows": dict(self.empty_rows_by) or self.empty_rows,
            "features": sorted(self.features),
            # Without addresses, so that records of two runs are equal.
            "semantics": {name: _ADDRESS.sub("", str(pair[1])) for name, pair in changed.items()},
            **({} if self.ranks is None else {"ranks": self.ranks.as_json()}),
            **({} if self.cache is None else {"cache": self.cache.as_json()}),
        }
        seldom = (
            *("ranks", "block_size", "grid", "rotary_tables", "rotary_table_shape", "cache"),
            *("alibi_slope_shape", "lse_base", "lse_shape", "lse_empty"),
            *("kv_format", "kv_scales"),
        )
        rare = [name for name in seldom if getattr(self, name) is not None]
        rare += ["padded_rows"] if PADDED_QUERIES in self.masks else []
        rare += ["page_sizes"] if self.page_sizes else []
        names = [*_IN_JSON, *rare]
        values = {name: special.get(name, getattr(self, name)) for name in names}
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in values.items()
        }


def mixed_in(point: golden.Semantics) -> str | None:
    """The kind of positions (of ``POSITIONS``) that a point mixes in, else None."""
    if point.rotary != "none":
        return "rotary"
    if point.relative != "none":
        return "relative"
    return "alibi" if point.alibi else None
