"""``MultiHeadAttention`` and ``GroupQueryAttention`` on onnxruntime's CPU kernels."""

from __future__ import annotations

from typing import Any, Final

import conformance
from conformance import Candidate, Geometry

from .contrib import LOWEST, GroupQueryAttention, MultiHeadAttention
from .declaring import no_fewer_keys
from .defects import (
    FILL_OF_TEN_THOUSAND,
    LAST_QUERY_SEES_ALL,
    NO_BATCH,
    NO_QUERY,
    SCALE_OF_ZERO,
)

PADDING_SHAPES: Final = ("BK", "BQK", "B")
BIAS_SHAPES: Final = ("BHQK", "1HQK", "B1QK", "11QK")
GROUPED_SIZES: Final[dict[str, Any]] = {
    "head_size": (8, 16, 24, 40, 64, 72, 96, 128),
    "value_head_size": "head_size",
}


def _declare(name: str, function: Any, **promises: Any) -> Candidate:
    common: dict[str, Any] = {
        "name": name,
        "features": ["scale"],
        "without": ["gradients"],
        "expected_failures": [SCALE_OF_ZERO],
    }
    return conformance.core(**(common | promises))(function)


multi_head_attention_padding = _declare(
    "multi_head_attention_padding",
    MultiHeadAttention(),
    masks=["keep", "lengths"],
    mask_shapes=PADDING_SHAPES,
    expected_failures=[SCALE_OF_ZERO, *FILL_OF_TEN_THOUSAND],
)
multi_head_attention_lowest_fill = _declare(
    "multi_head_attention_lowest_fill",
    MultiHeadAttention(padding="cumulated", fill=LOWEST),
    masks=["keep", "lengths"],
    mask_shapes=PADDING_SHAPES,
)
multi_head_attention_bias = _declare(
    "multi_head_attention_bias",
    MultiHeadAttention(),
    masks=["bias"],
    mask_shapes=BIAS_SHAPES,
    empty_rows="nan",
    dtypes=["float32", "float16"],
)
multi_head_attention_causal = _declare(
    "multi_head_attention_causal",
    MultiHeadAttention(),
    masks=["bias"],
    mask_shapes=BIAS_SHAPES,
    causal="top-left",
    features=[],
    expected_failures=LAST_QUERY_SEES_ALL,
)


def _one_cache(geometry: Geometry) -> Geometry:
    """No fewer keys than queries, and values of the keys' head size: the past must have it."""
    return no_fewer_keys(geometry.replace(value_head_size=geometry.head_size))


multi_head_attention_past = _declare(
    "multi_head_attention_past",
    MultiHeadAttention(cached=True),
    masks=["bias"],
    mask_shapes=BIAS_SHAPES,
    causal="bottom-right",
    geometry=_one_cache,
)
group_query_attention = _declare(
    "group_query_attention",
    GroupQueryAttention(),
    masks=["bias"],
    mask_shapes=BIAS_SHAPES,
    causal="bottom-right",
    features=["gqa", "scale", "softcap", "weights"],
    geometry={**GROUPED_SIZES, "key_length": "query_length"},
    dtypes=["float32", "float16"],
    expected_failures=[NO_BATCH, NO_QUERY, SCALE_OF_ZERO],
)
group_query_attention_lengths = _declare(
    "group_query_attention_lengths",
    GroupQueryAttention(),
    masks=["lengths"],
    mask_shapes=["B"],
    causal="bottom-right",
    features=["gqa", "scale", "softcap"],
    geometry={**GROUPED_SIZES, "key_length": "query_length"},
    expected_failures=[NO_BATCH, NO_QUERY, SCALE_OF_ZERO],
)
group_query_attention_decoding = _declare(
    "group_query_attention_decoding",
    GroupQueryAttention(cached=True),
    masks=["bias"],
    mask_shapes=BIAS_SHAPES,
    causal="bottom-right",
    features=["gqa", "scale", "softcap"],
    geometry={**GROUPED_SIZES, "query_length": 1},
    expected_failures=[NO_BATCH, SCALE_OF_ZERO],
)
