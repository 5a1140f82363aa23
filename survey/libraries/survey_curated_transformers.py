"""curated-transformers: its scorer in its own steps and by torch's function, and whole models."""

from collections.abc import Callable
from typing import Any

import torch
from curated_transformers.layers import AttentionMask, ScaledDotProductAttention, enable_torch_sdp
from curated_transformers.models.bert import BERTConfig, BERTEncoder
from curated_transformers.models.gpt_neox import GPTNeoXCausalLM, GPTNeoXConfig
from curated_transformers.models.llama import LlamaCausalLM, LlamaConfig
from torch import Tensor, nn

import conformance

ALONE = ["curated-transformers==2.0.1"]
REQUIREMENTS = ["catalogue==2.0.10", "huggingface_hub==2.4.0", "tokenizers==0.23.3"]
CANDIDATES = {
    "scorer": "check",
    "scorer_by_torch": "check",
    "bert": "check",
    "llama": "check",
    "gpt_neox": "check",
}
PROMISES = [
    {
        "sentence": "Sequence elements for which the corresponding mask element is set to ``False`` are ignored during attention calculation.",
        "link": "https://github.com/explosion/curated-transformers/blob/v2.0.1/curated_transformers/layers/attention.py",
        "clauses": ["mask.golden"],
        "candidates": "scorer*",
        "declares": {"masks": ["keep"]},
    },
]
DECIDED = [
    {
        "clause": [
            "shape.output",
            "shape.dtype",
            "shape.empty-batch",
            "shape.empty-query",
            "shape.strided",
            "shape.expanded",
            "shape.shared",
            "shape.bounds",
            "mask.golden",
            "mask.all-keep",
            "mask.per-item",
            "mask.single-key",
            "mask.strided",
            "mask.no-leak",
            "mask.no-leak-nonfinite",
            "mask.empty-row",
            "mask.empty-row-isolated",
            "mask.causal-alignment",
            "equivariance.queries",
            "equivariance.keys",
            "equivariance.batch",
            "equivariance.heads",
            "equivariance.batch-independent",
            "numerics.golden",
            "numerics.scale",
            "numerics.large-logits",
            "numerics.accumulation",
            "numerics.nan-shows",
            "numerics.near-ties",
            "numerics.subnormal",
            "numerics.options",
            "mask.empty-row-options",
            "gradients.golden",
            "gradients.options",
            "gradients.masked-zero",
            "gradients.empty-row-finite",
            "gradients.causal",
            "numerics.key-shift",
            "numerics.value-linear",
            "numerics.convex",
            "numerics.any-length",
            "state.repeatable",
            "state.bitwise-repeatable",
            "state.no-memory",
            "state.answer-kept",
            "state.grad-mode",
            "state.inputs-unchanged",
            "state.answer-is-fresh",
            "state.call-order",
            "state.untampered",
            "state.unseen",
            "state.settings",
            "gradients.strided",
            "gradients.shared",
            "gradients.alone",
            "gradients.interleaved",
            "gradients.repeated",
            "gradients.accumulate",
            "gradients.inputs-unchanged",
            "gradients.any-length",
            "device.canaries",
            "device.fresh-memory",
        ],
        "candidates": "scorer_by_torch",
        "kind": "raised",
        "decided": "defect",
        "reason": "the mask of keys is turned to the queries: where there are fewer of these it raises",
        "finding": "028-curated-transformers-torch-sdp-with-a-cache",
    },
    {
        "clause": [
            "shape.empty-key",
            "mask.padding-is-absence",
            "numerics.constant-value",
            "numerics.long-sequence",
            "cache.decode-equals-full",
        ],
        "candidates": "scorer_by_torch",
        "kind": "shape",
        "decided": "defect",
        "reason": "the mask of keys is turned to the queries: one query is broadcast to as many as there are keys",
        "finding": "028-curated-transformers-torch-sdp-with-a-cache",
    },
]
_SIZES = {
    "hidden_width": 24,
    "intermediate_width": 32,
    "n_hidden_layers": 2,
    "n_pieces": 50,
    "dtype": torch.float32,
}


def _no_more_queries_than_keys(geometry: Any) -> Any:
    """As in self-attention with a cache: a causal mask is made for these alone."""
    return geometry.replace(query_length=min(geometry.query_length, geometry.key_length))


def _scorer(name: str, mask_shapes: list[str], *, by_torch: bool) -> conformance.Candidate:
    """The scorer with a mask of every key where there is none."""
    scorer = ScaledDotProductAttention(dropout_prob=0.0, linear_biases=None).eval()

    @conformance.core(
        name=name,
        masks=["keep"],
        mask_shapes=mask_shapes,
        causal="bottom-right",
        empty_rows="mean-of-all",
        geometry=_no_more_queries_than_keys,
    )
    def attend(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        keep: Tensor | None = None,
        causal: bool = False,
    ) -> Tensor:
        every = torch.ones(len(key), 1, 1, key.shape[-2], dtype=torch.bool)
        with enable_torch_sdp(by_torch):
            answer: Tensor = scorer(
                query=query,
                key=key,
                value=value,
                attention_mask=AttentionMask(every if keep is None else keep),
                use_causal_mask=causal,
            )
        return answer

    return attend


scorer = _scorer("scorer", ["B11K", "BHQK", "B1QK"], by_torch=False)
scorer_by_torch = _scorer("scorer_by_torch", ["B11K"], by_torch=True)


class Masked(nn.Module):
    """A model that takes its mask as a tensor."""

    def __init__(self, model: nn.Module, answer: Callable[[Any], Tensor]) -> None:
        super().__init__()
        self.model, self.answer = model, answer

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """The last states, or the logits."""
        return self.answer(self.model(input_ids, AttentionMask(attention_mask.bool())))


def bert() -> nn.Module:
    """A whole encoder."""
    torch.manual_seed(0)
    config = BERTConfig(**_SIZES, embedding_width=24, n_attention_heads=3, n_positions=64)
    return Masked(BERTEncoder(config), lambda said: said.last_hidden_layer_state).eval()


def llama() -> nn.Module:
    """A whole decoder with rotary positions."""
    torch.manual_seed(0)
    heads = {"n_query_heads": 3, "n_key_value_heads": 3}
    config = LlamaConfig(**_SIZES, **heads, rotary_embedding_fraction=1.0)
    return Masked(LlamaCausalLM(config), lambda said: said.logits).eval()


def gpt_neox() -> nn.Module:
    """A whole decoder with rotary positions in a part of the channels."""
    torch.manual_seed(0)
    config = GPTNeoXConfig(**_SIZES, n_attention_heads=3, rotary_embedding_fraction=0.5)
    return Masked(GPTNeoXCausalLM(config), lambda said: said.logits).eval()
