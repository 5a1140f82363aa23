"""What the inputs of a whole model are: by name, type and rank, or as they are declared."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from little_graphs import FLOAT, model, node, saved, tensor
from onnx import TensorProto

from conformance.errors import UsageError
from conformance.models.model_graph import ModelGraph, read_graph
from conformance.models.model_inputs import (
    ModelInput,
    UnknownInputError,
    model_inputs,
    sized_pictures,
)

TABLE = tensor("table", np.zeros((23, 4), np.float32))
IDS = ("input_ids", TensorProto.INT64, ["b", "s"])
Inputs = tuple[tuple[str, int, list[Any]], ...]


def graph(tmp_path: Path, *inputs: tuple[str, int, list[Any]]) -> ModelGraph:
    """A graph with some inputs that looks up ``input_ids`` where there are any."""
    names = [name for name, _, _ in inputs]
    looked_up = "table input_ids" if "input_ids" in names else f"table {names[0]}"
    nodes = [node("Gather", looked_up, "answer")]
    answer = ("answer", FLOAT, None)
    made = model(nodes, inputs=inputs, outputs=(answer,), tensors=[TABLE])
    return read_graph(saved(made, tmp_path / "m.onnx"))


def found(
    tmp_path: Path, *inputs: tuple[str, int, list[Any]], declared: Mapping[str, Any] | None = None
) -> dict[str, ModelInput]:
    """The inputs by name."""
    return {one.name: one for one in model_inputs(graph(tmp_path, *inputs), declared or {})}


ROLES = {
    "mask": ("attention_mask", TensorProto.INT64, ["b", "s"]),
    "positions": ("position_ids", TensorProto.INT64, ["b", "s"]),
    "types": ("token_type_ids", TensorProto.INT64, ["b", "s"]),
    "features": ("audio", FLOAT, ["b", "s", 8]),
    "image": ("pixel_values", FLOAT, ["b", 3, 16, 16]),
}


@pytest.mark.parametrize("role", ROLES)
def test_an_input_is_known_by_its_name_and_shape(role: str, tmp_path: Path) -> None:
    """Next to ids, each kind of input that exporters write."""
    inputs = found(tmp_path, IDS, ROLES[role])
    assert inputs["input_ids"].role == "tokens"
    assert inputs["input_ids"].count == 23
    assert inputs[ROLES[role][0]].role == role


def test_a_mask_of_padding_is_known_by_its_name(tmp_path: Path) -> None:
    """True in it hides, as in torch's own modules."""
    mask = found(tmp_path, IDS, ("key_padding_mask", TensorProto.BOOL, ["b", "s"]))
    keep = np.array([[True, False]])
    drawn = mask["key_padding_mask"].drawn(1, 2, keep, np.random.default_rng(0))
    np.testing.assert_array_equal(drawn, ~keep)


def test_what_is_drawn_fits(tmp_path: Path) -> None:
    """Ids below the rows of their table, a mask of what exists, positions in their order."""
    inputs = found(tmp_path, IDS, *ROLES.values())
    generator = np.random.default_rng(0)
    keep = np.array([[True, True, False], [True, False, False]])
    drawn = {name: one.drawn(2, 3, keep, generator) for name, one in inputs.items()}
    assert drawn["input_ids"].shape == (2, 3)
    assert 4 <= drawn["input_ids"].min() <= drawn["input_ids"].max() < 23
    np.testing.assert_array_equal(drawn["attention_mask"], keep)
    np.testing.assert_array_equal(drawn["position_ids"], [[0, 1, 2]] * 2)
    assert not drawn["token_type_ids"].any()
    assert drawn["audio"].shape == (2, 3, 8)
    assert drawn["pixel_values"].shape == (2, 3, 16, 16)


def test_caches_begin_empty(tmp_path: Path) -> None:
    """Their axis without a size counts past tokens, of which there are none at first."""
    cache = found(tmp_path, IDS, ("past_key_values.0.key", FLOAT, ["b", 2, "p", 4]))
    drawn = cache["past_key_values.0.key"].drawn(3, 5, None, np.random.default_rng(0))
    assert (cache["past_key_values.0.key"].role, drawn.shape) == ("past", (3, 2, 0, 4))


def test_a_past_that_is_not_handed_on_is_a_memory(tmp_path: Path) -> None:
    """An encoder's keys have the mask's length; a flag says whether a cache is there."""
    heads: list[Any] = ["b", 2, "p", 4]
    inputs = (
        IDS,
        ("encoder_attention_mask", TensorProto.INT64, ["b", "e"]),
        ("past.0.decoder.key", FLOAT, heads),
        ("past.0.encoder.key", FLOAT, ["b", 2, "e", 4]),
        ("use_cache_branch", TensorProto.BOOL, [1]),
    )
    nodes = [node("Gather", "table input_ids", "answer"), node("Identity", inputs[2][0], "present")]
    nodes[1].output[0] = "present.0.decoder.key"
    outputs = (("answer", FLOAT, None), ("present.0.decoder.key", FLOAT, None))
    made = model(nodes, inputs=inputs, outputs=outputs, tensors=[TABLE])
    entries = {e.name: e for e in model_inputs(read_graph(saved(made, tmp_path / "m.onnx")), {})}
    assert [(e.role, e.along) for e in entries.values()] == [
        *(("tokens", 1), ("mask", 0), ("past", None), ("memory", 0), ("flag", None))
    ]
    memory = entries["past.0.encoder.key"].drawn(3, 5, None, np.random.default_rng(0))
    assert memory.shape == (3, 2, 5, 4)
    assert memory.any()


def test_lengths_and_masks_of_pixels_are_given(tmp_path: Path) -> None:
    """As many tokens as exist; every pixel."""
    pixels = ("pixel_mask", TensorProto.INT64, ["b", 4, 4])
    inputs = found(tmp_path, IDS, ("input_lengths", TensorProto.INT64, ["b"]), pixels)
    keep = np.array([[True, True, False], [True, False, False]])
    drawn = {name: one.drawn(2, 3, keep, np.random.default_rng(0)) for name, one in inputs.items()}
    np.testing.assert_array_equal(drawn["input_lengths"], [2, 1])
    assert drawn["pixel_mask"].shape == (2, 4, 4)
    assert drawn["pixel_mask"].all()


def test_ids_that_the_model_compares_with_are_not_drawn(tmp_path: Path) -> None:
    """Such as the end of a text, by whose place an answer is chosen."""
    nodes = [node("Gather", "table input_ids", "answer"), node("Equal", "input_ids end", "ends")]
    tensors = [TABLE, tensor("end", np.array(20, np.int64))]
    made = model(nodes, inputs=(IDS,), outputs=(("answer", FLOAT, None),), tensors=tensors)
    (entry,) = model_inputs(read_graph(saved(made, tmp_path / "m.onnx")), {})
    ids = entry.ids((50, 20), np.random.default_rng(0))
    assert (ids.min(), ids.max()) == (4, 19)


def test_other_tokens_are_others(tmp_path: Path) -> None:
    """No id stays, and none becomes one with a meaning of its own."""
    tokens = found(tmp_path, IDS)["input_ids"]
    generator = np.random.default_rng(0)
    ids = tokens.ids((50, 20), generator)
    other = tokens.other(ids, generator)
    assert (ids != other).all()
    assert 4 <= other.min() <= other.max() < 23


def test_two_sequences_are_told_apart(tmp_path: Path) -> None:
    """By the names of their axes; the one that a mask pads comes first."""
    decoder = ("decoder_input_ids", TensorProto.INT64, ["b", "d"])
    inputs = found(tmp_path, decoder, IDS, ROLES["mask"])
    assert inputs["input_ids"].along == inputs["attention_mask"].along == 0
    assert inputs["decoder_input_ids"].along == 1


UNKNOWN: dict[str, tuple[Inputs, str]] = {
    "caches of two lengths": (
        (IDS, ("past_key_values.0.key", FLOAT, ["b", 2, "p", "q"])),
        "no one axis of its input past_key_values.0.key counts the past tokens",
    ),
    "a flag": ((IDS, ("use_cache", TensorProto.BOOL, [1])), "use_cache"),
    "a picture of no name": ((("x", FLOAT, ["b", 5, "h", "w"]),), "what its input x is"),
    "text": ((("text", TensorProto.STRING, ["b"]),), "what its input text is"),
    "mask alone": ((ROLES["mask"],), "none of its inputs holds tokens"),
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_what_nothing_describes_is_said(case: str, tmp_path: Path) -> None:
    """One clause of a sentence, with the input."""
    inputs, text = UNKNOWN[case]
    with pytest.raises(UnknownInputError, match=text):
        found(tmp_path, *inputs)


PICTURE = ("pixel_values", FLOAT, ["b", "c", "h", "w"])


def test_a_picture_of_any_size_gets_one_that_is_answered(tmp_path: Path) -> None:
    """The first of the common ones; where none is answered, it says how sizes are declared."""
    inputs = model_inputs(graph(tmp_path, PICTURE), {})
    (sized,) = sized_pictures(inputs, lambda tried: tried[0].shape[1:] == (1, 28, 28))
    assert (sized.role, sized.shape) == ("image", ("b", 1, 28, 28))
    with pytest.raises(
        UnknownInputError, match=r"\[inputs.pixel_values\] with role = \"image\" and"
    ):
        sized_pictures(inputs, lambda _tried: False)


def test_a_sound_of_any_duration_gets_one_that_is_answered(tmp_path: Path) -> None:
    """Without an axis for its channel, as of wav2vec 2."""
    inputs = model_inputs(graph(tmp_path, ("input_values", FLOAT, ["b", "t"])), {})
    (sized,) = sized_pictures(inputs, lambda tried: tried[0].shape[1] == 400)
    assert (sized.role, sized.shape) == ("image", ("b", 400))


def test_declared_sizes_fill_what_the_file_leaves_open(tmp_path: Path) -> None:
    """And contradict none that it says."""
    declared = {"pixel_values": {"role": "image", "shape": [3, 20, 20]}}
    assert found(tmp_path, PICTURE, declared=declared)["pixel_values"].shape == ("b", 3, 20, 20)
    features = {"x": {"role": "features", "shape": [8]}}
    assert found(tmp_path, ("x", FLOAT, ["b", "s", "e"]), declared=features)["x"].shape[2] == 8
    with pytest.raises(
        UsageError, match=r"\['b', 3, 16, 16\], which the shape \[3, 20, 20\] does not"
    ):
        found(tmp_path, ROLES["image"], declared=declared)


def test_a_declaration_comes_first(tmp_path: Path) -> None:
    """Its role and its number of ids; a name that is not there is refused."""
    declared = {"numbers": {"role": "tokens", "vocabulary": 9}}
    inputs = found(tmp_path, ("numbers", TensorProto.INT64, ["b", "s"]), declared=declared)
    assert (inputs["numbers"].role, inputs["numbers"].count) == ("tokens", 9)
    with pytest.raises(UsageError, match="input_ids cannot be features: it has 2 axes of int64"):
        found(tmp_path, IDS, declared={"input_ids": {"role": "features"}})
    with pytest.raises(UsageError, match="names the input 'other', which the model lacks: it has"):
        found(tmp_path, IDS, declared={"other": {"role": "mask"}})
