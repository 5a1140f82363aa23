"""The modules behind the exports: the five document variants and ``nn.MultiheadAttention``.

Each has weights of its own, drawn once from a seed of its own, and takes the inputs of its graph in
their order. No attribute of this file is drawn again: an export is compared with the very module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import torch
from torch import Tensor, nn

from ..masked_attention import MaskedAttention
from ..token_attention import TokenAttention
from ..unbatched_attention import UnbatchedAttention
from ..valid_length_attention import ValidLengthAttention
from ..wide_head_attention import WideHeadAttention

WIDTH: Final = 12
NUM_HEADS: Final = 3

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def seeded(build: Callable[[], ModuleT], seed: int = 0) -> ModuleT:
    """A module in eval mode whose weights depend on the seed alone; biases are not zero."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = build()
        for name, parameter in module.named_parameters():
            if "bias" in name:
                nn.init.normal_(parameter, std=0.3)
    return module.requires_grad_(False).eval()  # noqa: FBT003 (torch's signature)


class PerHeadMatrices(nn.Module):
    """Document B1 as a module: two unscaled heads, put together along the token axis."""

    def __init__(self, width: int = 3, head_size: int = 2) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.rand(2, width, head_size))
        self.keys = nn.Parameter(torch.rand(2, width, head_size))
        self.values = nn.Parameter(torch.rand(2, width, head_size))
        self.merge = nn.Parameter(torch.rand(head_size, head_size))

    def forward(self, x: Tensor) -> Tensor:
        heads = [
            torch.softmax((x @ query) @ (x @ key).T, dim=-1) @ (x @ value)
            for query, key, value in zip(self.queries, self.keys, self.values, strict=True)
        ]
        return torch.cat(heads, dim=0) @ self.merge


class Multihead(nn.Module):
    """``nn.MultiheadAttention`` whose options are fixed, so that all its arguments are tensors.

    ``mask`` names the keyword that the last argument is for, "" for none.
    """

    def __init__(self, *, mask: str = "", need_weights: bool = False, **options: Any) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, NUM_HEADS, **options)
        self.mask = mask
        self.need_weights = need_weights

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Any:
        """The module's answer, without the None that stands for the weights."""
        masks = {self.mask: mask} if self.mask else {}
        answer = self.attention(query, key, value, need_weights=self.need_weights, **masks)
        return answer if self.need_weights else answer[0]


class CrossMultihead(Multihead):
    """Attention of one sequence to another."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Any:
        return self.attend(query, key, value, mask)


class SelfMultihead(Multihead):
    """Attention of a sequence to itself."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
        return self.attend(x, x, x, mask)


def _lengths_layer() -> ValidLengthAttention:
    return ValidLengthAttention(7, 6, 9, WIDTH, NUM_HEADS, dropout=0.5)


def _multihead(kind: type[ModuleT], **options: Any) -> ModuleT:
    return seeded(lambda: kind(**options))


token_attention: Final = seeded(lambda: TokenAttention(10, 4, 2, NUM_HEADS))
per_head_matrices: Final = seeded(PerHeadMatrices)
unbatched_attention: Final = seeded(lambda: UnbatchedAttention(6, 4, 2))
valid_length_attention: Final = seeded(_lengths_layer)
wide_head_attention: Final = seeded(lambda: WideHeadAttention(6, 7, 9, 4, 2))
masked_attention: Final = seeded(lambda: MaskedAttention(WIDTH, NUM_HEADS))

cross: Final = _multihead(CrossMultihead, batch_first=True)
cross_weights: Final = _multihead(CrossMultihead, batch_first=True, need_weights=True)
cross_padding: Final = _multihead(CrossMultihead, batch_first=True, mask="key_padding_mask")
cross_padding_weights: Final = _multihead(
    CrossMultihead, batch_first=True, need_weights=True, mask="key_padding_mask"
)
cross_bias: Final = _multihead(CrossMultihead, batch_first=True, mask="attn_mask")
cross_drop: Final = _multihead(CrossMultihead, batch_first=True, mask="attn_mask")
cross_widths: Final = _multihead(CrossMultihead, batch_first=True, kdim=7, vdim=5)
cross_length_first: Final = _multihead(CrossMultihead, batch_first=False)
cross_length_first_padding: Final = _multihead(
    CrossMultihead, batch_first=False, need_weights=True, mask="key_padding_mask"
)
own: Final = _multihead(SelfMultihead, batch_first=True)
own_weights: Final = _multihead(SelfMultihead, batch_first=True, need_weights=True)
own_padding: Final = _multihead(SelfMultihead, batch_first=True, mask="key_padding_mask")
own_bias: Final = _multihead(SelfMultihead, batch_first=True, mask="attn_mask")
own_length_first: Final = _multihead(SelfMultihead, batch_first=False)
own_no_bias: Final = _multihead(SelfMultihead, batch_first=True, bias=False)
