from __future__ import annotations

from functools import cache
from typing import Any

import bare_modules
import pytest
from torch import nn

import conformance
from conformance.declare.candidate import Candidate
from conformance.identification import undeclared
from conformance.identification.caller import FREE
from conformance.identification.opening import open_object
from conformance.models.torch_model import open_torch_model

FEW = (
    "mask.causal*",
    "numerics.golden",
    "state.repeatable",
    "state.eval-deterministic",
    "mask.golden",
    "equivariance.batch-independent",
    "model.*",
    "cache.*",
)


@cache
def read_once(value: Any) -> tuple[Candidate, ...]:
    """What an undeclared object is judged as."""
    return tuple(open_object(value, getattr(value, "__name__", type(value).__name__)))


def opened(value: Any) -> tuple[Candidate, ...]:
    """The same for every test."""
    return read_once(value)


def verdict(value: Any, *, explain: bool = False) -> tuple[str, str]:
    """The verdict of a few clauses and the reason for it; names of mistakes take seconds."""
    every = [
        conformance.check(one, profile="quick", only=FEW, explain=explain).candidates[0]
        for one in opened(value)
    ]
    worst = max(every, key=lambda one: (one.verdict == "fails", one.verdict))
    return worst.verdict, worst.reason


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "kind",
    [
        bare_modules.Residual,
        bare_modules.ClosedGate,
        bare_modules.PostNorm,
        bare_modules.SequenceFirst,
        bare_modules.HeadsBeforeItems,
        bare_modules.TokensFirstMask,
        bare_modules.FoldedBySequence,
        bare_modules.ScaledByHead,
        bare_modules.Normed,
        bare_modules.OfRawMatrices,
    ],
)
def test_the_attention_inside_is_judged(kind: type[nn.Module]) -> None:
    """Within a residual, a norm or a feed-forward part it is the attention that is judged."""
    names = [(one.name, one.kind) for one in opened(kind)]
    assert names == [(kind.__name__, "model"), (f"{kind.__name__}#0", "core")]
    assert verdict(kind)[0].startswith("conforms")


@pytest.mark.parametrize("kind", [bare_modules.ForHeadsOf, bare_modules.Tempered])
def test_heads_have_the_size_that_a_module_was_built_for(kind: type[nn.Module]) -> None:
    """Its scale is that of these heads, whatever the harness chose when it built it."""
    assert verdict(kind)[0] == "conforms"


@pytest.fixture
def without_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """No mistake explains answers that are not read: the search takes seconds, and finds none."""
    monkeypatch.setattr(undeclared, "_explained", lambda _candidate: [])


def test_a_bias_by_place_ends_the_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """It explains the answers beside any scale: no mistake is looked for, and none is found."""
    monkeypatch.setattr(undeclared, "_explained", None)
    assert [one.kind for one in opened(bare_modules.ByPlace)] == ["model", "core"]
    word, reason = verdict(bare_modules.ByPlace)
    assert (word, "scale=none" in reason) == ("inconclusive", True)


def test_a_mask_is_read() -> None:
    """Its polarity and shapes are promised, and what was read stands under the assumptions."""
    (candidate,) = opened(bare_modules.Masked)
    assert "keep" in candidate.declaration.masks
    told = " ".join(candidate.declaration.assumptions)
    assert "axes: batch first" in told
    assert "True attends" in told
    assert verdict(bare_modules.Masked)[0].startswith("conforms")


def test_a_function_is_read() -> None:
    """A function of query, key and value needs no decorator."""
    (candidate,) = opened(bare_modules.kernel)
    assert (candidate.kind, candidate.name) == ("core", "kernel")
    assert verdict(bare_modules.kernel)[0].startswith("conforms")


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "kind",
    [
        bare_modules.Inverted,
        bare_modules.WrongWidth,
        bare_modules.NormedOfWrongWidth,
        bare_modules.MixesItems,
        bare_modules.LengthsOfOtherItems,
        bare_modules.MergedInPicture,
        bare_modules.MaskOfOtherItems,
        bare_modules.QueriesTurned,
        bare_modules.ValuesTurned,
        bare_modules.ScaledByLength,
        bare_modules.AddedInPlace,
        bare_modules.ExchangedInputs,
        bare_modules.HeadLost,
        bare_modules.HalfScaled,
        bare_modules.Dropping,
        bare_modules.sees_the_future,
    ],
)
def test_a_known_mistake_fails(kind: Any) -> None:
    """What an undeclared module computes instead fails it where nobody means that."""
    assert verdict(kind)[0] == "fails" or verdict(kind, explain=True)[0] == "fails"


def test_what_may_be_meant_is_no_failure() -> None:
    """A gate of the heads' answers is no reading of ours, and no mistake with a name."""
    word, _ = verdict(bare_modules.Gated)
    assert word != "fails"


def test_a_chosen_factor_is_no_mistaken_size() -> None:
    """One head size cannot tell a quarter of the scale from the root of a wrong size."""
    word, reason = verdict(bare_modules.QuarterScaled, explain=True)
    assert (word, "scale=0.125" in reason) == ("inconclusive", True)


def test_a_cache_that_no_call_gives_leaves_the_verdict_open() -> None:
    """A module with a cache is not green before the cache was asked."""
    word, reason = verdict(bare_modules.WithCache)
    assert word == "inconclusive"
    assert "`inference_params` was not checked" in reason


def test_a_mask_that_a_core_never_got_leaves_the_verdict_open() -> None:
    """A function shows its own parameters: what took None alone was not checked."""
    word, reason = verdict(bare_modules.masked_by_an_object)
    assert word == "inconclusive"
    assert "`attn_mask` was not checked" in reason


@pytest.mark.usefixtures("without_search")
def test_a_bias_that_grows_with_the_distance_leaves_the_verdict_open() -> None:
    """Within a block it enters the attention as a mask, which is outside of what is judged."""
    word, reason = verdict(bare_modules.FarFirst)
    assert (word, "grow with the distance" in reason) == ("inconclusive", True)
    assert verdict(bare_modules.NearFirst)[0].startswith("conforms")


def test_rows_without_keys_keep_large_logits_apart() -> None:
    """A number that is added swallows small logits alone: such rows are promised no mean."""
    (candidate,) = opened(bare_modules.adds_a_number)
    assert candidate.declaration.empty_rows == "any"


def test_queries_and_keys_may_have_to_be_as_many() -> None:
    """Where no call of different lengths is answered, those of one length are, and promised."""
    (candidate,) = opened(bare_modules.OfOneLength)
    drawn = candidate.declaration.pins.apply(FREE)
    assert drawn.key_length == drawn.query_length
    assert verdict(bare_modules.OfOneLength)[0] == "conforms"


def test_what_may_be_none_is_no_input() -> None:
    """Of more required parameters than attention has inputs, and texts that are compared with."""
    (candidate,) = opened(bare_modules.Styled)
    assert candidate.declaration.inputs == "memory"
    assert any("style='plain'" in one for one in candidate.declaration.assumptions)
    assert verdict(bare_modules.Styled)[0] == "conforms"


@pytest.mark.usefixtures("without_search")
def test_weights_without_effect_leave_the_verdict_open() -> None:
    """A projection with which no answer changes is no part of what was judged."""
    made = open_torch_model(bare_modules.UnusedValues(), "it", surely=True)
    assert made is not None
    assert made.engine.unused_weights(made.model) == ["v.weight"]
    assert verdict(bare_modules.UnusedValues)[0] != "conforms-up-to-gauge"


def test_a_table_without_effect_leaves_the_verdict_open() -> None:
    """Angles that queries and keys share turn no product: the positions are lost."""
    word, reason = verdict(bare_modules.TurnedByHead)
    assert word == "inconclusive"
    assert "no answer changes with the tables of rotary" in reason
    (right,) = opened(bare_modules.TurnedByTable)
    assert right.unjudged == ""


@pytest.mark.parametrize("kind", [bare_modules.OfComplexTables, bare_modules.OfMatrices])
def test_tables_of_the_caller_are_asked_at_any_angles(kind: type[nn.Module]) -> None:
    """What turns by the table that it is given does so whatever positions that is of."""
    (read,) = opened(kind)
    assert read.declaration.rotary_tables == "angles"
    report = conformance.check(read, profile="quick", only=["position.tables"])
    assert report.candidates[0].verdict.startswith("conforms")


def test_positions_of_the_caller_are_asked_by_item() -> None:
    """What turns each item by its own positions is asked for all kinds; else from zero alone."""
    (read,) = opened(bare_modules.OfPositionIds)
    assert "positions" in read.declaration.features
    report = conformance.check(read, profile="quick", only=["position.given", "position.rotary"])
    assert report.candidates[0].verdict.startswith("conforms")
    (first,) = opened(bare_modules.OfFirstPositionIds)
    assert "positions" not in first.declaration.features


def test_what_makes_its_own_table_of_one_that_is_given_is_told() -> None:
    """The verdict stays open: of a table that changes nothing, and of one that turns keys alone."""
    word, reason = verdict(bare_modules.OfOwnTables)
    assert (word, reason) == (
        "inconclusive",
        "no answer changes with the tables that freqs_cis takes",
    )
    (read,) = opened(bare_modules.KeysByTables)
    report = conformance.check(read, profile="quick", only=["position.tables"], explain=False)
    assert report.candidates[0].verdict == "inconclusive"
    assert "position.tables would fail" in report.candidates[0].reason


@pytest.mark.parametrize("kind", [bare_modules.TriangleNotTaken, bare_modules.OfTriangle])
def test_a_mask_for_a_way_not_taken_is_no_table_without_effect(kind: type[nn.Module]) -> None:
    """Where later keys are hidden anyway, a stored triangle has nothing left to do."""
    word, reason = verdict(kind)
    assert word.startswith("conforms"), reason


def test_a_scale_that_is_right_at_one_size_leaves_the_verdict_open() -> None:
    """Nobody said which size the heads have: all else is judged at the one that fits the scale."""
    word, reason = verdict(bare_modules.ScaledForOneSize)
    assert word == "inconclusive"
    assert "its scale is that of heads of 64 channels whatever their size" in reason


@pytest.mark.parametrize("kind", [bare_modules.BuiltForOneSize, bare_modules.TwoMasks])
def test_what_two_parts_say_together_is_judged(kind: type[nn.Module]) -> None:
    """The size that a core is built for fits its scale; each mask has shapes of its own."""
    assert verdict(kind)[0] == "conforms"


def test_a_causal_flag_that_changes_nothing_is_not_checked() -> None:
    """Its name is a guess: the verdict is open, and no failure."""
    word, reason = verdict(bare_modules.IdleFlag)
    assert (word, "`is_causal` was not checked" in reason) == ("inconclusive", True)


def test_a_window_with_a_key_ahead_leaves_the_verdict_open() -> None:
    """It may be meant, and it is what a causal rule that is off by one does."""
    (read,) = opened(bare_modules.AheadInAWindow)
    assert read.unjudged.startswith("a query sees 1 of the later keys and 3 of the earlier ones")


@pytest.mark.usefixtures("without_search")
def test_tables_that_were_made_are_told() -> None:
    """Whoever reads the verdict sees in which layout a block got its angles."""
    told = [
        note for one in opened(bare_modules.GivenAngles) for note in one.declaration.assumptions
    ]
    assert any("besides its tokens it gets cos=" in note for note in told)


@pytest.mark.usefixtures("without_search")
def test_attention_of_channels_is_no_attention_of_tokens() -> None:
    """Its products fit the specification with axes exchanged: nothing of it is green."""
    assert "core" not in [one.kind for one in opened(bare_modules.OverChannels)]
    assert verdict(bare_modules.OverChannels)[0] == "inconclusive"


@pytest.mark.parametrize("kind", [bare_modules.MaskedAtTheEnd, bare_modules.OfSettings])
def test_what_a_module_needs_is_made_of_its_file(kind: type[nn.Module]) -> None:
    """Masks ``[B, L, 1]``, and settings of a class beside it, with their own defaults."""
    (candidate,) = opened(kind)
    assert (candidate.kind, candidate.declaration.always_causal) == ("layer", True)
    word, reason = verdict(kind)
    if kind is bare_modules.OfSettings:
        assert word == "conforms"
    else:
        assert (word, "`m` was not checked" in reason) == ("inconclusive", True)


def test_what_answers_at_random_says_nothing_of_items() -> None:
    """Equal calls that differ are no sign that items of a batch meet."""
    (candidate,) = opened(bare_modules.Dropping)
    assert candidate.reading is not None
    assert "equal calls are answered differently" in candidate.reading.mistakes[0]


@pytest.mark.usefixtures("without_search")
def test_turned_queries_and_keys_meet_by_their_distance() -> None:
    """Of equal tokens scores depend on distances alone: else the layouts of angles are mixed."""
    assert verdict(bare_modules.TurnedInBlock)[0].startswith("conforms")
    word, reason = verdict(bare_modules.PairsOfHalves)
    assert (word, "more than their distance" in reason) == ("inconclusive", True)


def test_a_finite_fill_of_what_no_input_hides_is_meant() -> None:
    """A module may hide tokens from themselves by any number; nobody's mask is leaked."""
    core = next(one for one in opened(bare_modules.HidesItself) if one.kind == "core")
    assert core.reading is not None
    assert "mask_fill" in core.reading.meant
    assert verdict(bare_modules.HidesItself)[0] != "fails"


def test_projections_that_begin_as_zero_hide_nothing() -> None:
    """Of a class the harness draws them: behind zeros no mistake shows, and all seems idle."""
    word, reason = verdict(bare_modules.BeginsAsZero)
    assert word.startswith("conforms"), reason


def test_what_later_logits_become_is_read() -> None:
    """A finite number in their place is a choice, and promised."""
    (candidate,) = opened(bare_modules.FilledLater)
    assert candidate.declaration.semantics.mask_fill == -1e4
    assert candidate.declaration.always_causal
    report = conformance.check(candidate, profile="quick", only=["mask.causal*"])
    assert report.candidates[0].verdict.startswith("conforms")


def test_items_that_meet_in_either_order_fail() -> None:
    """Whatever is meant, an item of a batch has no part in the answer to another."""
    (candidate,) = opened(bare_modules.FoldsItems)
    assert candidate.reading is not None
    assert candidate.reading.mistakes == ("an item of a batch changes the answer to another",)


def test_sides_of_a_picture_are_no_tokens() -> None:
    """What changes no answer is neither key nor value."""
    (candidate,) = opened(bare_modules.OfPicture)
    assert (candidate.kind, candidate.declaration.inputs) == ("layer", "self")
    assert verdict(bare_modules.OfPicture)[0].startswith("conforms")


def test_queries_that_meet_queries_leave_the_verdict_open() -> None:
    """Parameters called query, key and value say which rows a query's answer may depend on."""
    word, reason = verdict(bare_modules.Exchanged)
    assert not word.startswith("conforms")
    assert "queries of other rows" in reason


def test_a_second_stream_is_given() -> None:
    """Where the tokens themselves take its place when it is left out, nothing is unchecked."""
    assert verdict(bare_modules.TwoStreams)[0].startswith("conforms")
    word, reason = verdict(bare_modules.OneStream)
    assert word == "inconclusive"
    assert "context changes no answer" in reason


def test_two_streams_are_given_together() -> None:
    """Where they are read as no attention, they stand among what was not checked."""
    (candidate,) = opened(bare_modules.TwoMoreStreams)
    assert candidate.declaration.inputs == "separate"
    word, reason = verdict(bare_modules.ExchangedStreams)
    assert word == "inconclusive"
    assert "`k_x` and `v_x` were not checked" in reason


@pytest.mark.parametrize(
    ("function", "shared"), [(bare_modules.of_one_key_head, 1), (bare_modules.of_turned_keys, 3)]
)
def test_keys_may_have_an_order_of_their_own(function: Any, shared: int) -> None:
    """A function may take keys and values in other axes than queries, or without heads."""
    (candidate,) = opened(function)
    heads = candidate.declaration.pins.apply(FREE).num_kv_heads
    assert (candidate.kind, heads) == ("core", shared)
    assert "keys and values [B, " in " ".join(candidate.declaration.assumptions)
    assert verdict(function)[0].startswith("conforms")


@pytest.mark.usefixtures("without_search")
@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (bare_modules.MisnamedWeights, "v.weight makes the key of attention 0"),
        (bare_modules.KeysOfValues, "no answer changes with k"),
        (bare_modules.PackedOtherwise, "qkv.weight holds query, value, key in this order"),
    ],
)
def test_names_that_mislead_leave_the_verdict_open(kind: type[nn.Module], said: str) -> None:
    """Attention all the same, but not that which the names of weights or inputs speak of."""
    word, reason = verdict(kind)
    assert word == "inconclusive"
    assert said in reason


def test_a_class_that_no_call_answers_is_refused_by_its_own_fault() -> None:
    """Of an object that no target names, too."""
    with pytest.raises(conformance.UsageError, match="no tensor is right"):
        conformance.check(bare_modules.Refusing, profile="quick", only=FEW)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "kind", [bare_modules.InWindows, bare_modules.OfPlaces, bare_modules.OfPixels]
)
def test_attention_of_places_is_judged(kind: type[nn.Module]) -> None:
    """In windows of a picture, and of all its places, with channels last or first."""
    model, core = opened(kind)
    assert (model.kind, core.kind) == ("model", "core")
    assert verdict(kind)[0].startswith("conforms")


def test_items_of_pictures_are_asked() -> None:
    """Columns that attend along the first axis fail nothing: items that come first are a guess."""
    (candidate,) = opened(bare_modules.OfColumns)
    assert candidate.reading is not None
    assert "no way of calling it" in candidate.reading.unread


def test_a_mask_that_is_cut_has_the_shapes_that_it_takes_at_all_sizes() -> None:
    """Four axes fit where there are more tokens than items and heads, and nowhere else."""
    (candidate,) = opened(bare_modules.CutsItsMask)
    assert set(candidate.declaration.mask_shapes) == {"QK", "11QK"}


@pytest.mark.usefixtures("without_search")
def test_heads_that_weights_mix_are_another_kind() -> None:
    """The specification has none such: the verdict says so, and nothing fails."""
    word, reason = verdict(bare_modules.MixesHeads)
    assert (word, "heads are mixed by further weights" in reason) == ("inconclusive", True)


def test_one_head_shows_its_causality() -> None:
    """Though no axis says how many heads there are."""
    made = open_torch_model(bare_modules.OneHead(), "one head", surely=True)
    assert made is not None
    (entry,) = made.model.described
    assert (entry["heads"], entry["causal"]) == (None, True)


def test_an_epsilon_that_nobody_declared_is_no_mistake() -> None:
    """Where heads are small another epsilon explains the answers as well."""
    readings = [one.reading for one in opened(bare_modules.NormedSmall)]
    assert all(reading is not None and not reading.mistakes for reading in readings)
