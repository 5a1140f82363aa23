"""A decoder that takes the keys and values of earlier tokens, and hands on all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention

from ..exports import Input, Source
from .transformer import Shape, Tower

_SHAPE: Final = Shape()
_SIZE: Final = _SHAPE.width // _SHAPE.heads
_HEADS: Final = ("batch", _SHAPE.heads, "past", _SIZE)
# Tokens that the cache of FirstTokenLost has room for.
_ROOM: Final = 8
PARTS: Final = ("0.key", "0.value", "1.key", "1.value")


class CachedDecoder(nn.Module):
    """Every token sees itself and earlier ones, of this call and of those before."""

    def __init__(self) -> None:
        super().__init__()
        self.tower = Tower(_SHAPE)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, *past: Tensor
    ) -> tuple[Tensor, ...]:
        """Ids ``[B, L]``, mask ``[B, P + L]``, heads ``[B, H, P, D]``: ``[B, L, E]``, heads."""
        before = past[0].shape[2]
        result = self.tower.tokens(input_ids) + self.tower.positions(self.places(input_ids, before))
        keep = attention_mask.bool()[:, None, None, :] & self.seen(input_ids, before)
        presents: list[Tensor] = []
        layers: list[Any] = list(self.tower.layers)
        for number, layer in enumerate(layers):
            own = layer.attention
            query, *new = (
                part(result).unflatten(-1, (-1, _SIZE)).transpose(1, 2)
                for part in (own.query, own.key, own.value)
            )
            key, value = map(self.joined, past[2 * number : 2 * number + 2], new)
            mixed = scaled_dot_product_attention(query, key, value, attn_mask=keep)
            result = layer.first_norm(result + own.output(mixed.transpose(1, 2).flatten(2)))
            result = layer.last_norm(result + layer.narrow(gelu(layer.wide(result))))
            presents += [key, value]
        return result, *presents

    def places(self, ids: Tensor, before: int) -> Tensor:
        """Where the tokens stand."""
        return torch.arange(ids.shape[1], device=ids.device) + before

    def seen(self, ids: Tensor, before: int) -> Tensor:
        """``[1, 1, L, P + L]``: each token sees itself and those before it."""
        keys = torch.arange(before + ids.shape[1], device=ids.device)
        queries = torch.arange(ids.shape[1], device=ids.device) + before
        return (keys[None] <= queries[:, None])[None, None]

    def joined(self, past: Tensor, new: Tensor) -> Tensor:
        """The heads of earlier tokens and of these."""
        return torch.cat([past, new], 2)


class PlacesNotShifted(CachedDecoder):
    """Positions are counted from zero in each call, whatever is past."""

    def places(self, ids: Tensor, before: int) -> Tensor:
        return super().places(ids, before) - before


class CacheAtTheEnd(CachedDecoder):
    """The keys and values of earlier tokens are put behind the new ones."""

    def joined(self, past: Tensor, new: Tensor) -> Tensor:
        return torch.cat([new, past], 2)


class PastHidden(CachedDecoder):
    """The keys of earlier tokens are taken and hidden."""

    def seen(self, ids: Tensor, before: int) -> Tensor:
        keys = torch.arange(before + ids.shape[1], device=ids.device)
        return super().seen(ids, before) & (keys >= before)


class CacheOfFirstItem(CachedDecoder):
    """Each item gets the cache of the first."""

    def joined(self, past: Tensor, new: Tensor) -> Tensor:
        return torch.cat([past[:1].expand(past.shape), new], 2)


class Kept:
    """The heads of earlier tokens ``[B, H, P, D]``, two a layer, that a module keeps."""

    def __init__(self, parts: Sequence[Tensor]) -> None:
        self.parts = list(parts)

    def reorder_cache(self, order: Tensor) -> None:
        """Put the items in another order, as beams need it."""
        self.parts = [part[order] for part in self.parts]


class KeepingDecoder(CachedDecoder):
    """The decoder as a module of torch that is called with its own cache."""

    kept: type[Kept] = Kept

    def forward(  # type: ignore[override]  # a graph's inputs are tensors, a module's any object
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        past: Kept | None = None,
        use_cache: bool = False,  # noqa: FBT001, FBT002 (as transformers has it)
    ) -> Tensor | tuple[Tensor, Kept]:
        """Ids ``[B, L]`` and a mask ``[B, P + L]``: ``[B, L, E]``, and the cache if wanted."""
        nothing = torch.zeros(input_ids.shape[0], _SHAPE.heads, 0, _SIZE)
        before = past.parts if past is not None else [nothing] * len(PARTS)
        answer, *presents = super().forward(input_ids, attention_mask, *before)
        return (answer, self.kept(presents)) if use_cache else answer


class KeptKeysOrdered(Kept):
    """A cache that moves the keys of its items when they are put in another order, and no value."""

    def reorder_cache(self, order: Tensor) -> None:
        keys = [part[order] for part in self.parts[::2]]
        self.parts[::2] = keys


class OrdersKeysAlone(KeepingDecoder):
    """Where the items of the cache are put in another order its values stay where they are."""

    kept = KeptKeysOrdered


class FirstTokenLost(KeepingDecoder):
    """From the ninth token on the first one is lost from the cache, and no mask is told."""

    def joined(self, past: Tensor, new: Tensor) -> Tensor:
        whole = super().joined(past, new)
        if past.shape[2] < _ROOM:
            return whole
        return torch.cat([torch.zeros_like(whole[:, :, :1]), whole[:, :, 1:]], 2)


def source(made: type[CachedDecoder]) -> Source:
    """The model with the inputs and answers of its export."""
    return Source(
        name=made.__name__.lower(),
        module=made().eval(),
        inputs=(
            Input(name="input_ids", axes=("batch", "tokens"), kind="ids"),
            Input(name="attention_mask", axes=("batch", "total"), kind="keep"),
            *(Input(name=f"past_key_values.{part}", axes=_HEADS) for part in PARTS),
        ),
        outputs={
            "answer": ("batch", "tokens", "width"),
            **{f"present.{part}": ("batch", _SHAPE.heads, "total", _SIZE) for part in PARTS},
        },
    )


def _made() -> dict[str, Source]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        wrong = (PlacesNotShifted, CacheAtTheEnd, PastHidden, CacheOfFirstItem)
        return {kind.__name__: source(kind) for kind in (CachedDecoder, *wrong)}


SOURCES: Final = _made()
