"""An encoder, a decoder and both together, from token ids to logits, as people write them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The sizes of a model, and how it computes attention.

    kv_heads
        Fewer than ``heads`` where groups of heads share keys and values.
    written
        Attention written out with a softmax in place of torch's function.
    """

    width: int = 16
    heads: int = 4
    kv_heads: int = 4
    layers: int = 2
    vocabulary: int = 40
    longest: int = 32
    written: bool = False


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """What one layer does wrong, nothing by default.

    scale
        What its dot products are multiplied by in place of ``1/sqrt(head size)``.
    fill
        What the scores of hidden keys are replaced by in place of minus infinity, where attention
        is written out.
    axis
        Along which axis its weights sum to one, where attention is written out.
    tiled
        Whether query head ``h`` reads key head ``h % kv_heads`` in place of ``h // group``.
    """

    scale: float | None = None
    fill: float = -math.inf
    axis: int = -1
    tiled: bool = False


NONE = Mistake()


class Attention(nn.Module):
    """Attention with its projections: queries ``[B, Lq, E]``, memory ``[B, Lk, E]``."""

    def __init__(self, shape: Shape, mistake: Mistake = NONE) -> None:
        super().__init__()
        self.shape, self.mistake = shape, mistake
        self.size = shape.width // shape.heads
        self.query = nn.Linear(shape.width, shape.width)
        self.key = nn.Linear(shape.width, shape.kv_heads * self.size)
        self.value = nn.Linear(shape.width, shape.kv_heads * self.size)
        self.output = nn.Linear(shape.width, shape.width)

    def forward(self, tokens: Tensor, memory: Tensor, mask: Tensor | None) -> Tensor:
        """The mask is ``[B, 1, Lq, Lk]``, True attends; every query has a key."""
        query = self._heads(self.query(tokens))
        key, value = (self._grouped(self._heads(part(memory))) for part in (self.key, self.value))
        if self.shape.written:
            mixed = self._written(query, key, value, mask)
        else:
            scale = self.mistake.scale
            mixed = scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)
        answer: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return answer

    def _heads(self, tokens: Tensor) -> Tensor:
        heads: Tensor = tokens.unflatten(-1, (-1, self.size)).transpose(1, 2)
        return heads

    def _grouped(self, heads: Tensor) -> Tensor:
        """Each head once for every query head that shares it."""
        groups = self.shape.heads // self.shape.kv_heads
        if groups == 1:
            return heads
        if self.mistake.tiled:
            return heads[:, None].expand(-1, groups, -1, -1, -1).flatten(1, 2)
        return heads[:, :, None].expand(-1, -1, groups, -1, -1).flatten(1, 2)

    def _written(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        scale = self.mistake.scale or 1 / math.sqrt(self.size)
        scores = query @ key.transpose(-1, -2) * scale
        if mask is not None:
            scores = scores.masked_fill(~mask, self.mistake.fill)
        return scores.softmax(self.mistake.axis) @ value


class Layer(nn.Module):
    """Attention, attention to a memory if it has one, and a feed-forward part, each with a norm."""

    def __init__(self, shape: Shape, mistake: Mistake = NONE, *, crosses: bool = False) -> None:
        super().__init__()
        self.attention = Attention(shape, mistake)
        self.cross = Attention(shape) if crosses else None
        self.first_norm, self.cross_norm, self.last_norm = (
            nn.LayerNorm(shape.width) for _ in range(3)
        )
        self.wide = nn.Linear(shape.width, 2 * shape.width)
        self.narrow = nn.Linear(2 * shape.width, shape.width)

    def forward(
        self,
        tokens: Tensor,
        mask: Tensor | None,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
    ) -> Tensor:
        """Tokens of the same shape."""
        tokens = self.first_norm(tokens + self.attention(tokens, tokens, mask))
        if self.cross is not None and memory is not None:
            tokens = self.cross_norm(tokens + self.cross(tokens, memory, memory_mask))
        result: Tensor = self.last_norm(tokens + self.narrow(gelu(self.wide(tokens))))
        return result


class Tower(nn.Module):
    """Embeddings and layers; its positions are learned."""

    def __init__(
        self, shape: Shape, mistakes: Sequence[Mistake] = (), *, crosses: bool = False
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.positions = nn.Embedding(shape.longest, shape.width)
        every = [*mistakes, *[NONE] * (shape.layers - len(mistakes))]
        self.layers = nn.ModuleList(Layer(shape, one, crosses=crosses) for one in every)

    def forward(
        self,
        ids: Tensor,
        mask: Tensor,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
    ) -> Tensor:
        """Ids ``[B, L]`` become ``[B, L, E]``."""
        places = torch.arange(ids.shape[1], device=ids.device)
        result = self.tokens(ids) + self.positions(places)
        for layer in self.layers:
            result = layer(result, mask, memory, memory_mask)
        answer: Tensor = result
        return answer


def padding(mask: Tensor) -> Tensor:
    """``[B, L]`` of 0 and 1 as ``[B, 1, 1, L]``, True attends."""
    return mask.bool()[:, None, None, :]


def earlier(ids: Tensor) -> Tensor:
    """``[1, 1, L, L]``: each position sees itself and those before it."""
    length = ids.shape[1]
    places = torch.arange(length, device=ids.device)
    return (places[None, :] <= places[:, None])[None, None]


class Encoder(nn.Module):
    """Every token sees every token that is no padding."""

    def __init__(self, shape: Shape, mistakes: Sequence[Mistake] = ()) -> None:
        super().__init__()
        self.tower = Tower(shape, mistakes)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Ids and mask ``[B, L]`` become ``[B, L, E]``."""
        result: Tensor = self.tower(input_ids, padding(attention_mask))
        return result


class HidingEncoder(Encoder):
    """The same with a mask as torch's own modules take it: True hides."""

    def forward(self, input_ids: Tensor, hidden: Tensor) -> Tensor:
        """Ids ``[B, L]`` and a mask ``[B, L]``, True for padding, become ``[B, L, E]``."""
        return super().forward(input_ids, ~hidden)


class Decoder(nn.Module):
    """Every token sees itself and earlier tokens; it predicts the next one."""

    def __init__(self, shape: Shape, mistakes: Sequence[Mistake] = ()) -> None:
        super().__init__()
        self.tower = Tower(shape, mistakes)
        self.head = nn.Linear(shape.width, shape.vocabulary)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Ids and mask ``[B, L]`` become logits ``[B, L, V]``."""
        mask = earlier(input_ids) & padding(attention_mask)
        result: Tensor = self.head(self.tower(input_ids, mask))
        return result


class EncoderDecoder(nn.Module):
    """A decoder whose layers also attend to what an encoder made of other tokens."""

    def __init__(self, shape: Shape, mistakes: Sequence[Mistake] = ()) -> None:
        super().__init__()
        self.encoder = Tower(shape)
        self.decoder = Tower(shape, mistakes, crosses=True)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, decoder_ids: Tensor) -> Tensor:
        """Ids and mask ``[B, L]`` and decoder's ids ``[B, D]`` become ``[B, D, E]``."""
        memory_mask = padding(attention_mask)
        memory = self.encoder(input_ids, memory_mask)
        result: Tensor = self.decoder(decoder_ids, earlier(decoder_ids), memory, memory_mask)
        return result


class Vision(nn.Module):
    """Classes of pictures: every patch and a learned token see each other."""

    def __init__(self, shape: Shape, mistakes: Sequence[Mistake] = (), *, patch: int = 4) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, shape.width, kernel_size=patch, stride=patch)
        self.class_token = nn.Parameter(torch.randn(shape.width))
        self.positions = nn.Embedding(shape.longest, shape.width)
        every = [*mistakes, *[NONE] * (shape.layers - len(mistakes))]
        self.layers = nn.ModuleList(Layer(shape, one) for one in every)
        self.head = nn.Linear(shape.width, shape.vocabulary)

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Pictures ``[B, 3, H, W]``, both sizes multiples of the patch, become ``[B, classes]``."""
        patches = self.patches(pixel_values).flatten(2).transpose(1, 2)
        first = self.class_token.expand(patches.shape[0], 1, -1)
        tokens = torch.cat([first, patches], dim=1)
        tokens = tokens + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for layer in self.layers:
            tokens = layer(tokens, None)
        result: Tensor = self.head(tokens[:, 0])
        return result
