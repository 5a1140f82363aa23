"""Causal self-attention with a cache of the module's own, in the ways of well-known models."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor, nn

import conformance
from conformance import Cache, Semantics

WIDTH: Final = 16
HEADS: Final = 4
KV_HEADS: Final = 2
HEAD_SIZE: Final = WIDTH // HEADS
ITEMS: Final = 8
SLOTS: Final = 64
LATENT: Final = 6

Pair = tuple[Tensor, Tensor]


class Decoder(nn.Module):
    """Grouped causal attention of tokens ``[B, L, E]``; each step is a method."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads = HEADS, KV_HEADS
        self.q_proj = nn.Linear(WIDTH, WIDTH)
        self.k_proj = nn.Linear(WIDTH, KV_HEADS * HEAD_SIZE)
        self.v_proj = nn.Linear(WIDTH, KV_HEADS * HEAD_SIZE)
        self.o_proj = nn.Linear(WIDTH, WIDTH)

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value heads ``[B, H, L, D]``."""
        query, key, value = (
            projection(x).unflatten(-1, (-1, HEAD_SIZE)).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        return query, key, value

    def allowed(self, new: int, total: int) -> Tensor:
        """Which of ``total`` keys each of the ``new`` queries sees: bool ``[L, K]``."""
        return torch.ones(new, total, dtype=torch.bool).tril(total - new)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, allowed: Tensor) -> Tensor:
        """The answer ``[B, L, E]``."""
        key, value = (each.repeat_interleave(HEADS // KV_HEADS, dim=1) for each in (key, value))
        scores = query @ key.mT * HEAD_SIZE**-0.5
        weights = scores.masked_fill(~allowed.to(scores.device), -torch.inf).softmax(dim=-1)
        output: Tensor = self.o_proj((weights @ value).transpose(1, 2).flatten(2))
        return output


class DynamicCache:
    """Keys and values of each layer, which grow with each call, as transformers' cache does."""

    def __init__(self) -> None:
        self.layers: dict[int, Pair] = {}

    def update(self, key: Tensor, value: Tensor, layer: int) -> Pair:
        """Put new keys and values behind those of a layer, and return all of them."""
        if layer in self.layers:
            past = self.layers[layer]
            key, value = torch.cat([past[0], key], dim=-2), torch.cat([past[1], value], dim=-2)
        self.layers[layer] = key, value
        return key, value

    def get_seq_length(self, layer: int = 0) -> int:
        """How many tokens a layer holds."""
        return self.layers[layer][0].shape[-2] if layer in self.layers else 0


class ByObject(Decoder):
    """An object in ``past_key_values`` is written into, as in transformers."""

    layer_idx = 0

    def forward(self, hidden_states: Tensor, past_key_values: DynamicCache | None = None) -> Tensor:
        """Attend the cached and the new tokens."""
        query, key, value = self.heads(hidden_states)
        if past_key_values is not None:
            key, value = self.joined(past_key_values, key, value)
        return self.attend(query, key, value, self.allowed(query.shape[2], key.shape[2]))

    def joined(self, cache: DynamicCache, key: Tensor, value: Tensor) -> Pair:
        """All keys and values."""
        return cache.update(key, value, self.layer_idx)


def turned(heads: Tensor, places: Tensor) -> Tensor:
    """Heads ``[B, H, L, D]`` turned by rotary positions, half by half."""
    size = heads.shape[-1]
    exponents = torch.arange(0, size, 2, dtype=torch.float64) / size
    angles = places.double()[:, None] * 10000.0**-exponents
    cos, sin = (torch.cat([each, each], dim=-1).to(heads) for each in (angles.cos(), angles.sin()))
    one, two = heads.chunk(2, dim=-1)
    return heads * cos + torch.cat([-two, one], dim=-1) * sin


class ByCachePosition(ByObject):
    """Rotary positions are those of ``cache_position [L]``."""

    def forward(
        self,
        hidden_states: Tensor,
        past_key_values: DynamicCache | None = None,
        cache_position: Tensor | None = None,
    ) -> Tensor:
        query, key, value = self.heads(hidden_states)
        places = torch.arange(query.shape[2]) if cache_position is None else cache_position
        query, key = turned(query, places), turned(key, places)
        if past_key_values is not None:
            key, value = self.joined(past_key_values, key, value)
        return self.attend(query, key, value, self.allowed(query.shape[2], key.shape[2]))


class ByTuples(Decoder):
    """``layer_past`` is a pair that the call before has returned, as in GPT-2."""

    def forward(
        self, hidden_states: Tensor, layer_past: Pair | None = None, *, use_cache: bool = False
    ) -> tuple[Tensor, Pair | None]:
        """The answer, and the pair for the next call if it is asked for."""
        query, key, value = self.heads(hidden_states)
        if layer_past is not None:
            key = torch.cat([layer_past[0], key], dim=-2)
            value = torch.cat([layer_past[1], value], dim=-2)
        output = self.attend(query, key, value, self.allowed(query.shape[2], key.shape[2]))
        return output, (key, value) if use_cache else None


class ByDictionary(Decoder):
    """A dictionary in ``kv_cache`` is written into."""

    def forward(self, x: Tensor, kv_cache: dict[str, Tensor] | None = None) -> Tensor:
        """Attend the cached and the new tokens."""
        query, key, value = self.heads(x)
        if kv_cache is not None:
            if "k" in kv_cache:
                key = torch.cat([kv_cache["k"], key], dim=-2)
                value = torch.cat([kv_cache["v"], value], dim=-2)
            kv_cache["k"], kv_cache["v"] = key, value
        return self.attend(query, key, value, self.allowed(query.shape[2], key.shape[2]))


class InBuffers(Decoder):
    """Buffers of the module are written from ``start_pos`` on, as in llama.

    Neighbours turn by complex ``freqs_cis``; causality is the caller's, by an additive mask.
    """

    def __init__(self) -> None:
        super().__init__()
        for name in ("cache_k", "cache_v"):
            self.register_buffer(name, torch.zeros(ITEMS, SLOTS, KV_HEADS, HEAD_SIZE))

    def forward(
        self, x: Tensor, start_pos: int, freqs_cis: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """Attend all tokens up to the new ones."""
        query, key, value = self.heads(x)
        query, key = (self.turn(each, freqs_cis) for each in (query, key))
        key, value = self.stored(key, value, start_pos)
        key, value = (each.repeat_interleave(HEADS // KV_HEADS, dim=1) for each in (key, value))
        scores = query @ key.mT * HEAD_SIZE**-0.5
        if mask is not None:
            scores = scores + mask
        output: Tensor = self.o_proj((scores.softmax(-1) @ value).transpose(1, 2).flatten(2))
        return output

    def turn(self, heads: Tensor, freqs_cis: Tensor) -> Tensor:
        """Turn neighbouring channels."""
        wide = heads.to(torch.promote_types(heads.dtype, torch.float32))
        pairs = torch.view_as_complex(wide.unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(pairs * freqs_cis).flatten(-2).to(heads.dtype)

    def stored(self, key: Tensor, value: Tensor, start: int) -> Pair:
        """Write new keys and values behind the others, and read all of them."""
        items, stop = key.shape[0], start + key.shape[2]
        buffers = []
        for name, new in (("cache_k", key), ("cache_v", value)):
            buffer = getattr(self, name).to(new)
            buffer[:items, start:stop] = new.detach().transpose(1, 2)
            setattr(self, name, buffer)
            earlier = buffer[:items, :start].transpose(1, 2)
            buffers.append(torch.cat([earlier.clone(), new], dim=2))
        return buffers[0], buffers[1]


class Slots(nn.Module):
    """Room for keys and values, which are written at given positions, as in gpt-fast."""

    k: Tensor
    v: Tensor

    def __init__(self, items: int, dtype: torch.dtype) -> None:
        super().__init__()
        for name in ("k", "v"):
            self.register_buffer(name, torch.zeros(items, KV_HEADS, SLOTS, HEAD_SIZE, dtype=dtype))

    def update(self, positions: Tensor, key: Tensor, value: Tensor) -> Pair:
        """Write, and return every slot."""
        both = (self.k.index_copy(2, positions, key), self.v.index_copy(2, positions, value))
        self.k, self.v = (each.detach() for each in both)
        return both


class ByInputPositions(Decoder):
    """The module holds slots that are written at ``input_pos``; the mask hides those not in use."""

    def __init__(self) -> None:
        super().__init__()
        self.kv_cache: Slots | None = None

    def forward(self, x: Tensor, mask: Tensor, input_pos: Tensor) -> Tensor:
        """Attend the slots that the mask ``[1, 1, L, slots]`` shows."""
        query, key, value = self.heads(x)
        query, key = turned(query, input_pos), turned(key, input_pos)
        if self.kv_cache is not None:
            key, value = self.kv_cache.update(input_pos, key, value)
        return self.attend(query, key, value, mask)


def with_slots(module: nn.Module, tokens: Tensor) -> None:
    """Give the module free slots for a sequence."""
    module.kv_cache = Slots(tokens.shape[0], tokens.dtype)


class ByWriteIndices(Decoder):
    """Given tensors are written at ``kv_write_indices``, and attended whole, as in Gemma."""

    def forward(
        self, hidden_states: Tensor, kv_write_indices: Tensor, kv_cache: Pair, mask: Tensor
    ) -> Tensor:
        """Attend the slots that the additive mask ``[1, 1, L, slots]`` shows."""
        query, key, value = self.heads(hidden_states)
        keys, values = (
            cache.index_copy(1, kv_write_indices, new.transpose(1, 2))
            for cache, new in zip(kv_cache, (key, value), strict=True)
        )
        for cache, new in zip(kv_cache, (keys, values), strict=True):
            cache.copy_(new.detach())
        key, value = (
            each.transpose(1, 2).repeat_interleave(HEADS // KV_HEADS, dim=1)
            for each in (keys, values)
        )
        scores = query @ key.mT * HEAD_SIZE**-0.5 + mask
        output: Tensor = self.o_proj((scores.softmax(-1) @ value).transpose(1, 2).flatten(2))
        return output


def free_slots(_module: nn.Module, tokens: Tensor) -> Pair:
    """Room for the tokens of a sequence."""
    shape = (*tokens.shape[:2], KV_HEADS, HEAD_SIZE)
    return torch.zeros(shape, dtype=tokens.dtype), torch.zeros(shape, dtype=tokens.dtype)


class LatentInBuffers(Decoder):
    """What is cached is a latent of small width, of which keys and values are made, as in MLA."""

    kv_cache: Tensor

    def __init__(self) -> None:
        super().__init__()
        del self.k_proj, self.v_proj
        self.kv_down = nn.Linear(WIDTH, LATENT, bias=False)
        self.k_up, self.v_up = (
            nn.Linear(LATENT, KV_HEADS * HEAD_SIZE, bias=False) for _ in range(2)
        )
        self.register_buffer("kv_cache", torch.zeros(ITEMS, SLOTS, LATENT))

    def forward(self, x: Tensor, start_pos: int) -> Tensor:
        """Attend the latents of all tokens up to the new ones."""
        items, stop = x.shape[0], start_pos + x.shape[1]
        new = self.kv_down(x)
        self.kv_cache = self.kv_cache.to(new)
        self.kv_cache[:items, start_pos:stop] = new.detach()
        latent = torch.cat([self.kv_cache[:items, :start_pos].clone(), new], dim=1)
        query, key, value = (
            each.unflatten(-1, (-1, HEAD_SIZE)).transpose(1, 2)
            for each in (self.q_proj(x), self.k_up(latent), self.v_up(latent))
        )
        return self.attend(query, key, value, self.allowed(query.shape[2], key.shape[2]))


def seeded(kind: type[nn.Module]) -> nn.Module:
    """A module with the same weights on every import; nobody else's random numbers are used."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return kind().eval()


CAUSAL: Final[dict[str, Any]] = {"causal": "bottom-right", "always_causal": True}
HALVES: Final[dict[str, Any]] = {**CAUSAL, "semantics": Semantics(rotary="halves")}
HELD: Final = Cache(positions={"start_pos": "start"})
LLAMA: Final[dict[str, Any]] = {
    "masks": ["bias"],
    "mask_shapes": ["QK"],
    "keywords": {"bias": "mask"},
    "rotary_tables": "complex",
    "semantics": Semantics(rotary="interleaved"),
    "max_length": SLOTS,
    "geometry": {"batch": range(1, ITEMS + 1)},
    "cache": HELD,
}
OBJECT: Final = Cache(parameter="past_key_values", make=DynamicCache)

by_object = conformance.module(seeded(ByObject), name="by_object", cache=OBJECT, **CAUSAL)
by_cache_position = conformance.module(
    seeded(ByCachePosition), name="by_cache_position", cache=OBJECT, **HALVES
)
by_tuples = conformance.module(
    seeded(ByTuples), name="by_tuples", cache=Cache(parameter="layer_past"), **CAUSAL
)
by_dictionary = conformance.module(
    seeded(ByDictionary),
    name="by_dictionary",
    cache=Cache(parameter="kv_cache", make=dict),
    **CAUSAL,
)
in_buffers = conformance.module(seeded(InBuffers), name="in_buffers", **LLAMA)
by_input_positions = conformance.module(
    seeded(ByInputPositions),
    name="by_input_positions",
    masks=["keep"],
    mask_shapes=["11QK"],
    keywords={"keep": "mask"},
    semantics=Semantics(rotary="halves"),
    max_length=SLOTS,
    cache=Cache(positions={"input_pos": "L"}, reset=with_slots, slots=SLOTS),
)
by_write_indices = conformance.module(
    seeded(ByWriteIndices),
    name="by_write_indices",
    masks=["bias"],
    mask_shapes=["11QK"],
    keywords={"bias": "mask"},
    cache=Cache(
        parameter="kv_cache",
        make=free_slots,
        positions={"kv_write_indices": "L"},
        slots="sequence",
    ),
)
latent_in_buffers = conformance.module(
    seeded(LatentInBuffers),
    name="latent_in_buffers",
    max_length=SLOTS,
    geometry={"batch": range(1, ITEMS + 1)},
    cache=HELD,
    **CAUSAL,
)
