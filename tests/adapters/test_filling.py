"""What modules need besides their tokens is made: masks that hide nothing, tables of positions."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from wrapped import assumed, is_golden

import conformance
from conformance import DeclarationError
from conformance.adapters.calling import ways_to_call
from conformance.adapters.filling import filled
from conformance.adapters.trial import Trial
from conformance.base.parameter_names import option_of, undeclared_options


class Four(nn.Module):
    """Four projections and three heads, which no attribute of a known name says."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.count = 3
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(width, width) for _ in range(4))

    def attend(
        self,
        query: Tensor,
        context: Tensor,
        turn: Callable[[Tensor], Tensor] = lambda heads: heads,
        hide: Callable[[Tensor], Tensor] = lambda logits: logits,
    ) -> Tensor:
        """Attention of ``[B, L, 12]`` with heads that are turned, and logits that are hidden."""
        pairs = ((self.wq, query), (self.wk, context), (self.wv, context))
        q, k, v = (one(tokens).unflatten(-1, (3, -1)).transpose(1, 2) for one, tokens in pairs)
        logits = hide(turn(q) @ turn(k).mT / 2.0)
        answer: Tensor = self.wo((logits.softmax(-1) @ v).transpose(1, 2).flatten(2))
        return answer


def turned(cos: Tensor, sin: Tensor) -> Callable[[Tensor], Tensor]:
    """Pairs of neighbours turned by tables ``[L, D / 2]``."""

    def turn(heads: Tensor) -> Tensor:
        assert cos.shape == (heads.shape[-2], heads.shape[-1] // 2)
        even, odd = heads[..., ::2], heads[..., 1::2]
        return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)

    return turn


class TwoTables(Four):
    """Cosines and sines are arguments."""

    def forward(self, x: Tensor, freqs_cos: Tensor, freqs_sin: Tensor) -> Tensor:
        """Of tokens and tables."""
        return self.attend(x, x, turned(freqs_cos, freqs_sin))


class OneTable(Four):
    """A start and complex numbers are arguments."""

    def forward(self, x: Tensor, start_pos: int, freqs_cis: Tensor) -> Tensor:
        """Of tokens and a table."""
        assert type(start_pos) is int
        return self.attend(x, x, turned(freqs_cis.real, freqs_cis.imag))


class Numbered(Four):
    """The places of the tokens are an argument."""

    def forward(self, hidden: Tensor, position_ids: Tensor) -> Tensor:
        """Of tokens and their places ``[B or 1, L]``."""
        angles = position_ids[0, :, None] * 10000.0 ** (-torch.arange(0, 2).double() / 2)
        tables = angles.cos().to(hidden), angles.sin().to(hidden)
        return self.attend(hidden, hidden, turned(*tables))


class ManyTables(Four):
    """A pair of full tables is an argument that has a default, and is needed."""

    def forward(
        self, hidden: Tensor, position_embeddings: tuple[Tensor, Tensor] | None = None
    ) -> Tensor:
        """Of tokens and a pair of tables ``[B or 1, L, D]``."""
        if position_embeddings is None:
            msg = "positions are needed"
            raise ValueError(msg)
        cos, sin = (table[:, None] for table in position_embeddings)

        def turn(heads: Tensor) -> Tensor:
            first, second = heads.chunk(2, -1)
            return heads * cos + torch.cat([-second, first], -1) * sin

        return self.attend(hidden, hidden, turn)


class PartTables(Four):
    """Tables of the first half of each head's channels are arguments."""

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Of tokens and tables ``[L, D / 2]``."""

        def turn(heads: Tensor) -> Tensor:
            some, rest = heads.chunk(2, -1)
            first, second = some.chunk(2, -1)
            some = some * cos + torch.cat([-second, first], -1) * sin
            return torch.cat([some, rest], -1)

        return self.attend(x, x, turn)


def test_tables_turn_by_distance() -> None:
    """Of two widths that are taken, the tables that turn a part of the channels are made."""
    built = PartTables(width=48)
    way = next(iter(ways_to_call("it", built.forward, None, None)))
    trial = Trial(built, way, batched=True, names=())
    assert trial.settle([(48, 48, 48)], (16,))
    made = filled(trial.calling.fills, [torch.zeros(2, 5, 48)])
    assert torch.equal(made["cos"][..., :4], made["cos"][..., 4:])


@pytest.mark.parametrize(
    ("module", "rotary"),
    [
        (TwoTables(), "interleaved"),
        (OneTable(), "interleaved"),
        (Numbered(), "interleaved"),
        (ManyTables(), "halves"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_tables_of_positions_are_made(module: nn.Module, rotary: str) -> None:
    """They were taken for key and value; the number of heads is found by them, too."""
    candidate = conformance.module(module)
    assert candidate.declaration.inputs == "self"
    assert candidate.declaration.semantics.rotary == rotary
    assert candidate.warnings == ()
    assert assumed(candidate, "3 heads: with these it agrees with the golden reference")
    assert assumed(candidate, "besides its tokens it gets")


class Unknown(Four):
    """A table of a kind that the harness does not make."""

    def forward(self, x: Tensor, rope: dict[str, Tensor]) -> Tensor:
        """Of tokens and a dict."""
        return self.attend(x, x, turned(rope["cos"], rope["sin"]))


def test_what_cannot_be_made_is_named_with_a_call_that_works() -> None:
    """The sentence ends with a call to paste, in which a value is to be written."""
    with pytest.raises(DeclarationError, match=r"Unknown\.forward needs 'rope'") as caught:
        conformance.module(Unknown())
    said = "call=lambda module, query: module(query, rope=None)"
    assert said in str(caught.value)

    def tables(x: Tensor) -> dict[str, Tensor]:
        angles = torch.outer(
            torch.arange(x.shape[1]).double(), 10000.0 ** (-torch.arange(0, 2).double() / 2)
        )
        return {"cos": angles.cos().to(x), "sin": angles.sin().to(x)}

    pasted = conformance.module(
        Unknown(), inputs="self", call=lambda module, query: module(query, rope=tables(query))
    )
    assert pasted.declaration.semantics.rotary == "interleaved"


class Masked(Four):
    """A mask that is needed: None raises. ``shape`` and ``hidden`` say what is taken."""

    def __init__(self, shape: tuple[int, ...], hidden: Any) -> None:
        super().__init__()
        self.shape, self.hidden = shape, hidden

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        """Of tokens and a mask."""
        batch, length, _ = x.shape
        sizes = {1: 1, 2: batch, 5: length}
        assert adjacency.shape == tuple(sizes[one] for one in self.shape)
        mask = adjacency if adjacency.dim() != 3 else adjacency[:, None]
        return self.attend(x, x, hide=lambda logits: logits.masked_fill(mask == self.hidden, -1e9))


@pytest.mark.parametrize("shape", [(5, 5), (2, 5, 5), (2, 1, 5, 5)], ids=str)
@pytest.mark.parametrize("hidden", [0, 1])
def test_a_mask_that_is_needed_hides_nothing(shape: tuple[int, ...], hidden: int) -> None:
    """In the polarity that the module has: of the other one all rows are the same."""
    candidate = conformance.module(Masked(shape, hidden))
    assert candidate.declaration.inputs == "self"
    assert is_golden(candidate)
    made = "new_zeros" if hidden else "new_ones"
    assert assumed(candidate, f"besides its tokens it gets adjacency=query.{made}")


class MemoryFirst(Four):
    """The context stands before the tokens whose number the answer has."""

    def forward(self, memory: Tensor, decoder_input: Tensor) -> dict[str, list[Tensor | None]]:
        """Of context and tokens."""
        return {"hidden": [None, self.attend(decoder_input, memory)]}


class LatentsLast(Four):
    """The tokens may be left out by name alone: a call without them raises."""

    def forward(self, x: Tensor, encoder_hidden_states: Tensor | None = None) -> Tensor:
        """Of tokens and what they attend to."""
        assert encoder_hidden_states is not None
        return self.attend(x, encoder_hidden_states)


@pytest.mark.parametrize(
    "module", [MemoryFirst(), LatentsLast()], ids=lambda one: type(one).__name__
)
def test_inputs_are_taken_in_their_own_order(module: nn.Module) -> None:
    """Which of two is the query is seen in the answer's length, whatever they are called."""
    candidate = conformance.module(module)
    assert candidate.declaration.inputs == "memory"
    assert is_golden(candidate)


class OfLengths(Four):
    """How many keys each item has is needed."""

    def forward(self, x: Tensor, key_lengths: Tensor) -> Tensor:
        """Of tokens and lengths ``[B]``."""
        hidden = torch.arange(x.shape[1]) >= key_lengths[:, None]
        return self.attend(x, x, hide=lambda s: s.masked_fill(hidden[:, None, None], -torch.inf))


def test_lengths_that_are_needed_count_every_key() -> None:
    """They are read as what they are once a call is answered."""
    made = conformance.module(OfLengths(), num_heads=3)
    assert is_golden(made)
    assert assumed(made, "key_lengths=query.new_full((query.shape[0],), key.shape[-2]")


def test_kinds_of_parameters_that_are_not_given() -> None:
    """Caches and further inputs are kinds of their own; a name of a place is one of positions."""

    def forward(
        x: Any,
        context: Any = None,
        inference_params: Any = None,
        layer_past: Any = None,
        *,
        use_cache: bool = False,
        cache_position: Any = None,
        eps: float = 1e-6,
    ) -> None: ...

    signature = inspect.signature(forward)
    options = [option_of(entry) for entry in signature.parameters.values()]
    assert options == ["", "input", "cache", "cache", "cache", "positions", ""]
    named = {entry.name: entry.option for entry in undeclared_options(signature, (), inputs=1)}
    assert named["context"] == "input"
    assert "context" not in {entry.name for entry in undeclared_options(signature, ())}
