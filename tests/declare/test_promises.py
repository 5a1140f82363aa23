from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from refusals import refused

import conformance
from conformance.declare.declaration import (
    DEFAULT_MASK_SHAPES,
    FEATURE_KEYWORDS,
    FEATURES,
    Declaration,
)
from conformance.declare.promises import declare
from conformance.errors import DeclarationError

REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {"masks": ["keeep"]},
        "an entry of masks is 'keeep', which is unknown; did you mean 'keep'?",
    ),
    (
        {"masks": ["zzz"]},
        (
            "an entry of masks is 'zzz', which is unknown; known: bias, blocks, chunks, drop, "
            "grid, indices, keep, keep_int, lengths, neighborhood, prefix, query_lengths, "
            "segments, shifted_grid, tree (keep: True attends, drop: True hides, bias: added to "
            "the scores)"
        ),
    ),
    ({"masks": "keep"}, "masks is the text 'keep': give a list, such as ['keep']"),
    ({"masks": 3}, "masks is 3: give a list of texts"),
    (
        {"causal": np.zeros(2)},
        "causal is array([0., 0.]), which is unknown; known: bottom-right, top-left",
    ),
    (
        {"layout": np.zeros(2)},
        (
            "layout is array([0., 0.]), which is unknown; known: BHSD, BSHD, latent, packed-kv, "
            "packed-qkv, paged, varlen, varlen-padded, varlen-shared, varlen-shared-padded"
        ),
    ),
    ({"scores": "x" * 999}, f"scores is '{'x' * 59}, which is unknown; known: eager, fused"),
    ({"arrays": "jax", "devices": None}, "devices is None: give a list of texts"),
    ({"precision": []}, "precision is [], which is unknown; known: int8-dynamic"),
    (
        {"geometry": {"num_heads": b"ab"}},
        "geometry pins 'num_heads' to b'ab': give a positive integer or a list of them",
    ),
    ({"masks": None}, "masks is None: give a list of texts"),
    (
        {"causal": "bottomright"},
        "causal is 'bottomright', which is unknown; did you mean 'bottom-right'?",
    ),
    (
        {"causal": True},
        "causal is True, which is unknown; known: bottom-right, top-left",
    ),
    (
        {"masks": ["keep"], "causal": "top-left", "empty_rows": {"kept": "nan"}},
        (
            "empty_rows has the key 'kept', but rows without keys can come by keep, causal here: "
            "give one of these; did you mean 'keep'?"
        ),
    ),
    (
        {"masks": ["keep"], "empty_rows": {"keep": "zero"}},
        "empty_rows['keep'] is 'zero', which is unknown; did you mean 'zeros'?",
    ),
    ({"empty_rows": "zero"}, "empty_rows is 'zero', which is unknown; did you mean 'zeros'?"),
    (
        {"empty_rows": 0},
        "empty_rows is 0, which is unknown; known: any, mean-of-all, mean-of-valid, nan, zeros",
    ),
    (
        {"features": ["soft_cap"]},
        "an entry of features is 'soft_cap', which is unknown; did you mean 'softcap'?",
    ),
    (
        {"features": ["norm_weight"]},
        (
            "features has 'norm_weight' but semantics says not what is normalised: give "
            "semantics=conformance.Semantics(qk_norm='rms') or 'layer'"
        ),
    ),
    (
        {"features": ["temperature"], "ranks": conformance.Ranks(2, query="sequence")},
        "the feature 'temperature' is judged in one process: drop it, or ranks",
    ),
    (
        {
            "features": ["alibi_slopes"],
            "semantics": conformance.Semantics(bias_order="before-scale"),
        },
        (
            "features has 'alibi_slopes' with bias_order='before-scale', which is judged without: "
            "drop one"
        ),
    ),
    (
        {"alibi_slope_shape": "H"},
        "alibi_slope_shape is 'H' without features=['alibi_slopes']: drop it, or declare them",
    ),
    (
        {"features": ["alibi_slopes"], "alibi_slope_shape": "BK"},
        "alibi_slope_shape is 'BK', which is unknown; did you mean 'BH'?",
    ),
    (
        {"semantics": conformance.Semantics(qk_norm="l2", qk_norm_over="all-heads")},
        (
            "qk_norm_over is 'all-heads' with qk_norm='l2': only 'rms' and 'layer' are judged over "
            "all heads"
        ),
    ),
    ({"features": "gqa"}, "features is the text 'gqa': give a list, such as ['gqa']"),
    (
        {"without": ["gradient"]},
        "an entry of without is 'gradient', which is unknown; did you mean 'gradients'?",
    ),
    ({"inputs": "selff"}, "inputs is 'selff', which is unknown; did you mean 'self'?"),
    (
        {"dtypes": ["float23"]},
        "an entry of dtypes is 'float23', which is unknown; did you mean 'float32'?",
    ),
    ({"dtypes": "float32"}, "dtypes is the text 'float32': give a list, such as ['float32']"),
    ({"devices": "cpu"}, "devices is the text 'cpu': give a list, such as ['cpu']"),
    (
        {"dtypes": []},
        "dtypes is empty, so nothing would be judged: give at least one, such as 'float32'",
    ),
    (
        {"devices": ()},
        "devices is empty, so nothing would be judged: give at least one, such as 'cpu'",
    ),
    ({"devices": 7}, "devices is 7: give a list of texts"),
    (
        {"devices": ["gpu9"]},
        "an entry of devices is 'gpu9', which torch does not know: try 'cpu' or 'cuda:0'",
    ),
    (
        {"devices": [None]},
        "an entry of devices is None, which torch does not know: try 'cpu' or 'cuda:0'",
    ),
    ({"tf32": "no"}, "tf32 is 'no': give True or False"),
    ({"batched": 1}, "batched is 1: give True or False"),
    ({"causal": "top-left", "always_causal": "yes"}, "always_causal is 'yes': give True or False"),
    ({"scores": "fusd"}, "scores is 'fusd', which is unknown; did you mean 'fused'?"),
    (
        {"accumulate": "float31"},
        "accumulate is 'float31', which is unknown; did you mean 'float32'?",
    ),
    (
        {"position": "sinusoid"},
        "position is 'sinusoid', which is unknown; did you mean 'sinusoidal'?",
    ),
    ({"max_length": 0}, "max_length is 0: give a positive integer"),
    ({"max_length": True}, "max_length is True: give a positive integer"),
    ({"max_length": "long"}, "max_length is 'long': give a positive integer"),
    ({"semantics": "standard"}, "semantics is 'standard': give a conformance.Semantics"),
    ({"geometry": {"heads": 3}}, "geometry has no field 'heads'; did you mean 'num_heads'?"),
    (
        {"masks": ["keep"], "empty_rows": {None: "nan"}},
        (
            "empty_rows has the key None, but rows without keys can come by keep here: give one of "
            "these; known: keep"
        ),
    ),
    (
        {"masks": ["keep"], "mask_shapes": ["B"]},
        (
            "masks has 'keep', whose shape ends in K, but mask_shapes is ['B']: give one that "
            "does, such as 'B11K'"
        ),
    ),
    (
        {"masks": ["lengths", "bias"], "mask_shapes": ["BHQ1"]},
        (
            "masks has 'bias', whose shape ends in K, but mask_shapes is ['BHQ1']: give one that "
            "does, such as 'B11K'"
        ),
    ),
    (
        {"features": ["gqa"], "geometry": {"num_heads": 3, "num_kv_heads": 2}},
        (
            "geometry pins num_heads to [3] and num_kv_heads to [2]: heads share key/value heads "
            "evenly, so that one must be a multiple of the other"
        ),
    ),
    (
        {"geometry": {"key_size": 3, "value_size": 4, "query_size": "key_size"}, "max_length": 0},
        "max_length is 0: give a positive integer",
    ),
    (
        {"geometry": {"key_length": [8, 9]}, "max_length": 7},
        "max_length is 7, but geometry pins key_length to 8 or more",
    ),
    (
        {"expected_failures": 5},
        (
            "expected_failures holds 5: give a dict of clause to reason, or a list of "
            "ExpectedFailure(…)"
        ),
    ),
    (
        {"expected_failures": "mask.golden"},
        (
            "expected_failures holds 'mask.golden': give a dict of clause to reason, or a list of "
            "ExpectedFailure(…)"
        ),
    ),
    (
        {"expected_failures": {"mask.golden": ""}},
        "an expected failure's reason is '': give a text that is not empty",
    ),
]


@pytest.mark.parametrize(("promises", "message"), REFUSED)
def test_wrong_promise_is_refused_in_one_sentence(promises: dict[str, Any], message: str) -> None:
    """Each promise that is unknown or of the wrong type is named, with what to write instead."""
    with refused(message, DeclarationError):
        declare("layer", **promises)


@pytest.mark.parametrize("inputs", ["self", "memory"])
def test_core_takes_three_inputs(inputs: str) -> None:
    """A core cannot share its inputs: that is what layers do."""
    message = f"inputs is {inputs!r} for a core: a core takes query, key and value; declare a layer"
    with refused(message, DeclarationError):
        declare("core", inputs=inputs)


@pytest.mark.parametrize("shape", ["QB", "KQ", "BBK", "BX", "BHQK1", "BK1", "bk", 4, None])
def test_mask_shape_in_unknown_letters_is_refused(shape: object) -> None:
    """Shapes are written in the letters B, H, Q, K, in that order, each once."""
    message = (
        f"an entry of mask_shapes is {shape!r}: write the axes in the order B, H, Q, K, each at "
        "most once and nothing behind K, and 1 for an axis of size 1, such as 'B1QK' or 'BK'"
    )
    with refused(message, DeclarationError):
        declare("core", masks=["keep"], mask_shapes=[shape])


def test_unbatched_shapes_have_no_batch_axis() -> None:
    """A shape with B says nothing about a candidate without a batch axis, so it is refused."""
    message = "an entry of mask_shapes is 'BQK', but batched=False leaves no axis B"
    with refused(message, DeclarationError):
        declare("layer", masks=["keep"], mask_shapes=["BQK"], batched=False)


def test_defaults() -> None:
    """A core that promises nothing takes no mask, no flag, float32 on the CPU, by the standard."""
    declared = declare("core")
    assert declared.masks == ()
    assert declared.causal is None
    assert declared.empty_rows == "any"
    assert declared.features == {"gradients"}
    assert declared.dtypes == ("float32",)
    assert declared.devices == ("cpu",)
    assert declared.mask_shapes == DEFAULT_MASK_SHAPES
    assert declared.length_shapes == ("B",)
    assert declared.semantics == conformance.STANDARD
    assert declared.keywords == ()


def test_features_add_to_the_defaults_and_without_removes() -> None:
    """``features`` adds, ``without`` removes, and removing wins."""
    declared = declare("layer", features=["gqa", "scale"], without=["cross", "scale"])
    assert declared.features == {"gradients", "gqa"}


def test_repeated_words_count_once() -> None:
    """A mask form that is named twice is one form."""
    assert declare("core", masks=["keep", "drop", "keep"]).masks == ("keep", "drop")


def test_dtypes_may_come_one_by_one() -> None:
    """A generator is read once: what arrays and precision allow is asked of the same dtypes."""
    dtypes = (name for name in ["float32"])
    assert declare("layer", precision="int8-dynamic", dtypes=dtypes).dtypes == ("float32",)
    with pytest.raises(DeclarationError, match="has no such numbers"):
        declare("core", arrays="numpy", dtypes=(name for name in ["bfloat16"]))


def test_iterables_are_read_once() -> None:
    """Promises may be generators."""
    assert declare("core", masks=(word for word in ["keep", "bias"])).masks == ("keep", "bias")


def test_unbatched_default_shapes_drop_the_batch() -> None:
    """``batched=False`` drops the B of the default shapes, and likes are named once."""
    declared = declare("layer", batched=False)
    assert declared.mask_shapes == ("HQK", "1QK", "11K")
    assert declared.length_shapes == ("",)


def test_shapes_with_keys_and_shapes_of_lengths_are_told_apart() -> None:
    """A shape that ends in K holds a table, any other one lengths."""
    declared = declare("core", masks=["keep", "lengths"], mask_shapes=["BK", "B11K", "BQ"])
    assert declared.mask_shapes == ("BK", "B11K")
    assert declared.length_shapes == ("BQ",)


def test_shapes_of_masks_by_form() -> None:
    """Each form has its own shapes; all forms are named, and no others."""
    made = declare("core", masks=["keep", "bias"], mask_shapes={"bias": ["BHQK"], "keep": ["BK"]})
    assert [made.shapes_of(form) for form in ("keep", "bias")] == [("BK",), ("BHQK",)]
    with pytest.raises(DeclarationError, match="mask_shapes has 'keep', and masks is"):
        declare("core", masks=["keep", "bias"], mask_shapes={"keep": ["BK"]})


def test_semantics_takes_causal_and_empty_rows_in() -> None:
    """The point that a candidate is judged by has its alignment and its rule for empty rows."""
    point = declare("core", causal="top-left", empty_rows="mean-of-all").semantics
    assert point == conformance.STANDARD.replace(
        causal_alignment="top-left", empty_rows="mean-of-all"
    )


def test_semantics_may_say_the_same() -> None:
    """Saying a convention twice in the same way is no conflict."""
    point = conformance.Semantics(causal_alignment="top-left", scale="none")
    declared = declare("core", causal="top-left", semantics=point)
    assert declared.semantics == point


@pytest.mark.parametrize(
    ("promises", "point", "message"),
    [
        (
            {"causal": "bottom-right"},
            {"causal_alignment": "top-left"},
            "causal is 'bottom-right' but semantics says causal_alignment='top-left': drop one",
        ),
        (
            {"masks": ["keep"], "causal": "bottom-right", "empty_rows": {"keep": "nan"}},
            {"empty_rows": "mean-of-all"},
            (
                "empty_rows is {'keep': 'nan', 'causal': 'any'} but semantics says "
                "empty_rows='mean-of-all': drop one"
            ),
        ),
        (
            {"empty_rows": "zeros"},
            {"empty_rows": "nan"},
            "empty_rows is 'zeros' but semantics says empty_rows='nan': drop one",
        ),
    ],
)
def test_conflicting_semantics_is_refused(
    promises: dict[str, Any], point: dict[str, Any], message: str
) -> None:
    """Two promises that contradict each other are both named."""
    with refused(message, DeclarationError):
        declare("core", semantics=conformance.Semantics(**point), **promises)


def test_a_memory_beside_packed_sequences_is_refused() -> None:
    """Other learned arguments are judged there, too."""
    message = "features has 'bias_kv' with layout='varlen', which is judged without: drop one"
    with refused(message, DeclarationError):
        declare("core", features=["bias_kv"], layout="varlen")
    assert declare("core", features=["temperature"], layout="varlen").learned == ("temperature",)


def test_empty_rows_by_way() -> None:
    """Rules by form, flag and returned weights are told apart; one rule for all is one rule."""
    rules = {"keep": "nan", "causal": "zeros", "weights": "mean-of-all"}
    declared = declare(
        "core", masks=["keep", "bias"], causal="top-left", features=["weights"], empty_rows=rules
    )

    def rule(form: str | None, *, causal: bool = False, weights: bool = False) -> str:
        return declared.empty_rule(form=form, causal=causal, weights=weights)

    assert (rule("keep"), rule("bias"), rule(None, causal=True)) == ("nan", "any", "zeros")
    assert rule("keep", causal=True) == "any"  # by different rules: nothing is promised
    assert rule("bias", weights=True) == "mean-of-all"
    assert declared.as_json()["empty_rows"] == {**rules, "bias": "any"}
    assert declared.empty_rules == {"nan", "zeros", "mean-of-all"}
    alike = declare(
        "core", masks=["keep"], causal="top-left", empty_rows={"keep": "nan", "causal": "nan"}
    )
    assert (alike.empty_rows, alike.as_json()["empty_rows"]) == ("nan", "nan")


def test_any_empty_rows_leave_the_semantics_alone() -> None:
    """Promising nothing about empty rows contradicts no point."""
    point = conformance.Semantics(empty_rows="nan")
    assert declare("core", semantics=point).semantics.empty_rows == "nan"


def test_keywords_are_those_that_are_declared() -> None:
    """Masks arrive under their form's name, flags and features under theirs, nothing else."""
    declared = declare("core", masks=["keep", "lengths"], causal="top-left", features=["kv_cache"])
    assert declared.keywords == ("keep", "lengths", "causal", "past_key", "past_value")


def test_every_feature_with_a_keyword_is_a_feature() -> None:
    """The table of keywords holds no unknown feature, and names no keyword twice."""
    named = [keyword for keywords in FEATURE_KEYWORDS.values() for keyword in keywords]
    assert set(FEATURE_KEYWORDS) <= FEATURES
    assert len(named) == len(set(named))


@pytest.mark.parametrize(
    ("kind", "inputs", "names"),
    [
        ("core", "separate", ("query", "key", "value")),
        ("layer", "self", ("x",)),
        ("layer", "memory", ("query", "context")),
        ("positions", "separate", ("x",)),
    ],
)
def test_positional_inputs(kind: str, inputs: str, names: tuple[str, ...]) -> None:
    """What is passed by position follows the kind and the inputs."""
    assert declare(kind, inputs=inputs).positional == names


def test_as_json_is_plain_and_names_deviations() -> None:
    """The report holds plain data and only what differs from the standard."""
    declared: Declaration = declare("core", causal="top-left", features=["gqa"], masks=["keep"])
    data = declared.as_json()
    assert data["semantics"] == {"causal_alignment": "top-left"}
    assert data["features"] == ["gqa", "gradients"]
    assert data["mask_shapes"] == [*DEFAULT_MASK_SHAPES, "B"]


@pytest.mark.parametrize("answer", ["text", "shape", "raises"])
def test_score_mod_that_fails_is_refused(answer: str) -> None:
    """A score_mod is called once when it is declared: what it does wrong is the user's mistake."""

    def change(score: Any, *_places: Any) -> Any:
        if answer == "raises":
            raise ZeroDivisionError
        return "scores" if answer == "text" else score[..., :-1].repeat(1, 1, 2, 2)

    with pytest.raises(DeclarationError, match="score_mod fails on scores"):
        conformance.core(semantics=conformance.Semantics(score_mod=change))


def test_the_record_of_a_function_holds_no_address() -> None:
    """Two runs on the same candidate say the same of the function that it declares."""

    def shifted(score: Any, *_indices: Any) -> Any:
        return score + 1.0

    declared = declare("core", semantics=conformance.Semantics(score_mod=shifted))
    said = declared.as_json()["semantics"]["score_mod"]
    assert said.endswith("shifted>")
