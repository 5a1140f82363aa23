"""How a module is called: roles of its parameters by name, or by what it answers."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, pad

from candidates.models.transformer import Encoder, EncoderDecoder, HidingEncoder, Shape
from conformance import UsageError
from conformance.models import torch_inputs
from conformance.models.model_inputs import UnknownInputError
from conformance.models.torch_inputs import torch_calling


class Positional(nn.Module):
    """A forward that names nothing."""

    def forward(self, *inputs: Tensor) -> Tensor:
        """As a module is called."""
        return inputs[0]


class Unanswered(nn.Module):
    """Refuses every call."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        """As a module is called."""
        msg = f"no {x.dim()}"
        raise ValueError(msg)


def roles(module: nn.Module) -> list[tuple[str, str, int | None]]:
    calling, _ = torch_calling(module.eval(), {})
    return [(entry.name, entry.role, entry.along) for entry in calling.inputs]


def test_ids_and_masks_are_known_by_name() -> None:
    """And the number of ids by the table that they choose from."""
    calling, _ = torch_calling(Encoder(Shape()).eval(), {})
    assert [(entry.role, entry.count) for entry in calling.inputs] == [("tokens", 40), ("mask", 0)]


def test_a_mask_of_any_name_is_known_by_its_effect() -> None:
    """A second tensor that chooses no row of a table, and changes answers as a mask."""
    assert roles(HidingEncoder(Shape()))[1] == ("hidden", "mask", 0)


def test_the_sequence_that_attends_is_the_second() -> None:
    """By its name."""
    assert roles(EncoderDecoder(Shape()))[2] == ("decoder_ids", "tokens", 1)


@pytest.mark.parametrize("batch_first", [True, False])
def test_torchs_own_layer_takes_features_and_a_padding_mask(
    batch_first: bool,  # noqa: FBT001 (a parameter)
) -> None:
    """In both orders of its axes, of the width of its weights."""
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=batch_first).eval()
    calling, _ = torch_calling(layer, {})
    assert calling.sequence_first is not batch_first
    features, mask = calling.inputs
    assert (features.role, features.shape[-1]) == ("features", 16)
    assert (mask.name, mask.role, mask.hides) == ("src_key_padding_mask", "mask", True)


class Blocks(nn.Module):
    """Fills its ids up to whole blocks; its last ids have meanings of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(30, 4)
        self.config = SimpleNamespace(pad_token_id=1, bos_token_id=0)

    def forward(self, input_ids: Tensor) -> Tensor:
        """``[B, L]`` to ``[B, 8 n, E]``."""
        answer: Tensor = self.table(pad(input_ids, (0, -input_ids.shape[1] % 8)))
        return answer


def test_ids_that_a_model_fills_up_itself_choose_from_its_table() -> None:
    """As of Longformer, whose sequences are whole windows."""
    calling, _ = torch_calling(Blocks().eval(), {})
    assert [(entry.role, entry.count) for entry in calling.inputs] == [("tokens", 30)]


class Sound(nn.Module):
    """Takes a sound without an axis for its one channel."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(1, 4, 10, 5)

    def forward(self, input_values: Tensor) -> Tensor:
        """``[B, T]`` to ``[B, L, E]``."""
        answer: Tensor = self.first(input_values[:, None]).mT
        return answer


def test_a_sound_of_one_channel_may_have_no_axis_for_it() -> None:
    """It is floats of some duration, as of wav2vec 2."""
    calling, _ = torch_calling(Sound().eval(), {})
    assert [(entry.role, len(entry.shape)) for entry in calling.inputs] == [("image", 2)]


class Placed(nn.Module):
    """Adds a number for each of eleven by eleven places to a picture."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 1)
        self.places = nn.Parameter(torch.rand(4, 121))

    def forward(self, x: Tensor) -> Tensor:
        """``[B, 3, 11, 11]`` to ``[B, 121, 4]``."""
        answer: Tensor = self.first(x).flatten(2) + self.places
        return answer.mT


def test_a_table_by_place_tells_the_sides_of_a_picture() -> None:
    """Pictures of other sides are refused."""
    calling, _ = torch_calling(Placed().eval(), {})
    assert calling.inputs[0].shape[-2:] == (11, 11)


def test_what_is_declared_is_taken() -> None:
    """A vocabulary, in place of the one of the table."""
    declared = {"input_ids": {"role": "tokens", "vocabulary": 7}}
    calling, _ = torch_calling(Encoder(Shape()).eval(), declared)
    assert calling.inputs[0].count == 7


@pytest.mark.parametrize(
    ("declared", "sentence"),
    [
        ({"tokens": {"role": "tokens"}}, "lacks: it has input_ids, attention_mask"),
        ({"input_ids": {"role": "words"}}, "role is 'words', which is unknown"),
    ],
)
def test_a_wrong_declaration_is_refused(declared: dict[str, dict[str, str]], sentence: str) -> None:
    """An unknown parameter, an unknown role."""
    with pytest.raises(UsageError, match=sentence):
        torch_calling(Encoder(Shape()).eval(), declared)


@pytest.mark.parametrize(
    ("module", "reason"),
    [(Positional(), "names no input"), (Unanswered(), "no call of it is answered: .* no [0-9]")],
)
def test_a_module_that_nobody_can_call_says_why(module: nn.Module, reason: str) -> None:
    """With the first refusal, and what to declare."""
    with pytest.raises(UnknownInputError, match=reason):
        torch_calling(module, {})


def test_features_reach_a_module_in_its_own_format() -> None:
    """Drawn in float32, handed over in float64 where its weights are."""
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).double().eval()
    calling, made = torch_calling(layer, {})
    assert calling.dtype == torch.float64
    assert made.values[0].tensor.dtype == torch.float64


class Masked(nn.Module):
    """Tokens under a mask; ``answer`` says what comes of them."""

    def __init__(self, answer: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.table, self.answer = nn.Embedding(9, 4), answer

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Any:
        """As a model is called."""
        states = self.table(input_ids)
        if attention_mask is None:
            return states
        return self.answer(states, attention_mask)


def refusing(states: Tensor, mask: Tensor) -> Tensor:
    if not mask.all():
        msg = "no padding"
        raise ValueError(msg)
    return states


def named_by_mask(states: Tensor, mask: Tensor) -> dict[str, Tensor]:
    return {"plain" if mask.all() else "padded": states}


@pytest.mark.parametrize("answer", [refusing, named_by_mask])
def test_a_mask_that_is_refused_or_names_other_answers_shows(answer: Callable[..., Any]) -> None:
    """It is an input of the model, which shall be asked about it."""
    assert [role for _, role, _ in roles(Masked(answer))] == ["tokens", "mask"]


class Adding(nn.Module):
    """Features under a mask that is added to scores."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Linear(6, 6)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """As a block is called."""
        states = self.matrix(x)[:, None]
        return x + ((states @ states.mT + mask).softmax(-1) @ states)[:, 0]


def test_a_mask_that_is_added_hides() -> None:
    """One of zeros and ones changes answers, too, and hides no token."""
    calling, _ = torch_calling(Adding(), {})
    (mask,) = (entry for entry in calling.inputs if entry.role == "mask")
    assert mask.added
    assert mask.mask(np.array([[True, False]])).tolist() == [
        [[[0.0, float(np.finfo(np.float32).min)]]]
    ]


class ChannelsFirst(nn.Module):
    """Attention over ``[B, C, L]``, whose numbers look like widths of tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.dim, self.heads = 4, 3
        self.proj = nn.ModuleList([nn.Conv1d(12, 12, 1) for _ in range(3)])

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Of three inputs."""
        q, k, v = (
            proj(one).unflatten(1, (self.dim, self.heads)).permute(0, 2, 3, 1)
            for proj, one in zip(self.proj, (query, key, value), strict=True)
        )
        mixed: Tensor = (q @ k.mT / self.dim**0.5).softmax(-1) @ v
        return mixed.permute(0, 3, 1, 2).flatten(1, 2)


def test_inputs_of_one_meaning_are_tried_first() -> None:
    """Query, key and value with channels first are found among few trials."""
    calling, _ = torch_calling(ChannelsFirst().eval(), {})
    assert {entry.shape for entry in calling.inputs} == {("batch", 12, 40)}


class Slow(nn.Module):
    """Refuses every call after some work."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.calls = nn.Embedding(9, 4), 0

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        """As a module is called."""
        self.calls += 1
        ends = time.process_time() + 0.02
        while time.process_time() < ends:
            pass
        msg = f"never {one.dim()} {other.dim()}"
        raise ValueError(msg)


def test_trials_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them together take so long, and the sentence says that not all were made."""
    monkeypatch.setattr(torch_inputs, "_SECONDS", 0.1)
    module = Slow()
    with pytest.raises(UnknownInputError, match=r"never .*, and there was time for some"):
        torch_calling(module, {})
    assert module.calls < 10


class Looked(nn.Module):
    """Tokens whose rows of a table a function looks up."""

    def __init__(self, look: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.table, self.look = nn.Parameter(torch.randn(9, 4)), look
        self.config = SimpleNamespace(pad_token_id=8, bos_token_id=1)

    def forward(self, input_ids: Tensor) -> Tensor:
        """As a model is called."""
        return self.look(self.table, input_ids)


@pytest.mark.parametrize(
    "look",
    [
        torch.embedding,
        lambda table, ids: embedding(ids.T.contiguous(), table).transpose(0, 1),
        lambda table, ids: table[ids],
        lambda table, ids: table.index_select(0, ids.reshape(-1)).unflatten(0, ids.shape),
    ],
    ids=["table first", "ids turned", "index", "in one row"],
)
def test_a_table_is_known_however_it_is_looked_up(look: Callable[[Tensor, Tensor], Tensor]) -> None:
    """The number of ids is that of its rows, but for the last, which means padding."""
    calling, _ = torch_calling(Looked(look).eval(), {})
    assert calling.inputs[0].count == 8


def test_tokens_are_never_all_the_same() -> None:
    """Where no table is seen there are two ids, whatever the second of them means."""
    calling, _ = torch_calling(Looked(lambda table, ids: ids[..., None] * table[0]).eval(), {})
    assert calling.inputs[0].count == 2


class Turned(nn.Module):
    """A block whose queries and keys are turned by a required table; its mask may be None."""

    def __init__(self) -> None:
        super().__init__()
        self.n_heads = 2
        self.qkv, self.norm = nn.Linear(16, 48), nn.LayerNorm(16)

    def forward(self, x: Tensor, encoding: Tensor, mask: Tensor | None) -> Tensor:
        """Of tokens; the table holds cosines and sines."""
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        q, k = (part * encoding[0] + part.roll(4, -1) * encoding[1] for part in (q, k))
        logits = q @ k.mT / 8**0.5
        heads = (logits if mask is None else logits + mask).softmax(-1) @ v
        return x + heads.transpose(1, 2).flatten(2)


def test_tables_of_positions_are_made_for_tokens() -> None:
    """Of the size of its heads, for calls of any length; masks are given where one is taken."""
    calling, _ = torch_calling(Turned().eval(), {})
    assert [entry.role for entry in calling.inputs] == ["features", "mask"]
    for length in (5, 9):
        feeds = {
            entry.name: entry.drawn(2, length, None, np.random.default_rng(0))
            for entry in calling.inputs
        }
        cos, sin = calling.arguments(feeds)["encoding"]
        assert cos.shape == sin.shape == (length, 8)


class OfSeveral(nn.Module):
    """A block that adds each of a list of biases to its logits."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.norm = nn.Linear(16, 48), nn.LayerNorm(16)

    def forward(self, x: Tensor, biases: list[Tensor] | None = None) -> Tensor:
        """Of tokens."""
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        return x + (q @ k.mT / 4 + sum(biases or [])).softmax(-1) @ v


def test_one_tensor_is_no_list_of_them() -> None:
    """Its items would be taken for the biases of all."""
    calling, _ = torch_calling(OfSeveral().eval(), {})
    assert [entry.name for entry in calling.inputs] == ["x"]


class OfOneLetter(nn.Module):
    """Its tokens are called as a side of a picture may be."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, w: Tensor) -> Tensor:
        """As a module is called."""
        return self.linear(w) * 1.0


def test_what_is_called_as_a_side_may_be_tokens() -> None:
    """Where nothing else is."""
    calling, _ = torch_calling(OfOneLetter(), {})
    assert [entry.role for entry in calling.inputs] == ["features"]
