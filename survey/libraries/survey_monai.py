"""monai: the blocks of its transformers, by each kernel."""

import torch
from monai.networks.blocks.crossattention import CrossAttentionBlock
from monai.networks.blocks.selfattention import SABlock
from monai.networks.nets import ViT
from torch import Tensor, nn

import conformance

REQUIREMENTS = ["monai==1.6.1", "einops==0.8.2"]
CANDIDATES = {
    "self_attention": "identify",
    "causal": "identify",
    "flash": "identify",
    "flash_dropping": "check",
    "flash_padding": "check",
    "cross": "identify",
    "vit": "check",
}
PROMISES = [
    {
        "sentence": "attn_mask (torch.Tensor, optional): mask to apply to the attention matrix. B x (s_dim_1 * ... * s_dim_n).",
        "link": "https://github.com/Project-MONAI/MONAI/blob/1.6.1/monai/networks/blocks/selfattention.py",
        "clauses": ["mask.golden"],
        "declares": {"mask_shapes": ["BK", "B"]},
    },
]
DECIDED = [
    {
        "clause": [
            "shape.output",
            "shape.dtype",
            "shape.empty-batch",
            "shape.strided",
            "shape.expanded",
            "shape.bounds",
            "mask.causal",
            "mask.causal-alignment",
            "mask.causal-first-key",
            "equivariance.batch",
            "equivariance.heads",
            "equivariance.batch-independent",
            "numerics.golden",
            "numerics.scale",
            "numerics.large-logits",
            "numerics.accumulation",
            "numerics.nan-shows",
            "numerics.near-ties",
            "numerics.options",
            "gradients.golden",
            "gradients.options",
            "gradients.causal",
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
            "state.eval-deterministic",
            "state.state-dict",
            "state.train-agrees",
            "gradients.strided",
            "gradients.interleaved",
            "gradients.repeated",
            "gradients.accumulate",
            "gradients.inputs-unchanged",
            "gradients.any-length",
            "device.canaries",
            "device.fresh-memory",
        ],
        "candidates": "causal",
        "kind": "raised",
        "decided": "documented deviation",
        "reason": "with causal the length of sequences must be given: longer ones than these 16 raise",
    },
    {
        "clause": [
            "shape.strided",
            "shape.expanded",
            "shape.bounds",
            "equivariance.tokens",
            "equivariance.batch",
            "equivariance.heads",
            "equivariance.batch-independent",
            "numerics.golden",
            "numerics.scale",
            "numerics.large-logits",
            "numerics.accumulation",
            "numerics.near-ties",
            "numerics.subnormal",
            "gradients.golden",
            "gradients.options",
            "numerics.any-length",
            "state.repeatable",
            "state.bitwise-repeatable",
            "state.no-memory",
            "state.grad-mode",
            "state.answer-is-fresh",
            "state.call-order",
            "state.unseen",
            "state.eval-deterministic",
            "state.state-dict",
            "state.follows-to",
            "gradients.strided",
            "gradients.interleaved",
            "gradients.accumulate",
            "gradients.any-length",
            "device.fresh-memory",
        ],
        "candidates": "flash_dropping",
        "kind": "value",
        "decided": "defect",
        "reason": "weights are dropped in evaluation mode, too: equal calls differ",
        "finding": "030-monai-flash-drops-weights-in-evaluation",
    },
    {
        "clause": [
            "shape.output",
            "shape.dtype",
            "shape.strided",
            "shape.bounds",
            "mask.golden",
            "mask.all-keep",
            "mask.padding-is-absence",
            "mask.per-item",
            "mask.single-key",
            "mask.strided",
            "mask.no-leak",
            "mask.no-leak-nonfinite",
            "equivariance.tokens",
            "equivariance.batch",
            "equivariance.heads",
            "equivariance.batch-independent",
            "numerics.nan-shows",
            "numerics.options",
            "gradients.golden",
            "gradients.options",
            "gradients.masked-zero",
            "numerics.any-length",
            "state.repeatable",
            "state.bitwise-repeatable",
            "state.no-memory",
            "state.grad-mode",
            "state.inputs-unchanged",
            "state.answer-is-fresh",
            "state.call-order",
            "state.untampered",
            "state.unseen",
            "state.settings",
            "state.train-agrees",
            "gradients.strided",
            "gradients.interleaved",
            "gradients.repeated",
            "gradients.accumulate",
            "gradients.inputs-unchanged",
            "device.canaries",
            "device.fresh-memory",
        ],
        "candidates": "flash_padding",
        "kind": "raised",
        "decided": "defect",
        "reason": "a mask of items and tokens is taken for one of queries and keys, which raises",
        "finding": "031-monai-flash-takes-a-mask-of-tokens-for-one-of-scores",
    },
    {
        "clause": "mask.empty-row-isolated",
        "candidates": "flash_padding",
        "kind": "value",
        "decided": "defect",
        "reason": "with as many items as tokens the keys of another item are hidden",
        "finding": "031-monai-flash-takes-a-mask-of-tokens-for-one-of-scores",
    },
]


def self_attention() -> nn.Module:
    """In its own steps."""
    return SABlock(12, 3)


def causal() -> nn.Module:
    """Causal for sequences of a fixed length."""
    return SABlock(12, 3, causal=True, sequence_length=16)


def flash() -> nn.Module:
    """By torch's function."""
    return SABlock(12, 3, use_flash_attention=True)


def _call(module: nn.Module, tokens: Tensor, *, keep: Tensor | None = None) -> Tensor:
    answer: Tensor = module(tokens, attn_mask=keep)
    return answer


flash_dropping = conformance.module(
    SABlock(12, 3, dropout_rate=0.5, use_flash_attention=True).eval(),
    name="flash_dropping",
    call=_call,
    inputs="self",
)
flash_padding = conformance.module(
    SABlock(12, 3, use_flash_attention=True).eval(),
    name="flash_padding",
    call=_call,
    inputs="self",
    masks=["keep"],
    mask_shapes=["BK"],
    empty_rows="any",
)


def cross() -> nn.Module:
    """To a context."""
    return CrossAttentionBlock(12, 3, context_input_size=9)


def vit() -> nn.Module:
    """A whole vision transformer."""
    torch.manual_seed(0)
    return ViT(
        in_channels=1,
        img_size=16,
        patch_size=8,
        hidden_size=24,
        mlp_dim=32,
        num_layers=2,
        num_heads=3,
        spatial_dims=2,
    ).eval()
