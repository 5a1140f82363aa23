"""Signatures of public attention functions, with the promises of their documentation.

A new signature is a row of :data:`SIGNATURES`. A row promises nothing about a parameter that a
function lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor

from ..errors import DeclarationError, did_you_mean
from .declaration import FEATURE_KEYWORDS, MASK_FORMS
from .head_layouts import SEQUENCE_KEYWORDS
from .keywords import OwnKeywords, Prepare, parameters_of

_EVERY_SHAPE: Final = ("BHQK", "B1QK", "B11K", "11QK", "QK")


@dataclass(frozen=True, kw_only=True)
class PublicSignature:
    """A public function's parameter names and documented promises.

    inputs
        The names of its positional inputs.
    keywords
        From the harness' keyword to the parameter.
    others
        Further parameters, which no call passes.
    marks
        The parameters present in every version: an undeclared function is recognised if it has all
        of them, and no parameter beyond the row's.
    prepare
        Converts values: see :class:`OwnKeywords`.
    grouped
        A flag for calls in which key and value have fewer heads, "" without a flag.
    made
        Further parameters, made of a call's keywords: see :class:`OwnKeywords`.
    without
        Other promises of a function that lacks a keyword.
    source
        The address of the documentation.
    """

    inputs: tuple[str, ...]
    keywords: Mapping[str, str]
    marks: frozenset[str]
    source: str
    others: frozenset[str] = frozenset()
    promises: Mapping[str, Any] = field(default_factory=dict)
    prepare: Prepare | None = None
    grouped: str = ""
    made: Mapping[str, Callable[[Mapping[str, Any]], Any]] = field(default_factory=dict)
    without: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def parameters(self) -> frozenset[str]:
        """Every parameter of the public function."""
        return frozenset((*self.inputs, *self.keywords.values(), *self.others, *self.made))

    def keywords_of(self, function: Callable[..., Any]) -> OwnKeywords:
        """The keywords whose parameters a function has."""
        has = self._of(function)
        return OwnKeywords(
            names={word: (theirs,) for word, theirs in self.keywords.items() if theirs in has},
            prepare=self.prepare,
            grouped=self.grouped if self.grouped in has else "",
            made={name: make for name, make in self.made.items() if name in has},
        )

    def promised(
        self, function: Callable[..., Any], words: Collection[str], given: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The promises of a function that takes the keywords ``words``.

        The declaration's promises ``given`` override the signature's, except features, which are
        joined.
        """
        has, words = self._of(function), frozenset(words)
        promises = dict(self.promises)
        for word, others in self.without.items():
            promises |= {} if word in words else others
        features = [
            feature
            for feature in promises.get("features", ())
            if words.issuperset(FEATURE_KEYWORDS.get(feature, ()))
            if feature != "gqa" or self.grouped in ("", *has)
        ]
        own = {
            **promises,
            "masks": [form for form in MASK_FORMS if form in words],
            "unchecked": sorted(self.others & has - {self.grouped}),
        }
        if "causal" not in words:
            own.pop("causal", None)
        added = given.get("features", ())
        if isinstance(added, (list, tuple, set, frozenset)):
            added = [*features, *added]
        return {**own, **given, "features": added}

    def _of(self, function: Callable[..., Any]) -> frozenset[str]:
        """The row's parameters that a function has; all if it takes any keyword."""
        signature = parameters_of(function)
        if signature is None:
            return self.parameters
        own = signature.parameters
        takes_any = any(entry.kind is entry.VAR_KEYWORD for entry in own.values())
        return self.parameters if takes_any else self.parameters & own.keys()


def _with_mask_functions(keywords: dict[str, Any], query: Tensor, _key: Tensor) -> dict[str, Any]:
    """Convert ``keep`` to a block mask, and ``bias`` to a function of a score."""
    keep, bias = keywords.pop("keep", None), keywords.pop("bias", None)
    if keep is not None:
        from torch.nn.attention.flex_attention import (  # noqa: PLC0415 (slow to import)
            create_block_mask,
        )

        def admits(batch: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Any:
            return keep[batch, head, row, column]

        items, heads, rows, columns = keep.shape
        device = str(query.device)
        keywords["keep"] = create_block_mask(admits, items, heads, rows, columns, device=device)
    if bias is not None:

        def add(score: Tensor, batch: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Any:
            return score + bias[batch, head, row, column]

        keywords["bias"] = add
    return keywords


def _with_causal_mask(keywords: dict[str, Any], query: Tensor, key: Tensor) -> dict[str, Any]:
    """Merge a mask and the causal flag into one mask, as callers of torch's function do."""
    form = next((form for form in ("keep", "bias") if form in keywords), None)
    if form is None or not keywords.pop("causal", False):
        return keywords
    triangle = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device)
    mask, hidden = keywords[form], triangle.triu(1)
    filled = mask & ~hidden if form == "keep" else mask.masked_fill(hidden, float("-inf"))
    return {**keywords, form: filled}


def _with_limited_window(keywords: dict[str, Any], query: Tensor, key: Tensor) -> dict[str, Any]:
    """Replace an unlimited side of the window by the longest length of ``[B, L, H, D]``."""
    if "window" in keywords:
        every = max(query.shape[1], key.shape[1])
        keywords["window"] = tuple(every if side < 0 else side for side in keywords["window"])
    return keywords


_FLASH_KEYWORDS: Final = {
    "scale": "softmax_scale",
    "causal": "causal",
    "window": "window_size",
    "softcap": "softcap",
}
_FLASH_OTHERS: Final = frozenset(
    {"dropout_p", "alibi_slopes", "deterministic", "return_attn_probs"}
)
_FLASH_PROMISES: Final = {
    "causal": "bottom-right",
    "empty_rows": "zeros",
    "features": ("scale", "softcap", "window", "gqa"),
}
_FLASH_SOURCE: Final = "https://github.com/Dao-AILab/flash-attention#how-to-use-flashattention"


def _longest_query(keywords: Mapping[str, Any]) -> int:
    """The most queries of a sequence."""
    return int(keywords["cu_seqlens_q"].diff().max())


def _longest_key(keywords: Mapping[str, Any]) -> int:
    """The most keys of a cache."""
    return int(keywords["cache_lengths"].max())


_OF_CACHES: Final = ("scale", "softcap", "window", "gqa", "cache_write")
SIGNATURES: Final[Mapping[str, PublicSignature]] = {
    "flash_attn": PublicSignature(
        inputs=("q", "k", "v"),
        keywords=_FLASH_KEYWORDS,
        marks=frozenset({"dropout_p", "softmax_scale", "causal"}),
        others=_FLASH_OTHERS,
        promises={**_FLASH_PROMISES, "layout": "BSHD"},
        source=_FLASH_SOURCE,
    ),
    "flash_attn_varlen": PublicSignature(
        inputs=("q", "k", "v"),
        keywords={**{word: word for word in SEQUENCE_KEYWORDS}, **_FLASH_KEYWORDS},
        marks=frozenset(SEQUENCE_KEYWORDS),
        others=_FLASH_OTHERS | {"block_table"},
        promises={**_FLASH_PROMISES, "layout": "varlen"},
        source=_FLASH_SOURCE,
    ),
    # Its pages have 256 slots; calls write new keys wherever it takes them.
    "flash_attn_kvcache": PublicSignature(
        inputs=("q", "k_cache", "v_cache"),
        keywords={
            "key": "k",
            "value": "v",
            "cache_lengths": "cache_seqlens",
            "block_table": "block_table",
            **_FLASH_KEYWORDS,
        },
        marks=frozenset({"k_cache", "v_cache", "cache_seqlens"}),
        others=frozenset(
            "rotary_cos rotary_sin rotary_interleaved cache_batch_idx cache_leftpad alibi_slopes "
            "num_splits return_softmax_lse".split()
        ),
        promises={
            **_FLASH_PROMISES,
            "layout": "paged",
            "page_sizes": (256,),
            "features": _OF_CACHES,
        },
        without={
            "block_table": {
                "layout": "BSHD",
                "page_sizes": (),
                "features": (*_OF_CACHES, "cache_lengths"),
            }
        },
        source="https://github.com/Dao-AILab/flash-attention#22-inference",
    ),
    # The names of its wrappers' plans; without offsets of queries each item has one.
    "flashinfer": PublicSignature(
        inputs=("q", "k_cache", "v_cache"),
        keywords={
            "cu_seqlens_q": "qo_indptr",
            "kv_indptr": "paged_kv_indptr",
            "kv_indices": "paged_kv_indices",
            "last_page_lengths": "paged_kv_last_page_len",
            "scale": "sm_scale",
            "causal": "causal",
            "softcap": "logits_soft_cap",
        },
        marks=frozenset({"paged_kv_indptr", "paged_kv_indices", "paged_kv_last_page_len"}),
        others=frozenset("window_left kv_layout pos_encoding_mode return_lse".split()),
        promises={
            "layout": "paged",
            "page_index": "csr",
            "queries": "varlen",
            "page_sizes": (1, 16),
            "causal": "bottom-right",
            "features": ("scale", "softcap", "gqa"),
        },
        without={"cu_seqlens_q": {"queries": "single"}},
        source="https://docs.flashinfer.ai/api/attention.html",
    ),
    # FlashAttention's function as vLLM has it: k and v are the caches.
    "vllm_paged": PublicSignature(
        inputs=("q", "k", "v"),
        keywords={
            "cu_seqlens_q": "cu_seqlens_q",
            "cache_lengths": "seqused_k",
            "block_table": "block_table",
            **_FLASH_KEYWORDS,
        },
        marks=frozenset({"cu_seqlens_q", "seqused_k", "block_table"}),
        others=_FLASH_OTHERS
        | frozenset(
            "cu_seqlens_k q_v return_softmax_lse out scheduler_metadata q_descale k_descale "
            "v_descale num_splits fa_version s_aux".split()
        ),
        promises={
            **_FLASH_PROMISES,
            "layout": "paged",
            "queries": "varlen",
            "page_sizes": (16,),
        },
        made={"max_seqlen_q": _longest_query, "max_seqlen_k": _longest_key},
        source="https://github.com/vllm-project/flash-attention",
    ),
    # Its documentation refuses a mask beside the flag: callers make one mask of both.
    "torch_sdpa": PublicSignature(
        inputs=("query", "key", "value"),
        keywords={
            "keep": "attn_mask",
            "bias": "attn_mask",
            "dropout": "dropout_p",
            "causal": "is_causal",
            "scale": "scale",
        },
        marks=frozenset({"attn_mask", "dropout_p", "is_causal"}),
        others=frozenset({"enable_gqa"}),
        promises={
            "mask_shapes": _EVERY_SHAPE,
            "causal": "top-left",
            "features": ("scale", "dropout", "gqa"),
        },
        prepare=_with_causal_mask,
        grouped="enable_gqa",
        source="https://docs.pytorch.org/docs/stable/generated/"
        "torch.nn.functional.scaled_dot_product_attention.html",
    ),
    "xformers": PublicSignature(
        inputs=("query", "key", "value"),
        keywords={"bias": "attn_bias", "dropout": "p", "scale": "scale"},
        marks=frozenset({"attn_bias", "p", "scale"}),
        others=frozenset({"op", "output_dtype"}),
        promises={"layout": "BSHD", "mask_shapes": ("BHQK",), "features": ("scale", "dropout")},
        source="https://facebookresearch.github.io/xformers/components/ops.html",
    ),
    "jax": PublicSignature(
        inputs=("query", "key", "value"),
        keywords={
            "bias": "bias",
            "keep": "mask",
            "lengths": "key_value_seq_lengths",
            "causal": "is_causal",
            "scale": "scale",
            "window": "local_window_size",
        },
        marks=frozenset({"bias", "mask", "scale", "is_causal"}),
        others=frozenset({"query_seq_lengths", "implementation", "return_residual"}),
        promises={
            "arrays": "jax",
            "layout": "BSHD",
            "geometry": {"value_head_size": "head_size"},
            "mask_shapes": ("BHQK", "B1QK", "11QK", "B11K", "B"),
            "causal": "top-left",
            "features": ("scale", "window", "gqa"),
        },
        prepare=_with_limited_window,
        source="https://docs.jax.dev/en/latest/_autosummary/jax.nn.dot_product_attention.html",
    ),
    "flex": PublicSignature(
        inputs=("query", "key", "value"),
        keywords={"keep": "block_mask", "bias": "score_mod", "scale": "scale"},
        marks=frozenset({"block_mask", "score_mod"}),
        others=frozenset({"enable_gqa", "return_lse", "kernel_options", "return_aux"}),
        promises={"mask_shapes": ("BHQK",), "features": ("scale", "gqa")},
        prepare=_with_mask_functions,
        grouped="enable_gqa",
        source="https://docs.pytorch.org/docs/stable/nn.attention.flex_attention.html",
    ),
}


def read_signature(name: object, kind: str) -> PublicSignature:
    """The row of a core's signature; raises DeclarationError."""
    if kind != "core":
        msg = f"signature is {name!r} for a {kind}: only a core has one; drop it"
        raise DeclarationError(msg)
    if not isinstance(name, str) or name not in SIGNATURES:
        hint = did_you_mean(name if isinstance(name, str) else "", SIGNATURES)
        msg = f"signature is {name!r}, which is unknown{hint} (give one of {', '.join(SIGNATURES)})"
        raise DeclarationError(msg)
    return SIGNATURES[name]


def signature_by_parameters(function: Callable[..., Any]) -> str:
    """The name of the public signature that matches a function's parameters, else ""."""
    signature = parameters_of(function)
    names = () if signature is None else tuple(signature.parameters)
    for name, row in SIGNATURES.items():
        leads = names[: len(row.inputs)] == row.inputs
        if leads and row.marks <= frozenset(names) <= row.parameters:
            return name
    return ""
