"""The table of promises that exclude one another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from ..errors import DeclarationError
from .declaration import (
    CACHE_WRITE,
    GIVEN_POSITIONS,
    GRID_FORMS,
    LEARNED_KEYWORDS,
    PADDED_QUERIES,
    STRUCTURED_FORMS,
    Declaration,
    mixed_in,
)


class Promise(NamedTuple):
    """What may be promised: its words, formatted with the declaration ``d``, and whether it is."""

    words: str
    made: Callable[[Declaration], bool]


class Excluding(NamedTuple):
    """A promise, others that exclude it, and how the refusal ends."""

    promise: Promise
    others: tuple[Promise, ...]
    ending: str = ", which is judged without: drop one"


def _feature(name: str) -> Promise:
    return Promise(f"features has {name!r}", lambda d: name in d.features)


def _form(name: str) -> Promise:
    return Promise(f"masks has {name!r}", lambda d: name in d.masks)


def _field(name: str, *but: object) -> Promise:
    """A field that has a value, and not one of some values."""
    words = f"{name} is {{d.{name}!r}}"
    return Promise(words, lambda d: getattr(d, name) not in (None, *but))


def _choice(name: str, *but: object) -> Promise:
    """A choice of semantics that is not one of some values."""
    words = f"{name} is {{d.semantics.{name}!r}}"
    return Promise(words, lambda d: getattr(d.semantics, name) not in but)


def _kind(*but: str) -> Promise:
    return Promise("for a {d.kind}", lambda d: d.kind not in but)


def _with(promise: Promise, words: str = "") -> Promise:
    return promise._replace(words=f"with {words or promise.words.replace(' is ', '=')}")


def _without(promise: Promise, words: str) -> Promise:
    return Promise(f"without {words}", lambda d: not promise.made(d))


def _asks_where_cached_keys_stand(d: Declaration) -> bool:
    by_place = d.semantics.alibi or d.semantics.causal_by == "positions"
    return by_place and "kv_cache" in d.features and d.inputs == "self"


_SEQUENCES: Final = Promise("with layout={d.layout!r}", lambda d: d.head_layout.has_sequences)
_OWN_ROWS: Final = Promise(
    "with layout={d.layout!r}",
    lambda d: d.head_layout.has_lengths or d.head_layout.value_in_key,
)
_CACHES: Final = Promise("with layout={d.layout!r}", lambda d: bool(d.head_layout.cache_axes))
_BY_ROWS: Final = Promise(
    "with page_index='csr'", lambda d: "kv_indptr" in d.head_layout.sequence_keywords
)
_UNBATCHED: Final = Promise("with batched=False", lambda d: not d.batched)
_NUMPY: Final = Promise("with arrays='numpy'", lambda d: d.arrays == "numpy")
_RANKS: Final = Promise("with ranks", lambda d: d.ranks is not None)
_ALWAYS_CAUSAL: Final = Promise("always_causal is True", lambda d: d.always_causal)
_LATE_NORM: Final = Promise("with norm_order='after-rotary'", lambda d: d.semantics.normalises_late)
_NORM_OVER_HEADS: Final = _choice("qk_norm_over", "head")
_NULL_KEY: Final = _choice("null_key", False)  # noqa: FBT003 (a value of the choice)
_BY_POSITIONS: Final = _choice("causal_by", "places")
_POSITIONS: Final = _feature(GIVEN_POSITIONS)
_TABLES: Final = _field("rotary_tables")
_LSE: Final = _feature("lse")
_TABLE: Final = _feature("relative_table")
_MEMORY: Final = _feature("bias_kv")
_SLOPES: Final = _feature("alibi_slopes")

# The first row with both promises made is the refusal.
EXCLUDING: Final = (
    # Kinds, layouts and arrays.
    Excluding(_field("layout", "BHSD"), (_kind("core"),), ": only a core takes heads; drop it"),
    Excluding(_field("layout", "BHSD"), (_UNBATCHED,), ": drop one"),
    Excluding(
        Promise("dtypes has 'bfloat16'", lambda d: "bfloat16" in d.dtypes),
        (_NUMPY,),
        ", which has no such numbers: drop it",
    ),
    Excluding(
        _field("kv_format", "int8"),
        (_NUMPY,),
        ", which has no such numbers: declare 'int8', or drop one",
    ),
    Excluding(
        _feature("grad_bias"),
        (_without(_form("bias"), "masks=['bias']"), _kind("core")),
        ", the gradient of a core's bias: drop one",
    ),
    Excluding(
        Promise(
            "the causal alignment is {d.semantics.causal_alignment!r}",
            lambda d: d.semantics.causal_alignment != "bottom-right",
        ),
        (_CACHES,),
        ", whose queries stand at the end of their cache: declare causal='bottom-right'",
    ),
    Excluding(
        _feature(CACHE_WRITE),
        (_BY_ROWS,),
        ", whose lengths do not say where new keys begin: drop one",
    ),
    Excluding(
        _feature(CACHE_WRITE), (_with(_field("arrays", "torch")),), ", which are copies: drop one"
    ),
    # Masks.
    Excluding(
        _form("prefix"),
        (_with(_ALWAYS_CAUSAL),),
        ": a prefix says itself which keys ahead of a query are seen; drop always_causal",
    ),
    Excluding(
        _ALWAYS_CAUSAL,
        (
            Promise(
                "with masks that semantics refuses along with causality",
                lambda d: bool(d.masks) and d.semantics.causal_combination == "refused",
            ),
        ),
        ", which leaves no call with a mask: declare no masks",
    ),
    Excluding(_form("blocks"), (_kind("core"),), ": only a core has blocks for its heads; drop it"),
    Excluding(
        _form("blocks"),
        (_with(_feature("kv_cache"), "'kv_cache'"),),
        ", whose new queries begin within a block: drop one",
    ),
    *(Excluding(_form(name), (_RANKS,)) for name in STRUCTURED_FORMS),
    *(
        Excluding(
            _form(name),
            (_with(_feature("window"), "features=['window']"),),
            ", and the window of a grid is given with it: drop the feature",
        )
        for name in GRID_FORMS
    ),
    *(
        Excluding(
            _form(name),
            (_with(_feature("kv_cache"), "'kv_cache'"),),
            ", whose queries are all cells of the grid: drop one",
        )
        for name in GRID_FORMS
    ),
    Excluding(
        _form(PADDED_QUERIES),
        (Promise("with inputs='self'", lambda d: d.inputs == "self"),),
        ", whose queries are its keys: declare 'lengths', which hide the padding among them",
    ),
    Excluding(
        _field("padded_rows", "any"),
        (_without(_form(PADDED_QUERIES), f"masks=[{PADDED_QUERIES!r}]"),),
        ": drop it, or declare them",
    ),
    # Rotary tables.
    Excluding(
        _TABLES,
        (
            Promise(
                "but semantics says not which channels turn together",
                lambda d: d.semantics.rotary == "none",
            ),
        ),
        ": give semantics=conformance.Semantics(rotary='halves') or 'interleaved'",
    ),
    Excluding(_TABLES, (_OWN_ROWS, _RANKS)),
    # Norms, null keys and learned arguments.
    Excluding(
        _NORM_OVER_HEADS,
        (_with(_choice("qk_norm", "rms", "layer")),),
        ": only 'rms' and 'layer' are judged over all heads",
    ),
    Excluding(_NORM_OVER_HEADS, (_LATE_NORM,)),
    Excluding(
        _NULL_KEY,
        (_with(_choice("softmax_axis", "key")), _with(_choice("empty_rows", "zeros"))),
        ": it is a key whose value is zero, beside the keys of a softmax; drop one",
    ),
    Excluding(_NULL_KEY, (_with(_feature("sinks"), "features=['sinks']"),)),
    *(Excluding(_feature(name), (_kind("core", "layer"),)) for name in LEARNED_KEYWORDS),
    Excluding(
        _feature("norm_weight"),
        (
            Promise(
                "but semantics says not what is normalised",
                lambda d: d.semantics.qk_norm == "none",
            ),
        ),
        ": give semantics=conformance.Semantics(qk_norm='rms') or 'layer'",
    ),
    *(Excluding(_feature(name), (_LATE_NORM,)) for name in ("norm_weight", "temperature")),
    Excluding(
        _MEMORY,
        (
            _SEQUENCES,
            _kind("core"),
            _with(Promise("positions", lambda d: d.position is not None)),
            _with(_choice("qk_norm", "none")),
            _with(_choice("score_mod", None)),
            _with(_choice("softmax_axis", "key")),
            *(_with(_feature(name), f"{name!r}") for name in ("weights", "lse")),
            *(_with(_feature(n), f"{n!r}") for n in LEARNED_KEYWORDS if n != "bias_kv"),
        ),
    ),
    Excluding(
        _MEMORY,
        (_with(_field("empty_rows", "any")),),
        ": every query has a key; drop empty_rows",
    ),
    Excluding(
        _TABLE,
        (
            Promise(
                "but semantics says no buckets of distances",
                lambda d: d.semantics.relative == "none",
            ),
        ),
        ": give semantics=conformance.Semantics(relative='t5'), 't5-causal' or 'clipped'",
    ),
    Excluding(
        _choice("relative", "none"),
        (_without(_TABLE, "features=['relative_table']"),),
        ": declare it, or drop one",
    ),
    Excluding(
        _TABLE,
        (
            _with(_choice("alibi", False)),  # noqa: FBT003 (a value of the choice)
            _with(_choice("rotary", "none")),
            _with(_choice("qk_norm", "none")),
            _with(_choice("bias_order", "after-scale")),
            _with(_choice("score_mod", None)),
        ),
    ),
    Excluding(_SLOPES, (_with(_choice("bias_order", "after-scale")),)),
    Excluding(
        _field("alibi_slope_shape"),
        (_without(_SLOPES, "features=['alibi_slopes']"),),
        ": drop it, or declare them",
    ),
    # Positions.
    Excluding(
        _BY_POSITIONS,
        (_without(_POSITIONS, f"features=[{GIVEN_POSITIONS!r}]"),),
        ", where no call gives positions: declare them, or drop causal_by",
    ),
    Excluding(
        _POSITIONS,
        (
            Promise(
                "but nothing goes by positions",
                lambda d: mixed_in(d.semantics) is None and d.semantics.causal_by == "places",
            ),
        ),
        (
            ": give semantics=conformance.Semantics(rotary='halves'), 'interleaved' or alibi=True, "
            "or causal_by='positions'"
        ),
    ),
    Excluding(_POSITIONS, (_SEQUENCES, _RANKS)),
    Excluding(
        _POSITIONS, (_with(_TABLES),), ", whose rows are those of the tokens already: drop one"
    ),
    Excluding(
        _POSITIONS,
        (
            Promise(
                "with 'kv_cache', inputs='self', and alibi or causal_by='positions'",
                _asks_where_cached_keys_stand,
            ),
        ),
        ", whose calls do not say where the cached keys stand: drop one",
    ),
    Excluding(_form("prefix"), (_with(_BY_POSITIONS),), ", and a prefix counts places: drop one"),
    # Log-sum-exps.
    Excluding(_LSE, (_kind("core"),), ": only a core returns log-sum-exps; declare a core"),
    Excluding(_LSE, (_RANKS,)),
    Excluding(
        _LSE,
        (_with(_choice("softmax_axis", "key")),),
        ": a query has a log-sum-exp only where its softmax is over the keys; drop one",
    ),
)


def check_exclusions(declaration: Declaration) -> None:
    """Raise DeclarationError for two promises that exclude each other."""
    for promise, others, ending in EXCLUDING:
        if not promise.made(declaration):
            continue
        for other in others:
            if other.made(declaration):
                words = f"{promise.words} {other.words}".format(d=declaration)
                raise DeclarationError(words + ending)
