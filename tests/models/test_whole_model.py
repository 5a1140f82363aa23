"""A whole model that runs: its sizes, the axes of its answers, and calls with changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from torch import Tensor

from candidates.exports import Input, Source, by_tracing
from candidates.models.transformer import Encoder, Shape
from candidates.models.wrong_models import WRONG
from conformance.graphs.process import Setting
from conformance.models.candidates import describe_sites
from conformance.models.model_inputs import ATTENDING, ITEM, PADDED
from conformance.models.opening import open_model
from conformance.models.sites import find_sites
from conformance.models.whole_model import WholeModel


def opened(path: Path) -> WholeModel:
    """The model in a file."""
    sites = find_sites(path)
    return open_model(sites, describe_sites(sites), {})


@pytest.fixture
def encoder(export_of: Callable[..., Path]) -> WholeModel:
    return opened(export_of("encoder"))


def test_its_answers_have_letters(export_of: Callable[..., Path], encoder: WholeModel) -> None:
    """Items, tokens of the one or the other sequence, and channels."""
    assert encoder.outputs == {"answer": f"{ITEM}{PADDED}."}
    assert opened(export_of("encoder-decoder")).outputs == {"answer": f"{ITEM}{ATTENDING}."}


def test_lengths_end_with_the_table_of_positions(encoder: WholeModel) -> None:
    """32 places are stored: 34 tokens are refused, and that is no fault."""
    assert encoder.taken == {"length": (1, 2, 3, 5, 8, 13, 21)}
    assert encoder.refused == ()
    assert encoder.takes(3, (21, 21))
    assert not encoder.takes(3, (34, 34))


@pytest.mark.parametrize(
    ("name", "axis", "taken"),
    [("baked-batch", "batch", (2,)), ("baked-length", "length", (5,))],
)
def test_sizes_that_are_baked_in_are_found(
    name: str, axis: str, taken: tuple[int, ...], tmp_path: Path
) -> None:
    """The file leaves them open: each other one is refused with the runtime's reason."""
    made = opened(by_tracing(WRONG[name].source, tmp_path / "m.onnx"))
    assert made.taken[axis] == taken
    assert {entry.axis for entry in made.refused} == {axis}
    assert all(entry.message.startswith(("says: ", "answers a batch")) for entry in made.refused)


def test_an_answer_of_another_length_is_a_refusal(tmp_path: Path) -> None:
    """One token is answered with five: broadcasting hides that five positions were traced."""
    made = opened(by_tracing(WRONG["baked-places"].source, tmp_path / "m.onnx"))
    assert made.taken["length"] == (5,)
    said = {entry.size: entry.message for entry in made.refused}
    assert "of length 1 with answer of the shape [2, 5, 16]" in said[1]


def test_calls_are_changed_where_it_is_said(encoder: WholeModel) -> None:
    """Tokens, mask, items and length; the rest stays."""
    keep = np.array([[True, True, False], [True, True, True]])
    call = encoder.call(2, (3, 3), keep, 1)
    ids = call.feeds["input_ids"]
    changed = encoder.with_tokens(call, ~keep, 2).feeds["input_ids"]
    np.testing.assert_array_equal(ids != changed, ~keep)
    np.testing.assert_array_equal(call.feeds["attention_mask"], keep)
    np.testing.assert_array_equal(encoder.items(call, [1, 0]).feeds["input_ids"], ids[::-1])
    cut = encoder.cut(call, slice(0, 2))
    assert (cut.batch, cut.lengths) == (2, (2, 2))
    np.testing.assert_array_equal(cut.feeds["input_ids"], ids[:, :2])


def test_nudged_weights_move_the_answer_by_roundings(encoder: WholeModel) -> None:
    """By some units in the last place, otherwise for each seed, and the same again."""
    call = encoder.call(2, (5, 5), None, 1)
    plain = encoder.run(call)["answer"]
    nudged = [encoder.run(call, setting=Setting(nudge=seed))["answer"] for seed in (1, 2, 1)]
    for answer in nudged:
        assert 0 < np.abs(answer - plain).max() < 1e-4
    assert np.abs(nudged[0] - nudged[1]).max() > 0
    np.testing.assert_array_equal(nudged[0], nudged[2])


@pytest.mark.parametrize(("name", "hides"), [("encoder", False), ("encoder-hiding", True)])
def test_the_polarity_of_a_mask_is_seen(
    name: str,
    hides: bool,  # noqa: FBT001 (a parameter)
    export_of: Callable[..., Path],
) -> None:
    """Whether its ones keep or hide, whatever its name says; what is declared is taken."""
    path = export_of(name)
    (mask,) = [entry for entry in opened(path).inputs if entry.role == "mask"]
    assert mask.hides is hides
    sites = find_sites(path)
    for role in ("mask", "padding"):
        declared = {mask.name: {"role": role}}
        model = open_model(sites, describe_sites(sites), declared)
        (known,) = [entry for entry in model.inputs if entry.role == "mask"]
        assert known.hides is (role == "padding")


class AddedEncoder(Encoder):
    """The same with a mask that is added to the scores."""

    def forward(self, input_ids: Tensor, added: Tensor) -> Tensor:
        """Ids and a mask ``[B, L]``, 0 for what exists, become ``[B, L, E]``."""
        result: Tensor = self.tower(input_ids, added[:, None, None, :])
        return result


def test_a_mask_that_is_added_is_given_as_such(tmp_path: Path) -> None:
    """Ones and zeros hide nothing there: the least number hides, and a warning says so."""
    axes = ("batch", "tokens")
    source = Source(
        name="encoder-added",
        module=AddedEncoder(Shape()).eval(),
        inputs=(
            Input(name="input_ids", axes=axes, kind="ids"),
            Input(name="zebra", axes=axes, kind="floats"),
        ),
        outputs={"answer": (*axes, "width")},
    )
    made = opened(by_tracing(source, tmp_path / "added.onnx"))
    (mask,) = [entry for entry in made.inputs if entry.role == "mask"]
    assert (mask.name, mask.added, mask.hides) == ("zebra", True, False)
    assert made.warnings[0].startswith("zebra is added to the scores: 0 stands for a token")


def test_a_model_is_no_function(encoder: WholeModel) -> None:
    """Who calls it as one is told so."""
    with pytest.raises(TypeError, match="called by its clauses alone"):
        encoder(1)
