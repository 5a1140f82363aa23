"""What is found of undeclared attention is true, whatever it is called and however it lies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from identified import record
from torch import Tensor

from conformance import Semantics
from conformance._golden import golden
from conformance.identification.investigation import other_readings
from conformance.identification.job import find_positions
from conformance.identification.record import Findings


def value(name: str, fact: str) -> Any:
    """The value of one fact."""
    return {entry["fact"]: entry["value"] for entry in record(name)["facts"]}[fact]


@pytest.mark.parametrize(
    ("name", "inputs", "axes"),
    [
        ("token_attention", "self", "BLE"),
        ("unbatched_attention", "self", "LE"),
        ("valid_length_attention", "separate", "BLE"),
        ("wide_head_attention", "separate", "BLE"),
        ("masked_attention", "separate", "BLE"),
        ("torch_batch_first", "separate", "BLE"),
        ("torch_sequence_first", "separate", "LBE"),
        ("tokens_first", "separate", "BLHD"),
        ("value_before_key", "separate", "BHLD"),
        ("one_head", "separate", "LD"),
        ("side_by_side", "separate", "BLE"),
    ],
)
def test_inputs_and_order_of_axes(name: str, inputs: str, axes: str) -> None:
    """Inputs and the order of axes are those in which the answers are golden."""
    assert record(name)["identified"], record(name)["reason"]
    assert (value(name, "inputs"), value(name, "axes")) == (inputs, axes)


@pytest.mark.parametrize(
    ("name", "mask", "form", "shapes"),
    [
        ("tokens_first", "mask key_padding_mask (bool)", "drop", ["BK"]),
        ("valid_length_attention", "mask valid_lens (lengths)", "lengths", ["B", "BQ"]),
        ("folded_heads", "mask valid_lens (lengths)", "lengths", ["B"]),
        ("padded_causal", "mask padding_mask (bool)", "keep", ["BK"]),
        ("torch_sequence_first", "mask attn_mask (bool)", "drop", ["QK", "BHQK"]),
        ("torch_sequence_first", "mask attn_mask (additive float)", "bias", ["QK", "BHQK"]),
        ("torch_sequence_first", "mask key_padding_mask (bool)", "drop", ["BK"]),
    ],
)
def test_forms_and_shapes_of_masks(name: str, mask: str, form: str, shapes: list[str]) -> None:
    """A mask's polarity and the shapes that its parameter takes are found by calling."""
    result = value(name, mask)
    assert (result["form"], result["shapes"]) == (form, shapes)


def test_a_declaration_has_the_sizes_that_answers_ask() -> None:
    """A rate of dropout, or the axis of a softmax, is no size of heads."""
    assert "geometry" not in record("folded_heads")["declaration"]


def test_a_mask_that_makes_calls_causal_is_no_lengths() -> None:
    """Lengths that grow by one a row would be the triangle, too."""
    facts = {entry["fact"] for entry in record("causal_with_mask")["facts"]}
    assert "mask mask (bool)" in facts
    assert "mask mask (lengths)" not in facts


def test_integers_are_a_form_of_their_own() -> None:
    """A mask that is compared with 0 takes bools and integers, and 0 ignores in both."""
    assert value("masked_attention", "mask mask (bool)")["form"] == "keep"
    assert value("masked_attention", "mask mask (int)")["form"] == "keep_int"


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("valid_length_attention", "mean-of-all"),
        ("masked_attention", "mean-of-all"),
        ("torch_batch_first", "nan"),
        ("tokens_first", "nan"),
        ("value_before_key", "zeros"),
    ],
)
def test_empty_rows(name: str, rule: str) -> None:
    """What a query without keys returns is told by its rule."""
    assert value(name, "empty rows") == rule


@pytest.mark.parametrize(
    ("name", "fill"), [("valid_length_attention", -1e6), ("masked_attention", -1e9)]
)
def test_fills(name: str, fill: float) -> None:
    """The number that hidden logits become is found from where hidden keys begin to win."""
    assert value(name, "hidden keys")["fill"] == fill


@pytest.mark.parametrize(
    ("name", "rule", "factor"),
    [
        ("one_head", "none", 1.0),
        ("half_scale", "inverse-sqrt-head-size", 0.5),
        ("fixed_scale", 0.125, 1.0),
        ("token_attention", "inverse-sqrt-head-size", 1.0),
    ],
)
def test_scales(name: str, rule: str | float, factor: float) -> None:
    """Rules are told from numbers, and a number from a factor, on probes of two head sizes."""
    result = value(name, "scale")
    assert (result["rule"], result["factor"]) == (rule, factor)


def test_sizes_that_cannot_tell_are_said() -> None:
    """With one head the scales 1 and 1/sqrt(heads) are the same: both are named."""
    assert "inverse-sqrt-num-heads" in value("one_head", "alternatives")


def test_keywords_that_carry_numbers() -> None:
    """A scale under another name is found, and weights that always come along."""
    result = value("tokens_first", "scale keyword")
    assert result == {"parameter": "softmax_scale", "gives": "scale"}
    assert value("tokens_first", "weights") == {"averaged": False}


def test_causality() -> None:
    """A flag's alignment is found; causality that nothing turns off is found and declared."""
    assert value("tokens_first", "causal")["alignment"] == "bottom-right"
    assert value("always_causal", "causal")["alignment"] == "top-left"
    assert record("always_causal")["beyond"] == []
    assert "causal='top-left'" in record("always_causal")["declaration"]
    assert "always_causal=True" in record("always_causal")["declaration"]


def test_causality_of_a_language_model() -> None:
    """Self-attention that is always causal is found; no alignment could show."""
    result = value("language_model", "causal")
    assert (result["always"], result["alignment"]) == (True, None)


def test_the_output_in_a_dict() -> None:
    """A function that returns a dict is called by an adapter that takes the tensor out."""
    assert value("in_a_dict", "kind")["kind"] == "core"
    assert "answer['output']" in record("in_a_dict")["declaration"]


def test_shared_heads() -> None:
    """Tiled key/value heads are told from repeated ones."""
    assert value("grouped", "groups") == "tile"


def test_biases_and_dtypes() -> None:
    """Biases that are not there are missed, and a dtype whose masks overflow is left out."""
    assert not any(value("valid_length_attention", "biases").values())
    dtypes = value("masked_attention", "dtypes")
    assert dtypes["float64"]
    assert not dtypes["float16"]


def test_a_factory_is_called() -> None:
    """What a function without arguments returns is what is identified."""
    assert value("factory", "kind")["kind"] == "layer"
    assert "factory()" in record("factory")["declaration"]


def test_mistakes_are_said_and_the_standard_is_declared() -> None:
    """What only mistakes do is named with its fix and kept in comments, but not promised.

    A fill that published models were trained with is a choice.
    """
    result = record("mistaken")
    said = {entry["observed"]: entry for entry in result["deviations"]}
    wanted = ["scale='inverse-head-size'", "head_merge='reinterpret'"]
    assert sorted(said) == sorted([*wanted, "mask_fill=-10000"])
    assert all(said[words]["mistaken"] and said[words]["fix"] for words in wanted)
    assert not said["mask_fill=-10000"]["mistaken"]
    promised = result["declaration"].partition("import conformance")[2]
    assert "semantics=conformance.STANDARD.replace(mask_fill=-10000)" in promised
    assert "expected_failures=" not in promised
    assert all(f"#   Observed: {words}" in result["declaration"] for words in wanted)


def test_a_convention_is_declared_as_it_is() -> None:
    """What others choose on purpose, such as no scale, stays a promise and is called no mistake."""
    result = record("one_head")
    assert [entry["mistaken"] for entry in result["deviations"]] == [False]
    assert "scale='none'" in result["declaration"]


def test_a_mask_may_replace_the_flag() -> None:
    """Dropped flags and single queries are found, and nothing that further keywords swallow."""
    assert value("replaced_by_mask", "causal and mask") == "mask-only"
    text = record("replaced_by_mask")["declaration"]
    assert "causal_combination='mask-only'" in text
    assert "one_query_causal=False" in text
    facts = {entry["fact"] for entry in record("replaced_by_mask")["facts"]}
    assert not {"window", "softcap", "scale keyword"} & facts
    assert not any(name.startswith(("mask keep", "mask drop", "mask lengths")) for name in facts)


def test_a_shape_that_the_flag_refuses_is_left_out() -> None:
    """What is promised of masks and the flag together was seen in each shape."""
    assert value("flag_refuses_three_axes", "causal and mask") == "both"
    assert value("flag_refuses_three_axes", "mask shapes left out") == ["HQK"]
    assert "HQK" in value("flag_refuses_three_axes", "mask mask (bool)")["shapes"]
    text = record("flag_refuses_three_axes")["declaration"]
    assert "mask_shapes=['BHQK', 'B1QK', 'B11K', '11QK', 'QK', 'K']" in text


def test_a_shape_that_training_refuses_is_left_out() -> None:
    """What is promised of masks was seen in both modes of a module."""
    assert value("trains_with_fewer_shapes", "mask shapes of eval mode") == ["K"]
    text = record("trains_with_fewer_shapes")["declaration"]
    assert "mask_shapes=['BHQK', 'B1QK', 'B11K', '11QK', 'HQK', 'QK']" in text
    facts = {entry["fact"] for entry in record("masked_attention")["facts"]}
    assert "mask shapes of eval mode" not in facts


def test_a_boolean_mask_that_is_added_is_told() -> None:
    """Where a mask is added to the scores, a boolean one adds 1 and hides nothing: that is said."""
    fact = next(
        entry
        for entry in record("replaced_by_mask")["facts"]
        if entry["fact"] == "mask attention_mask (bool)"
    )
    assert "True is added as 1, and nothing is hidden" in fact["found"]


def test_a_boolean_mask_that_is_lost_is_told() -> None:
    """As of torch's own example: a mask that is taken and hides nothing is no other form."""
    found = record("bool_is_lost")
    facts = {entry["fact"]: entry["found"] for entry in found["facts"]}
    assert "it changes nothing" in facts["mask attn_mask (bool)"]
    assert "added to the logits" in facts["mask attn_mask (additive float)"]
    (said,) = [one for one in found["deviations"] if one["mistaken"]]
    assert said["text"] == "`attn_mask` is taken as a bool mask, and hides no key then"


def test_rounding_is_no_order_of_tokens() -> None:
    """Float32 inside does not make the order of the keys matter."""
    assert value("rounded_to_float32", "position") is False


def test_shapes_are_told_where_sizes_are_equal() -> None:
    """``[Lq, Lk]`` is not promised where it is taken for ``[B, Lk]`` as soon as B = Lq."""
    shapes = value("shape_decides", "mask mask (bool)")["shapes"]
    assert "BK" in shapes
    assert "QK" not in shapes


def test_tables_of_positions_are_no_keys() -> None:
    """A function that needs cosines and sines is given tables, and not keys and values."""
    result = record("with_tables")
    assert not result["identified"]
    assert "it takes one input" in result["reason"]
    assert record("attention_with_tables")["semantics"] == {"rotary": "halves"}


def test_a_mask_that_is_needed_is_made() -> None:
    """Where None is refused, one that hides nothing is given, and its polarity is found then."""
    assert value("needs_a_mask", "mask mask (bool)")["form"] == "drop"


def test_unnamed_inputs_are_told_apart_by_the_answers() -> None:
    """In whichever order they stand, and by keyword where they must be."""
    assert "unnamed_order(a=query, b=key, c=value" in record("unnamed_order")["declaration"]
    assert value("unnamed_order", "mask attn_mask (bool)")["form"] == "keep"


def test_one_parameter_has_two_polarities() -> None:
    """Each with its shapes; a float that is compared with a number is not said to be added."""
    found = {
        name: value("two_polarities", f"mask mask ({name})")
        for name in ("bool", "bool, [B, Lk]", "compared float")
    }
    assert found["bool"]["form"] == "drop"
    assert "BK" not in found["bool"]["shapes"]
    assert (found["bool, [B, Lk]"]["form"], found["bool, [B, Lk]"]["shapes"]) == ("keep", ["BK"])
    assert "BHQK" in found["compared float"]["shapes"]


def test_dropout_that_is_a_module() -> None:
    """A rate raises there: it was said to change nothing."""
    told = {entry["fact"]: entry["found"] for entry in record("dropped_by_a_module")["facts"]}
    assert "torch.nn.Dropout(0.5) drops weights at random, and 0.5 raises" in told["dropout"]


def test_functions_of_numpy_are_declared_so() -> None:
    """They are called with NumPy's arrays."""
    assert "arrays='numpy'" in record("on_arrays")["declaration"]


def test_every_other_reading_is_told() -> None:
    """Where several fit as well, the last does not take the place of the others."""
    point = Semantics()
    others = [replace(point, scale=scale) for scale in ("none", 0.5)]
    assert other_readings(point, others) == "scale='none'; or scale=0.5"


@pytest.mark.parametrize("length", [5, 5000, 50_000])
def test_a_table_of_positions_is_as_long_as_it_is(length: int) -> None:
    """No length is told that was not tried: 65,536 was, where twice the longest tried is beyond."""
    table = golden.sinusoidal_positions(length, 6).float()

    def encode(tokens: Tensor) -> Tensor:
        if tokens.shape[1] > length or tokens.shape[2] > table.shape[1]:
            msg = "no such position"
            raise ValueError(msg)
        return tokens + table[: tokens.shape[1], : tokens.shape[2]]

    assert find_positions(encode, Findings()) == (length, [6])
