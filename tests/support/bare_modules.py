"""Attention as people hold it: modules of which nothing is declared, right ones and wrong ones."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

WIDTH, HEADS = 12, 3


def heads_of(tokens: Tensor, heads: int = HEADS) -> Tensor:
    """``[B, L, E]`` as ``[B, H, L, D]``."""
    return tokens.unflatten(-1, (heads, -1)).transpose(1, 2)


def attend(query: Tensor, key: Tensor, value: Tensor, hidden: Tensor | None = None) -> Tensor:
    """Attention proper; True in ``hidden`` hides a key."""
    scores = query @ key.mT / query.shape[-1] ** 0.5
    if hidden is not None:
        scores = scores.masked_fill(hidden, -torch.inf)
    return scores.softmax(-1) @ value


class Projected(nn.Module):
    """Four projections, and how they are used around attention."""

    def __init__(self, embed_dim: int = WIDTH, num_heads: int = HEADS) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.q, self.k, self.v, self.o = (nn.Linear(embed_dim, embed_dim) for _ in range(4))

    def inside(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """The attention of tokens, projected."""
        parts = (self.q(query), self.k(key), self.v(value))
        return self.o(attend(*map(heads_of, parts)).transpose(1, 2).flatten(2))


class Residual(Projected):
    """An attention with its residual sum."""

    def forward(self, x: Tensor) -> Tensor:
        """Add the attention to the tokens."""
        return x + self.inside(x, x, x)


class ClosedGate(Projected):
    """An attention behind a gate that begins at zero."""

    def __init__(self, embed_dim: int = WIDTH, num_heads: int = HEADS) -> None:
        super().__init__(embed_dim, num_heads)
        self.gamma = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        """Add what the gate lets through."""
        return x + self.gamma * self.inside(x, x, x)


class PostNorm(Projected):
    """An attention with its residual sum and norm, and a mask that may be left out."""

    def __init__(self, embed_dim: int = WIDTH, num_heads: int = HEADS) -> None:
        super().__init__(embed_dim, num_heads)
        self.norm = nn.LayerNorm(embed_dim)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Normalise the sum of query and attention."""
        return self.norm(q + self.inside(q, k, v))


class SequenceFirst(nn.Module):
    """A block of a transformer whose tensors are ``[L, B, E]``."""

    def __init__(self, d_model: int = WIDTH, n_head: int = HEADS) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(d_model, n_head)
        self.norm, self.linear = nn.LayerNorm(d_model), nn.Linear(d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        """Attention and a feed-forward part, each with its residual sum."""
        y = self.norm(x)
        x = x + self.attn(y, y, y, need_weights=False)[0]
        return x + torch.relu(self.linear(x))


class FoldedBySequence(nn.Module):
    """A layer of a decoder ``[L, B, E]`` whose attention gives its weights, too."""

    def __init__(self, d_model: int = WIDTH, n_head: int = HEADS) -> None:
        super().__init__()
        self.attn, self.norm = nn.MultiheadAttention(d_model, n_head), nn.LayerNorm(d_model)

    def forward(self, tgt: Tensor, memory: Tensor, pos: Tensor | None = None) -> Tensor:
        """Attend to the memory, whose keys have positions."""
        keys = memory if pos is None else memory + pos
        return self.norm(tgt + self.attn(tgt, keys, memory)[0])


class ScaledByHead(PostNorm):
    """Cosines of queries and keys, multiplied by a number that each head learns."""

    def __init__(self, embed_dim: int = WIDTH, num_heads: int = HEADS) -> None:
        super().__init__(embed_dim, num_heads)
        self.logit_scale = nn.Parameter(torch.linspace(1.0, 2.0, num_heads).reshape(-1, 1, 1))

    def inside(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Scores are cosines by their head's number."""
        parts = (self.q(query), self.k(key), self.v(value))
        queries, keys, values = map(heads_of, parts)
        queries, keys = (nn.functional.normalize(part, dim=-1) for part in (queries, keys))
        cosines = queries @ keys.mT
        heads = (cosines * self.logit_scale.exp()).softmax(-1) @ values
        return self.o(heads.transpose(1, 2).flatten(2))


class Normed(Projected):
    """Queries and keys are normalised, and their products are multiplied by no number."""

    power = 0.0

    def __init__(self, embed_dim: int = WIDTH, num_heads: int = HEADS) -> None:
        super().__init__(embed_dim, num_heads)
        self.norms = nn.ModuleList(nn.LayerNorm(embed_dim // num_heads) for _ in "qk")

    def forward(self, x: Tensor) -> Tensor:
        """Attention of tokens within a residual sum."""
        query, key, value = (heads_of(part(x)) for part in (self.q, self.k, self.v))
        query, key = self.norms[0](query), self.norms[1](key)
        weights = (query @ key.mT * x.shape[-1] ** self.power).softmax(-1)
        return x + self.o((weights @ value).transpose(1, 2).flatten(2))


class NormedOfWrongWidth(Normed):
    """The same, scaled by the width of the model."""

    power = -0.5


class OfRawMatrices(nn.Module):
    """Matrices of its own, without a bias, and a residual sum that has one, too."""

    def __init__(self, embedding_size: int, head_num: int = 2) -> None:
        super().__init__()
        self.head_num, self.half = head_num, embedding_size // 2
        for name in ("w_query", "w_key", "w_value", "w_residual"):
            drawn = torch.randn(embedding_size, embedding_size) / embedding_size**0.5
            setattr(self, name, nn.Parameter(drawn))

    def forward(self, inputs: Tensor) -> Tensor:
        """Attention of tokens, whose sum is cut off at zero."""
        parts = (inputs @ one for one in (self.w_query, self.w_key, self.w_value))
        heads = attend(*(heads_of(part, self.head_num) for part in parts))
        return torch.relu(heads.transpose(1, 2).flatten(2) + inputs @ self.w_residual)


class Styled(Projected):
    """Takes one of two words, and further parts that may be None but are not left out."""

    def __init__(self, d: int, n_heads: int, style: str) -> None:
        assert style in ("plain", "wide")
        super().__init__(d, n_heads)

    def forward(
        self, a: Tensor, b: Tensor, shrink: nn.Module | None, grow: nn.Module | None
    ) -> Tensor:
        """Attend from one input to the other."""
        assert shrink is None
        assert grow is None
        return self.inside(a, b, b)


class Inverted(Projected):
    """A causal mask that says what is hidden, handed over as what is seen."""

    def forward(self, x: Tensor) -> Tensor:
        """Attend to what should be hidden."""
        hidden = torch.ones(x.shape[1], x.shape[1]).triu(1).bool()
        parts = map(heads_of, (self.q(x), self.k(x), self.v(x)))
        heads = nn.functional.scaled_dot_product_attention(*parts, attn_mask=hidden)
        return self.o(heads.transpose(1, 2).flatten(2))


class UnusedValues(Projected):
    """The keys in place of the values, within a residual sum and a norm."""

    def forward(self, x: Tensor) -> Tensor:
        """Attend, but to the keys."""
        query, key = map(heads_of, (self.q(x), self.k(x)))
        heads = attend(query, key, key).transpose(1, 2).flatten(2)
        return nn.functional.layer_norm(x + self.o(heads), x.shape[-1:])


class WrongWidth(Projected):
    """A residual sum around scores that are scaled by the width of the model."""

    def forward(self, x: Tensor) -> Tensor:
        """Scale by the wrong width."""
        query, key, value = map(heads_of, (self.q(x), self.k(x), self.v(x)))
        weights = (query @ key.mT / x.shape[-1] ** 0.5).softmax(-1)
        return x + self.o((weights @ value).transpose(1, 2).flatten(2))


class HeadLost(Projected):
    """The last head is left out before the output projection."""

    def forward(self, x: Tensor) -> Tensor:
        """Project zeros in its place."""
        heads = attend(*map(heads_of, (self.q(x), self.k(x), self.v(x))))
        kept = torch.cat([heads[:, :-1], torch.zeros_like(heads[:, -1:])], dim=1)
        return self.o(kept.transpose(1, 2).flatten(2))


class HalfScaled(Projected):
    """The queries are divided by the fourth root of the head size, and the keys are not."""

    def forward(self, x: Tensor) -> Tensor:
        """Scale one of the two."""
        query, key, value = map(heads_of, (self.q(x), self.k(x), self.v(x)))
        weights = (query * query.shape[-1] ** -0.25 @ key.mT).softmax(-1)
        return self.o((weights @ value).transpose(1, 2).flatten(2))


class QuarterScaled(Projected):
    """A quarter of the usual scale: for four channels what padding them to 64 would make of it."""

    def forward(self, x: Tensor) -> Tensor:
        """Scale with a factor of its own."""
        query, key, value = map(heads_of, (self.q(x), self.k(x), self.v(x)))
        weights = (0.25 / query.shape[-1] ** 0.5 * query @ key.mT).softmax(-1)
        return self.o((weights @ value).transpose(1, 2).flatten(2))


class Dropping(Projected):
    """Weights are dropped in eval mode, too."""

    def __init__(self, embed_dim: int, num_heads: int, dropout: float) -> None:
        super().__init__(embed_dim, num_heads)
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        """Drop whatever the mode is."""
        parts = map(heads_of, (self.q(x), self.k(x), self.v(x)))
        heads = nn.functional.scaled_dot_product_attention(*parts, dropout_p=self.dropout)
        return self.o(heads.transpose(1, 2).flatten(2))


class Exchanged(nn.Module):
    """Keys are made of the queries and queries of the keys, by matrices whose names say neither."""

    def __init__(self, embed_dim: int = WIDTH, num_heads: int = HEADS) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.linears = nn.ModuleList(nn.Linear(embed_dim, embed_dim) for _ in range(4))

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend with the keys."""
        given = zip(self.linears, (key, query, value), strict=False)
        parts = (heads_of(linear(tokens)) for linear, tokens in given)
        return self.linears[3](attend(*parts).transpose(1, 2).flatten(2))


class ByPlace(Projected):
    """A learned bias by the distance from query to key, and no scale, as in T5."""

    def __init__(self, embed_dim: int = WIDTH, num_heads: int = HEADS) -> None:
        super().__init__(embed_dim, num_heads)
        self.table = nn.Embedding(17, num_heads)

    def forward(self, x: Tensor) -> Tensor:
        """Add the number of each distance to the dot products."""
        query, key, value = map(heads_of, (self.q(x), self.k(x), self.v(x)))
        places = torch.arange(x.shape[1])
        apart = (places[None, :] - places[:, None]).clamp(-8, 8) + 8
        weights = (query @ key.mT + self.table(apart).permute(2, 0, 1)).softmax(-1)
        return self.o((weights @ value).transpose(1, 2).flatten(2))


class OfPicture(Projected):
    """Tokens of a picture with its sides, which this attention has no use for."""

    def forward(self, x: Tensor, H: int, W: int) -> Tensor:  # noqa: N803 (as published)
        """Attention of tokens."""
        del H, W
        return self.inside(x, x, x)


class FilledLater(Projected):
    """Causal in every call, with -1e4 in place of later logits, as in GPT-2."""

    def forward(self, x: Tensor) -> Tensor:
        """Attend to earlier tokens."""
        query, key, value = map(heads_of, (self.q(x), self.k(x), self.v(x)))
        seen = torch.ones(x.shape[1], x.shape[1]).tril()
        logits = query @ key.mT / query.shape[-1] ** 0.5 * seen - 1e4 * (1 - seen)
        return self.o((logits.softmax(-1) @ value).transpose(1, 2).flatten(2))


class FarFirst(Projected):
    """A bias by distance with the wrong sign, in a block with a residual sum and a norm."""

    sign = 1.0

    def forward(self, x: Tensor) -> Tensor:
        """Attend to what is far away."""
        query, key, value = (heads_of(part(x)) for part in (self.q, self.k, self.v))
        places = torch.arange(x.shape[1])
        slopes = 2.0 ** -torch.arange(1.0, self.num_heads + 1)[:, None, None]
        bias = self.sign * slopes * (places[:, None] - places).abs()
        weights = (query @ key.mT / query.shape[-1] ** 0.5 + bias).softmax(-1)
        attended = self.o((weights @ value).transpose(1, 2).flatten(2))
        return nn.functional.layer_norm(x + attended, x.shape[-1:])


class NearFirst(FarFirst):
    """The same with the right sign."""

    sign = -1.0


class Gated(Projected):
    """Attention whose answer a gate of its own multiplies: right, and no reading of ours."""

    def __init__(self, embed_dim: int = WIDTH, num_heads: int = HEADS) -> None:
        super().__init__(embed_dim, num_heads)
        self.gate = nn.Linear(embed_dim, embed_dim)

    def forward(self, x: Tensor) -> Tensor:
        """Gate the heads' answers."""
        parts = map(heads_of, (self.q(x), self.k(x), self.v(x)))
        heads = attend(*parts).transpose(1, 2).flatten(2)
        return self.o(heads * torch.sigmoid(self.gate(x)))


class Masked(Projected):
    """Plain attention with a mask that keeps where it is not zero."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attention of tokens."""
        parts = map(heads_of, (self.q(x), self.k(x), self.v(x)))
        hidden = None if mask is None else mask == 0
        return self.o(attend(*parts, hidden).transpose(1, 2).flatten(2))


class MixesItems(Projected):
    """A mask that each head takes of another item."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Repeat the masks of all items, and not each for its heads."""
        parts = map(heads_of, (self.q(x), self.k(x), self.v(x)))
        hidden = None if mask is None else mask.repeat(HEADS, 1).view(len(x), HEADS, 1, -1) == 0
        return self.o(attend(*parts, hidden).transpose(1, 2).flatten(2))


class FoldsItems(Projected):
    """Heads are folded into the batch, and taken out of it in the other order."""

    def forward(self, x: Tensor) -> Tensor:
        """Merge heads of other items."""
        heads = attend(*map(heads_of, (self.q(x), self.k(x), self.v(x))))
        folded = heads.flatten(0, 1).unflatten(0, (HEADS, len(x)))
        return self.o(folded.permute(1, 2, 0, 3).flatten(2))


def turned(heads: Tensor, table: Tensor) -> Tensor:
    """Heads ``[..., D]`` by the angles of a table ``[..., D / 2]``."""
    cos, sin, (one, other) = table.cos(), table.sin(), heads.chunk(2, dim=-1)
    return torch.cat([one * cos - other * sin, one * sin + other * cos], -1)


def angles(count: int, size: int) -> Tensor:
    """The rotary angles of so many places."""
    return torch.arange(count)[:, None] * 10000.0 ** (-torch.arange(size // 2) / (size // 2))


class OverChannels(Projected):
    """Channels attend to channels, as their sums over tokens say, within a residual sum."""

    def forward(self, x: Tensor) -> Tensor:
        """Cross-covariance attention."""
        query, key, value = (heads_of(part(x)).mT for part in (self.q, self.k, self.v))
        query, key = (nn.functional.normalize(part, dim=-1) for part in (query, key))
        heads = (query @ key.mT).softmax(-1) @ value
        return x + self.o(heads.permute(0, 3, 1, 2).flatten(2))


class MaskedAtTheEnd(Projected):
    """A required mask with an axis of its own at the end, and causality that is spelled oddly."""

    def __init__(self, d_model: int, n_heads: int, casual: bool) -> None:  # noqa: FBT001 (as published)
        super().__init__(d_model, n_heads)
        self.casual = casual

    def forward(self, x: Tensor, m: Tensor) -> Tensor:
        """Hide tokens from each other where the mask is zero."""
        kept = m.squeeze(-1)
        seen = kept[:, None] * kept[:, :, None]
        hidden = (seen.tril() if self.casual else seen) == 0
        parts = map(heads_of, (self.q(x), self.k(x), self.v(x)))
        return self.o(attend(*parts, hidden[:, None]).transpose(1, 2).flatten(2)) * m


@dataclass
class Settings:
    """What the next class is built with, which nothing of its constructor names."""

    width: int = 768
    n_head: int = 12
    dropout: float = 0.0
    name: str = "large"


class OfSettings(Projected):
    """Drops weights in eval mode, too, where its settings say so; by default they do not."""

    def __init__(self, config) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001 (as published)
        assert config.name == "large"
        super().__init__(config.width, config.n_head)
        self.dropout = config.dropout

    def forward(self, x: Tensor) -> Tensor:
        """Attend to earlier tokens."""
        parts = map(heads_of, (self.q(x), self.k(x), self.v(x)), [self.num_heads] * 3)
        heads = nn.functional.scaled_dot_product_attention(
            *parts, dropout_p=self.dropout, is_causal=True
        )
        return self.o(heads.transpose(1, 2).flatten(2))


class HidesItself(Projected):
    """No token attends to itself, as far as a finite number hides it, within a residual sum."""

    def forward(self, x: Tensor) -> Tensor:
        """Attend to the others."""
        query, key, value = map(heads_of, (self.q(x), self.k(x), self.v(x)))
        logits = query @ key.mT / query.shape[-1] ** 0.5
        logits = logits.masked_fill(torch.eye(x.shape[1], dtype=torch.bool), -100)
        return x + self.o((logits.softmax(-1) @ value).transpose(1, 2).flatten(2))


class TriangleNotTaken(Projected):
    """Causal by a kernel, with a triangle that it keeps for platforms without the kernel."""

    def __init__(self, embed_dim: int = WIDTH, num_heads: int = HEADS) -> None:
        super().__init__(embed_dim, num_heads)
        self.register_buffer("later", torch.full((64, 64), -torch.inf).triu(1))

    def forward(self, x: Tensor) -> Tensor:
        """Attend to earlier tokens."""
        parts = map(heads_of, (self.q(x), self.k(x), self.v(x)))
        heads = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
        return self.o(heads.transpose(1, 2).flatten(2))


class OfTriangle(nn.Module):
    """The same within a residual sum and a norm."""

    def __init__(self, embed_dim: int = WIDTH, num_heads: int = HEADS) -> None:
        super().__init__()
        self.attn, self.norm = TriangleNotTaken(embed_dim, num_heads), nn.LayerNorm(embed_dim)

    def forward(self, x: Tensor) -> Tensor:
        """Add the attention to the tokens."""
        return x + self.attn(self.norm(x))


class QueriesTurned(Projected):
    """Rotary positions of queries alone."""

    def forward(self, x: Tensor) -> Tensor:
        """Turn no keys."""
        query, key, value = map(heads_of, (self.q(x), self.k(x), self.v(x)))
        query = turned(query, angles(x.shape[1], query.shape[-1]))
        return self.o(attend(query, key, value).transpose(1, 2).flatten(2))


class ValuesTurned(Projected):
    """Rotary positions of values, too."""

    def forward(self, x: Tensor) -> Tensor:
        """Turn all three."""
        heads = map(heads_of, (self.q(x), self.k(x), self.v(x)))
        parts = (turned(part, angles(x.shape[1], part.shape[-1])) for part in heads)
        return self.o(attend(*parts).transpose(1, 2).flatten(2))


class TurnedInBlock(Projected):
    """Rotary positions of queries and keys within a residual sum and a norm."""

    def turn(self, heads: Tensor) -> Tensor:
        """Halves of a head are the parts of complex numbers."""
        return turned(heads, angles(heads.shape[-2], heads.shape[-1]))

    def forward(self, x: Tensor) -> Tensor:
        """Add the attention to the tokens."""
        query, key, value = map(heads_of, (self.q(x), self.k(x), self.v(x)))
        heads = attend(self.turn(query), self.turn(key), value).transpose(1, 2).flatten(2)
        return nn.functional.layer_norm(x + self.o(heads), x.shape[-1:])


class GivenAngles(TurnedInBlock):
    """The same, by tables that the caller makes."""

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:  # type: ignore[override]  # more
        """Add the attention to the tokens."""
        query, key, value = map(heads_of, (self.q(x), self.k(x), self.v(x)))
        query, key = (
            part * cos + torch.cat(part.chunk(2, -1)[::-1], -1) * sin for part in (query, key)
        )
        heads = attend(query, key, value).transpose(1, 2).flatten(2)
        return nn.functional.layer_norm(x + self.o(heads), x.shape[-1:])


class PairsOfHalves(TurnedInBlock):
    """Neighbours are turned together, by angles that lie as for halves."""

    def turn(self, heads: Tensor) -> Tensor:
        """Mix two layouts of rotary positions."""
        table = angles(heads.shape[-2], heads.shape[-1]).repeat(1, 2)
        pairs = torch.stack([-heads[..., 1::2], heads[..., ::2]], -1).flatten(-2)
        return heads * table.cos() + pairs * table.sin()


class Angles(nn.Module):
    """Rotary positions as a part with a table."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("table", angles(64, size))

    def forward(self, heads: Tensor) -> Tensor:
        """Turn heads ``[B, L, H, D]``, or tokens of what else is the second axis."""
        return turned(heads, self.table[: heads.shape[1], None])  # type: ignore[index]  # a tensor


class TurnedByTable(Projected):
    """Rotary positions whose table is kept in a part."""

    def __init__(self, embed_dim: int = WIDTH, num_heads: int = HEADS) -> None:
        super().__init__(embed_dim, num_heads)
        self.rotary = Angles(embed_dim // num_heads)

    def turn(self, tokens: Tensor) -> Tensor:
        """The heads of tokens, turned by their places."""
        return self.rotary(tokens.unflatten(-1, (HEADS, -1))).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Turn queries and keys."""
        heads = attend(self.turn(self.q(x)), self.turn(self.k(x)), heads_of(self.v(x)))
        return self.o(heads.transpose(1, 2).flatten(2))


class TurnedByHead(TurnedByTable):
    """Each head is turned by its own number: no product of a query and a key changes."""

    def turn(self, tokens: Tensor) -> Tensor:
        """The heads of tokens, turned by the heads' places."""
        turned_heads: Tensor = self.rotary(heads_of(tokens))
        return turned_heads


class OfComplexTables(Projected):
    """Neighbours of channels times the complex numbers of its caller, as in Llama's own code."""

    def turn(self, heads: Tensor, freqs_cis: Tensor) -> Tensor:
        """Heads as complex numbers, times the table."""
        pairs = torch.view_as_complex(heads.float().unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(pairs * freqs_cis).flatten(-2).to(heads.dtype)

    def forward(self, x: Tensor, freqs_cis: Tensor) -> Tensor:
        """Turn queries and keys."""
        query, key, value = map(heads_of, (self.q(x), self.k(x), self.v(x)))
        heads = attend(self.turn(query, freqs_cis), self.turn(key, freqs_cis), value)
        return self.o(heads.transpose(1, 2).flatten(2))


class OfPositionIds(Projected):
    """Turned by the positions of its caller, as in transformers."""

    def places(self, position_ids: Tensor) -> Tensor:
        """The positions of each item."""
        return position_ids

    def forward(self, x: Tensor, position_ids: Tensor) -> Tensor:
        """Turn halves of the channels of queries and keys."""

        def turn(heads: Tensor) -> Tensor:
            half = heads.shape[-1] // 2
            frequencies = 10000.0 ** (-torch.arange(half) / half)
            angles = self.places(position_ids)[:, None, :, None] * frequencies
            one, two = heads.chunk(2, -1)
            cos, sin = angles.cos(), angles.sin()
            return torch.cat([one * cos - two * sin, one * sin + two * cos], -1).to(heads.dtype)

        query, key, value = map(heads_of, (self.q(x), self.k(x), self.v(x)))
        heads = attend(turn(query), turn(key), value)
        return self.o(heads.transpose(1, 2).flatten(2))


class OfFirstPositionIds(OfPositionIds):
    """Every item is turned by the positions of the first."""

    def places(self, position_ids: Tensor) -> Tensor:
        """The positions of the first item."""
        return position_ids[:1]


class OfOwnTables(OfComplexTables):
    """Turns by the places of its tokens, whatever the caller gives."""

    def turn(self, heads: Tensor, freqs_cis: Tensor) -> Tensor:
        """Heads times a table of its own."""
        del freqs_cis
        size = heads.shape[-1]
        frequencies = 10000.0 ** (-torch.arange(0, size, 2) / size)
        angles = torch.arange(heads.shape[-2])[:, None] * frequencies
        return super().turn(heads, torch.polar(torch.ones_like(angles), angles))


class KeysByTables(OfComplexTables):
    """Queries are turned by their places, keys by the table of the caller."""

    def forward(self, x: Tensor, freqs_cis: Tensor) -> Tensor:
        """Turn queries and keys, each by its own table."""
        query, key, value = map(heads_of, (self.q(x), self.k(x), self.v(x)))
        places = torch.arange(x.shape[1])[:, None] * 10000.0 ** (
            -torch.arange(0, query.shape[-1], 2) / query.shape[-1]
        )
        own = torch.polar(torch.ones_like(places), places)
        heads = attend(self.turn(query, own), self.turn(key, freqs_cis), value)
        return self.o(heads.transpose(1, 2).flatten(2))


class OfMatrices(Projected):
    """Neighbours of channels times matrices of two rows, as in FLUX."""

    def forward(self, x: Tensor, pe: Tensor) -> Tensor:
        """Turn queries and keys."""

        def turn(heads: Tensor) -> Tensor:
            pairs = heads.float().unflatten(-1, (-1, 1, 2))
            made = pe[..., 0] * pairs[..., 0] + pe[..., 1] * pairs[..., 1]
            return made.reshape(heads.shape).to(heads.dtype)

        query, key, value = map(heads_of, (self.q(x), self.k(x), self.v(x)))
        heads = attend(turn(query), turn(key), value)
        return self.o(heads.transpose(1, 2).flatten(2))


class ScaledByLength(Projected):
    """A residual sum around scores that are scaled by the number of tokens."""

    def forward(self, x: Tensor) -> Tensor:
        """Scale by the length of the sequence."""
        query, key, value = map(heads_of, (self.q(x), self.k(x), self.v(x)))
        weights = (query @ key.mT / x.shape[1] ** 0.5).softmax(-1)
        return x + self.o((weights @ value).transpose(1, 2).flatten(2))


class AddedInPlace(Projected):
    """A residual sum that is made in the tensor which the caller gave."""

    def forward(self, x: Tensor) -> Tensor:
        """Add to the tokens."""
        x += self.inside(x, x, x)
        return x


class PackedOtherwise(nn.Module):
    """One matrix for query, value and key, in this order, within a residual sum."""

    def __init__(self, embed_dim: int = WIDTH, num_heads: int = HEADS) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv, self.o = nn.Linear(embed_dim, 3 * embed_dim), nn.Linear(embed_dim, embed_dim)

    def forward(self, x: Tensor) -> Tensor:
        """Attend to the last third by the second."""
        query, value, key = map(heads_of, self.qkv(x).chunk(3, dim=-1))
        return x + self.o(attend(query, key, value).transpose(1, 2).flatten(2))


class ExchangedInputs(PostNorm):
    """Keys are made of what is given as values, and values of the keys."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Normalise the sum of query and attention."""
        heads = attend(*map(heads_of, (self.q(q), self.v(v), self.k(k))))
        return self.norm(q + self.o(heads.transpose(1, 2).flatten(2)))


class BeginsAsZero(Projected):
    """A norm before an attention whose last projection is zero before it is trained."""

    def __init__(self, embed_dim: int = WIDTH, num_heads: int = HEADS) -> None:
        super().__init__(embed_dim, num_heads)
        self.norm = nn.BatchNorm1d(embed_dim)
        nn.init.zeros_(self.o.weight)
        nn.init.zeros_(self.o.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Attend to normalised tokens, and bend the answer."""
        x = self.norm(x.mT).mT
        return torch.tanh(self.inside(x, x, x))


class TwoStreams(Projected):
    """Cross-attention, to its own tokens where no others are given."""

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """Attend to what is given."""
        other = x if context is None else context
        return self.inside(x, other, other)


class HeadsBeforeItems(PostNorm):
    """Heads are folded in front of the items, and a mask that is repeated for them is needed."""

    def forward(  # type: ignore[override]
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """True in ``mask [B, Lq or 1, Lk]`` hides a key; what is folded comes back as well."""
        (items, queries, _), keys = q.shape, k.shape[1]
        parts = (self.q(q), self.k(k), self.v(v))
        folded = [
            part.view(items, length, HEADS, -1)
            .permute(2, 0, 1, 3)
            .reshape(HEADS * items, length, -1)
            for part, length in zip(parts, (queries, keys, keys), strict=True)
        ]
        answer = attend(*folded, self.repeated(mask))  # type: ignore[arg-type]  # as published
        heads = answer.view(HEADS, items, queries, -1).permute(1, 2, 0, 3).reshape(q.shape)
        return self.norm(q + self.o(heads)), answer

    def repeated(self, mask: Tensor) -> Tensor:
        """The mask of each item for every head."""
        return mask.repeat(HEADS, 1, 1)


class MaskOfOtherItems(HeadsBeforeItems):
    """The mask is repeated as if the heads of an item followed each other."""

    def repeated(self, mask: Tensor) -> Tensor:
        """The masks in the wrong order."""
        return mask.repeat_interleave(HEADS, dim=0)


class TokensFirstMask(PostNorm):
    """Tensors ``[L, B, E]``, scores ``[Lq, Lk, B, H]`` and a mask ``[Lk, B]``."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:  # type: ignore[override]
        """True in ``mask`` hides a key."""
        query, key, value = (one(x).unflatten(-1, (HEADS, -1)) for one in (self.q, self.k, self.v))
        scores = torch.einsum("ibhd,jbhd->ijbh", query, key) / query.shape[-1] ** 0.5
        if mask is not None and mask.any():
            scores = scores.masked_fill(mask[None, :, :, None], -torch.inf)
        heads = torch.einsum("ijbh,jbhd->ibhd", scores.softmax(1), value)
        return self.norm(x + self.o(heads.flatten(2)))


class MisnamedWeights(Projected):
    """Keys are made by the weight that is called after the values, and values by that of keys."""

    def forward(self, x: Tensor) -> Tensor:
        """Attention of tokens within a residual sum."""
        heads = attend(*map(heads_of, (self.q(x), self.v(x), self.k(x))))
        return x + self.o(heads.transpose(1, 2).flatten(2))


class KeysOfValues(PostNorm):
    """Keys are made of the values, and those that are given are left alone."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Normalise the sum of query and attention."""
        del k
        return self.norm(q + self.inside(q, v, v))


class MergedInPicture(nn.Module):
    """Pixels attend to each other, and heads become channels without their transpose."""

    def __init__(self, dim: int = WIDTH, heads: int = HEADS) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Conv2d(dim, 3 * dim, 1), nn.Conv2d(dim, dim, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Of pictures ``[B, C, H, W]``."""
        parts = self.qkv(x).flatten(2).chunk(3, dim=1)
        heads = attend(*(part.unflatten(1, (self.heads, -1)).mT for part in parts))
        return x + self.out(heads.reshape(x.shape))


class LengthsOfOtherItems(Projected):
    """Lengths that are repeated for heads in the wrong order."""

    def forward(self, x: Tensor, valid_lens: Tensor | None = None) -> Tensor:
        """Numbers of valid keys, one an item."""
        parts = map(heads_of, (self.q(x), self.k(x), self.v(x)))
        hidden = None
        if valid_lens is not None:
            ends = valid_lens.repeat(HEADS).view(len(x), HEADS, 1, 1)
            hidden = torch.arange(x.shape[1]) >= ends
        heads = attend(*parts, hidden)
        return self.o(heads.transpose(1, 2).flatten(2))


class Refusing(Projected):
    """Answers nothing."""

    def forward(self, x: Tensor) -> Tensor:
        """Raise whatever is given."""
        msg = f"no tensor is right, nor {x.dim()} axes"
        raise ValueError(msg)


class TwoMoreStreams(Projected):
    """Keys and values of tokens of their own, where any are given."""

    def forward(self, x: Tensor, k_x: Tensor | None = None, v_x: Tensor | None = None) -> Tensor:
        """Attend to what is given."""
        return self.inside(x, x if k_x is None else k_x, x if v_x is None else v_x)


class ExchangedStreams(Projected):
    """Keys and values change places where tokens of their own are given."""

    def forward(self, x: Tensor, k_x: Tensor | None = None, v_x: Tensor | None = None) -> Tensor:
        """Attend to what is given, by the other matrix."""
        if k_x is None or v_x is None:
            return self.inside(x, x, x)
        parts = (self.q(x), self.v(k_x), self.k(v_x))
        return self.o(attend(*map(heads_of, parts)).transpose(1, 2).flatten(2))


class OneStream(Projected):
    """Takes a second stream, and leaves it alone."""

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """Attend to its own tokens."""
        del context
        return self.inside(x, x, x)


class WithCache(Projected):
    """Plain attention with a cache that no call gives."""

    def forward(self, x: Tensor, inference_params: dict[str, Tensor] | None = None) -> Tensor:
        """Attention of tokens."""
        del inference_params
        return self.inside(x, x, x)


def sees_the_future(
    query: Tensor, key: Tensor, value: Tensor, *, is_causal: bool | None = None
) -> Tensor:
    """Its causal triangle is the wrong way round."""
    ones = torch.ones(query.shape[-2], key.shape[-2]).bool()
    return attend(query, key, value, ones.tril(-1) if is_causal else None)


def kernel(q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None = None) -> Tensor:
    """Attention proper in a function."""
    return attend(q, k, v, None if keep is None else ~keep)


def masked_by_an_object(q: Tensor, k: Tensor, v: Tensor, attn_mask: object) -> Tensor:
    """Attention proper, causal unless it gets an object that holds a mask."""
    hidden = torch.ones(q.shape[-2], k.shape[-2]).triu(1).bool()
    return attend(q, k, v, hidden if attn_mask is None else attn_mask.mask)  # type: ignore[attr-defined]  # it has one


class ForHeadsOf(nn.Module):
    """Without parameters, for heads of the size that it is built for, as tutorials have it."""

    def __init__(self, d_k: int) -> None:
        super().__init__()
        self.d_k = d_k

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Heads ``[B, H, L, D]``."""
        return (q @ k.mT / self.d_k**0.5).softmax(-1) @ v


class Tempered(nn.Module):
    """The same by the root of that size."""

    def __init__(self, temperature: float) -> None:
        super().__init__()
        self.temperature = temperature

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Heads ``[B, H, L, D]``."""
        return (q / self.temperature @ k.mT).softmax(-1) @ v


def of_one_key_head(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Queries ``[B, L, H, D]``; keys and values ``[B, L, D]``, which all heads share."""
    return attend(q.transpose(1, 2), k[:, None], v[:, None]).transpose(1, 2)


def of_turned_keys(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Keys ``[B, H, D, L]``; queries and values ``[B, H, L, D]``."""
    return attend(q, k.mT, v)


class OfOneLength(Projected):
    """Always causal, by a triangle of as many rows as columns."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attention of as many keys as queries."""
        hidden = torch.ones(query.shape[1], query.shape[1]).triu(1).bool()
        parts = map(heads_of, (self.q(query), self.k(key), self.v(value)))
        return self.o(attend(*parts, hidden).transpose(1, 2).flatten(2))


def adds_a_number(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """Attention proper whose hidden logits are lowered by a number."""
    scores = q @ k.mT / q.shape[-1] ** 0.5
    if mask is not None:
        scores = scores - (1.0 - mask.to(scores.dtype)) * 1e9
    return scores.softmax(-1) @ v


class ScaledForOneSize(nn.Module):
    """A tutorial's core: the size of its heads is a number of the file."""

    def forward(self, Q: Tensor, K: Tensor, V: Tensor) -> Tensor:  # noqa: N803 (as tutorials write it)
        """Scale by the root of 64."""
        attended: Tensor = (Q @ K.mT / 8).softmax(dim=-1) @ V
        return attended


class BuiltForOneSize(nn.Module):
    """A core that is built for a head size, whose root is a tensor."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.root = torch.sqrt(torch.tensor([float(dim)]))

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Of heads."""
        attended: Tensor = (query @ key.mT / self.root).softmax(dim=-1) @ value
        return attended


class TwoMasks(Projected):
    """A bias for each head, and a mask ``[B, Lk]``: no shape of masks is common to both."""

    def forward(
        self, x: Tensor, attn_bias: Tensor | None = None, attn_mask: Tensor | None = None
    ) -> Tensor:
        """Add the one, and hide by the other."""
        q, k, v = map(heads_of, (self.q(x), self.k(x), self.v(x)))
        scores = q @ k.mT / q.shape[-1] ** 0.5
        scores = scores if attn_bias is None else scores + attn_bias
        if attn_mask is not None:
            scores = scores.masked_fill(~attn_mask[:, None, None], -torch.inf)
        return self.o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class IdleFlag(Projected):
    """A flag for a path that is not taken here."""

    def forward(self, x: Tensor, is_causal: bool = False) -> Tensor:  # noqa: ARG002, FBT001, FBT002 (as torchscale writes it)
        """Of tokens."""
        return self.inside(x, x, x)


class AheadInAWindow(Projected):
    """A window of three keys and a causal rule that is off by one."""

    def forward(self, x: Tensor) -> Tensor:
        """Of tokens."""
        q, k, v = map(heads_of, (self.q(x), self.k(x), self.v(x)))
        apart = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])
        hidden = (apart < -1) | (apart > 3)
        return self.o(attend(q, k, v, hidden).transpose(1, 2).flatten(2))


class InWindows(Projected):
    """An attention in each window of a picture, whose sides are given; a window of one is none."""

    def __init__(self, embed_dim: int = WIDTH, num_heads: int = HEADS, ws: int = 1) -> None:
        super().__init__(embed_dim, num_heads)
        if ws == 1:
            raise ValueError(ws)
        self.ws = ws

    def forward(self, x: Tensor, size: tuple[int, int]) -> Tensor:
        """Attend in windows, ``[B, windows, H, L, D]``."""
        rows, columns = (side // self.ws for side in size)
        shape = (rows, self.ws, columns, self.ws)
        windows = x.unflatten(1, shape).transpose(2, 3).flatten(3, 4).flatten(1, 2)
        parts = (one(windows).unflatten(-1, (HEADS, -1)).transpose(2, 3) for one in self.parts)
        joined = attend(*parts).transpose(2, 3).flatten(3)
        placed = joined.unflatten(2, (self.ws, self.ws)).unflatten(1, (rows, columns))
        return self.o(placed.transpose(2, 3).reshape(x.shape))

    @property
    def parts(self) -> tuple[nn.Linear, ...]:
        """What makes query, key and value."""
        return self.q, self.k, self.v


class OfPlaces(Projected):
    """The attention of the places of a picture that has its channels last."""

    def forward(self, x: Tensor) -> Tensor:
        """Attend to all places, ``[B, height, width, E]``."""
        _, height, width, _ = x.shape
        tokens = x.flatten(1, 2)
        return self.inside(tokens, tokens, tokens).unflatten(1, (height, width))


class OfPixels(Projected):
    """The attention of a picture's places, channels first, to them and a table of positions.

    The root of the scale is on the queries and on the keys, as in guided diffusion.
    """

    def __init__(self, spacial_dim: int = 3, embed_dim: int = WIDTH) -> None:
        super().__init__(embed_dim)
        self.positions = nn.Parameter(torch.randn(embed_dim, spacial_dim**2 + 1) / embed_dim**0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Attend from all places, ``[B, E, height, width]``, and their mean to these."""
        places = x.flatten(2)
        tokens = (torch.cat([places.mean(-1, keepdim=True), places], -1) + self.positions).mT
        query, key, value = (one(tokens).mT for one in (self.q, self.k, self.v))
        root = (WIDTH // HEADS) ** -0.25
        shape = (-1, WIDTH // HEADS, tokens.shape[1])
        scores = torch.einsum(
            "bct,bcs->bts", (query * root).reshape(shape), (key * root).reshape(shape)
        )
        merged = torch.einsum("bts,bcs->bct", scores.softmax(-1), value.reshape(shape))
        return self.o(merged.reshape(query.shape).mT)[:, 0]


class OfColumns(Projected):
    """Each column of an alignment attends along its rows, ``[rows, columns, B, E]``."""

    def forward(self, x: Tensor) -> Tensor:
        """Items are the third axis: a guess that they come first is wrong."""
        if x.dim() != len("RCBE"):
            raise ValueError(x.shape)
        tokens = x.flatten(1, 2).transpose(0, 1)
        return self.inside(tokens, tokens, tokens).transpose(0, 1).reshape(x.shape)


class CutsItsMask(Projected):
    """A mask ``[L, L]`` that is cut to the tokens, as LLMs-from-scratch does."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """A mask of more axes would be cut along its items and heads."""
        size = x.shape[1]
        query, key, value = (heads_of(one(x)) for one in (self.q, self.k, self.v))
        scores = (query @ key.mT).masked_fill(mask[:size, :size], -torch.inf)
        weights = (scores / key.shape[-1] ** 0.5).softmax(-1)
        return self.o((weights @ value).transpose(1, 2).flatten(2))


class MixesHeads(Projected):
    """Heads whose scores are mixed by weights, as in talking heads."""

    def __init__(self, embed_dim: int = WIDTH, num_heads: int = HEADS) -> None:
        super().__init__(embed_dim, num_heads)
        self.mix = nn.Linear(num_heads, num_heads, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Mix the scores before their softmax."""
        query, key, value = (heads_of(one(x)) for one in (self.q, self.k, self.v))
        scores = query @ key.mT / query.shape[-1] ** 0.5
        mixed = self.mix(scores.movedim(1, -1)).movedim(-1, 1)
        return self.o((mixed.softmax(-1) @ value).transpose(1, 2).flatten(2))


class OneHead(nn.Module):
    """Each head is a module of its own, so that no tensor has an axis of heads."""

    def __init__(self, embed_dim: int = WIDTH) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(embed_dim, embed_dim) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        """Attend to a query's own place and earlier ones, ``[B, L, E]``."""
        later = torch.ones(x.shape[1], x.shape[1]).triu(1).bool()
        return x + attend(self.q(x), self.k(x), self.v(x), later)


class NormedSmall(Projected):
    """Heads of two channels, normalised with torch's own epsilon, which few numbers show."""

    def __init__(self, embed_dim: int = WIDTH, num_heads: int = HEADS * 2) -> None:
        super().__init__(embed_dim, num_heads)
        self.q_norm, self.k_norm = (nn.LayerNorm(embed_dim // num_heads) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        """Attend with normalised queries and keys."""
        query, key, value = (heads_of(one(x), self.num_heads) for one in (self.q, self.k, self.v))
        joined = attend(self.q_norm(query), self.k_norm(key), value)
        return self.o(joined.transpose(1, 2).flatten(2))
