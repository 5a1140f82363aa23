from __future__ import annotations

import dataclasses
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from examples import BARE, core, layer, plan, problem, run_clause, try_on
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from candidates.eager import Call, EagerCore, EagerLayer
from conformance._golden import golden
from conformance.clauses.masking import _broadcast_pairs, _form_pairs, held_numbers, int_nonzero
from conformance.clauses.subject import Subject
from conformance.graphs.reading import Role
from conformance.oracle.extreme_logits import single_key_inputs, unmasked_scores

MASKED = problem(mask=plan())


class Filled(EagerCore):
    """A finite fill instead of minus infinity."""

    def __init__(self, fill: float) -> None:
        super().__init__()
        self.fill = fill

    def weights(self, logits: Tensor, allowed: Tensor | None) -> Tensor:
        """Softmax over what the fill leaves."""
        return self.softmax(logits if allowed is None else logits.masked_fill(~allowed, self.fill))


@pytest.mark.parametrize("target", [1e2, 3e4, 4e5, 5e6, 9e7])
@pytest.mark.parametrize("low", [True, False])
@pytest.mark.parametrize("kind", ["core", "core-scaled", "layer", "self"])
def test_stretched_key_reaches_its_target(target: float, low: bool, kind: str) -> None:  # noqa: FBT001
    """The live logits lie at minus the target, or the hidden ones reach it, whatever the kind.

    So they do at a scale that a kernel declares.
    """
    made = {
        "core": core,
        "core-scaled": lambda: core(semantics=golden.STANDARD.replace(scale=1 / 16)),
        "layer": layer,
        "self": lambda: layer(inputs="self"),
    }[kind]()
    example = problem(mask=plan("single"))
    if kind == "self":
        example = problem(
            mask=plan("single"), query_length=7, query_size=13, value_size=13, biases=False
        )
    drawn = Subject(made, "float32").inputs(example)
    inputs, judged = single_key_inputs(drawn, live=2, target=target, low=low)
    scores = unmasked_scores(inputs)
    others = torch.arange(7) != 2
    if judged is not None:
        rows = judged[0, :, 0]
        scores = scores[:, :, rows]
        assert bool(rows.any())
    stretched = scores[..., 2] if low else scores[..., others]
    extreme = float(stretched.min()) if low else float(stretched.max())
    share = -extreme / target if low else extreme / target
    # In self-attention the enlarged tokens' own rows reach the target; the judged ones come near.
    assert 0.25 < share < 1.2
    quiet = scores[..., others] if low else scores[..., 2]
    assert float(quiet.abs().max()) < 100.0


@pytest.mark.parametrize("seed", range(4))
def test_a_stretched_key_is_that_of_its_group(seed: int) -> None:
    """Where groups are read in turn, the logits of heads that read a key are the extreme ones."""
    point = golden.STANDARD.replace(group_order="tile")
    subject = Subject(core(semantics=point), "float32")
    drawn = subject.inputs(problem(num_kv_heads=2, mask=plan("single"), seed=seed))
    inputs, _ = single_key_inputs(drawn, live=2, target=8e7, low=True)
    core_of = golden.attend(inputs.query, inputs.key, inputs.value, semantics=point)
    assert float(core_of.scores[..., 2].min()) == pytest.approx(-8e7, rel=1e-3)


@pytest.mark.parametrize("fill", [-1e4, -1e6, -1e7])
def test_finite_fill_shows_in_single_key_alone(fill: float) -> None:
    """A finite fill fails where live logits lie below it, and not in every other masked clause."""
    candidate = core(Filled(fill), masks=["keep"], empty_rows="any", features=[])
    assert run_clause(candidate, "mask.single-key", examples=20).status == "failed"
    assert run_clause(candidate, "mask.no-leak").status == "passed"
    assert run_clause(candidate, "mask.all-keep").status == "passed"


def test_largest_finite_fill_passes() -> None:
    """The most negative finite number is as good as minus infinity for rows with a key."""
    candidate = core(
        Filled(torch.finfo(torch.float32).min), masks=["keep"], empty_rows="any", features=[]
    )
    assert run_clause(candidate, "mask.single-key", examples=20).status == "passed"


def test_broadcast_pairs_widen() -> None:
    """Each pair goes from a narrow shape to one that has its axes and more, in one form."""
    pairs = _broadcast_pairs(core(masks=["keep", "lengths"], mask_shapes=["BK", "BHQK", "B", "BQ"]))
    assert pairs == [("keep", "BK", "BHQK"), ("lengths", "B", "BQ")]
    assert _broadcast_pairs(core(masks=["keep"], mask_shapes=["BQK", "HQK"])) == []


def test_shapes_of_one_set_of_axes_are_compared_too() -> None:
    """The same mask with and without axes of size 1 must be read alike."""
    pairs = _broadcast_pairs(core(masks=["keep"], mask_shapes=["BK", "B11K"]))
    assert ("keep", "BK", "B11K") in pairs


def test_form_pairs_can_carry_the_mask() -> None:
    """A mask goes to another form only where the other's shape holds it; never into lengths."""
    pairs = _form_pairs(core(masks=["keep", "lengths"], mask_shapes=["BHQK", "11QK", "B"]))
    assert (("lengths", "B"), ("keep", "BHQK")) in pairs
    assert (("lengths", "B"), ("keep", "11QK")) not in pairs
    assert all(second[0] != "lengths" for _, second in pairs)


@pytest.mark.parametrize(
    ("dtype", "numbers"),
    [("int64", [2, -1, 256, 2**32]), ("int32", [2, -1, 256]), ("uint8", [2])],
)
def test_only_numbers_that_reach_a_candidate_are_told_from_one(
    dtype: str, numbers: list[int]
) -> None:
    """A graph whose mask has 32 bits never sees 2 ** 32, and is not blamed for it."""

    def attend(
        query: Tensor, key: Tensor, value: Tensor, *, keep_int: Tensor | None = None
    ) -> Tensor:
        kept = None if keep_int is None else keep_int.to(getattr(torch, dtype)) != 0
        return scaled_dot_product_attention(query, key, value, attn_mask=kept)

    role = Role(name="mask", role="keep_int", dtype=dtype)
    graph: Any = SimpleNamespace(reading=SimpleNamespace(masks=(role,)))
    made = core(attend, masks=["keep_int"], causal=None, features=[], empty_rows="any")
    made = dataclasses.replace(made, graph=graph)
    assert held_numbers(made) == numbers
    example = problem(mask=plan(form="keep_int"))
    for seed in range(4):
        finding = int_nonzero(Subject(made, "float32"), example.replace(seed=seed))
        assert finding.violation is None


def test_forms_must_agree() -> None:
    """One form read with the wrong polarity disagrees with the other."""

    class Flipped(EagerCore):
        def tables(self, call: Call) -> Any:
            yield from super().tables(call.replace(drop=None))
            if call.drop is not None:
                yield call.drop

    shapes = ["BHQK"]
    right = core(masks=["keep", "drop"], mask_shapes=shapes)
    wrong = core(Flipped(), masks=["keep", "drop"], mask_shapes=shapes)
    assert try_on(right, "mask.forms-agree", MASKED).violation is None
    assert try_on(wrong, "mask.forms-agree", MASKED).violation is not None


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("kind", ["core", "layer"])
def test_heads_move_with_their_masks(kv_heads: int, kind: str) -> None:
    """Grouped heads are exchanged group by group: the query heads follow their key/value head."""
    made = {"core": core, "layer": layer}[kind](features=["gqa"])
    example = problem(num_kv_heads=kv_heads, mask=plan())
    finding = try_on(made, "mask.per-head", example)
    assert finding.violation is None
    assert finding.binding is (kv_heads > 1)


@pytest.mark.parametrize("kind", ["core", "layer"])
def test_mask_of_the_first_head_for_all(kind: str) -> None:
    """One head's mask used for all of them fails, with grouped heads too."""

    class FirstHead(EagerCore):
        def tables(self, call: Call) -> Any:
            for table in super().tables(call):
                yield table[:, :1] if table.dim() == 4 else table

    class FirstHeadLayer(EagerLayer):
        core = FirstHead()

    made = (
        core(FirstHead(), features=["gqa"])
        if kind == "core"
        else layer(FirstHeadLayer, features=["gqa"])
    )
    finding = try_on(made, "mask.per-head", problem(num_kv_heads=2, mask=plan()))
    assert finding.violation is not None


def test_padding_is_cut_from_queries_of_self_attention() -> None:
    """Where query and key are one sequence, the padded queries are left out of the comparison."""

    class OfItself(EagerLayer):
        def __call__(self, x: Tensor, **options: Any) -> Any:  # type: ignore[override]
            return super().__call__(x, x, x, **options)

    made = layer(OfItself, inputs="self", masks=["keep"])
    example = problem(query_length=7, query_size=13, value_size=13, mask=plan("padding"))
    finding = try_on(made, "mask.padding-is-absence", example)
    assert finding.violation is None
    assert finding.binding
    assert finding.margin is not None
    assert math.isfinite(finding.margin)


@pytest.mark.parametrize(("fill", "status"), [(-1e4, "failed"), (-math.inf, "passed")])
def test_a_fill_that_was_usual_in_float16_is_seen(fill: float, status: str) -> None:
    """Of logits near the largest of float16, -1e4 is not the lowest."""

    def attend(query: Tensor, key: Tensor, value: Tensor, *, keep: Tensor | None = None) -> Tensor:
        logits = query @ key.mT / query.shape[-1] ** 0.5
        if keep is not None:
            logits = logits.masked_fill(~keep, fill)
        return logits.softmax(-1) @ value

    half = core(attend, **{**BARE, "masks": ["keep"], "dtypes": ["float16"]})
    assert run_clause(half, "mask.single-key", examples=20, dtype="float16").status == status
