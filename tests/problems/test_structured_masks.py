# ruff: noqa: ARG005 (parameters are what is declared)
from __future__ import annotations

from typing import Any

import pytest
import torch
from refusals import refused
from torch import Generator, Tensor

import conformance
from candidates.structured_attention import StructuredCore, structured_attention
from conformance.base.geometry import Geometry
from conformance.calls.calling import structured_keywords
from conformance.clauses.subject import Subject
from conformance.declare.declaration import GRID_FORMS, STRUCTURED_FORMS, STRUCTURED_SHAPES
from conformance.problems.mask_patterns import PATTERNS
from conformance.problems.materialise import materialise
from conformance.problems.problem import MaskPlan, Problem
from conformance.problems.structured_masks import EMPTYING, STRUCTURED_MASKS, Structure

SIZES = ((5, 7), (4, 4), (12, 12), (1, 6), (6, 6), (3, 1), (7, 5), (0, 4), (3, 0))


def structure(rows: int, columns: int, block_size: tuple[int, int] = (2, 3)) -> Structure:
    """A structure of three items and two heads."""
    geometry = Geometry(
        batch=3,
        num_heads=2,
        num_kv_heads=2,
        query_length=rows,
        key_length=columns,
        head_size=2,
        value_head_size=2,
        query_size=4,
        key_size=4,
        value_size=4,
        output_size=4,
    )
    return Structure(geometry=geometry, alignment="bottom-right", block_size=block_size)


def read(given: dict[str, object], made: Structure) -> Tensor:
    """The table that arguments say, as a candidate reads them."""
    if "grid" in given:
        return read_grid(given)
    table: Tensor = StructuredCore()._seen(made.ahead, given)
    return table


def read_grid(given: dict[str, Any]) -> Tensor:
    """A grid's table, cell by cell: without a shift of the form a neighborhood where odd."""
    rows, columns = given["grid"]
    cells = [(row, column) for row in range(rows) for column in range(columns)]
    seen = [[near(given, query, key) for key in cells] for query in cells]
    return torch.tensor(seen, dtype=torch.bool).reshape(1, 1, len(cells), len(cells))


def near(given: dict[str, Any], query: tuple[int, int], key: tuple[int, int]) -> bool:
    """Whether a key lies in a query's window, in rows and in columns."""
    for axis, (size, window) in enumerate(zip(given["grid"], given["window"], strict=True)):
        if given["form"] == "neighborhood":
            first = min(max(query[axis] - window // 2, 0), size - window)
            if not first <= key[axis] < first + window:
                return False
        else:
            shift = given.get("shift", (0, 0))[axis]
            if (query[axis] - shift) // window != (key[axis] - shift) // window:
                return False
    return True


@pytest.mark.parametrize("form", STRUCTURED_MASKS)
def test_arguments_say_their_table(form: str) -> None:
    """Whatever is drawn, a reader that knows nothing but the arguments makes the same table."""
    mask = STRUCTURED_MASKS[form]
    for rows, columns in SIZES:
        if (form == "tree" and columns < rows) or (form in GRID_FORMS and columns != rows):
            continue
        for pattern in PATTERNS:
            made = structure(rows, columns)
            table = mask.table(pattern, made, Generator().manual_seed(rows + len(pattern)))
            given = mask.arguments(table, made)
            assert tuple(given) == STRUCTURED_FORMS[form]
            letters = zip(STRUCTURED_SHAPES[form], (3, 2, rows, columns), strict=True)
            assert tuple(table.shape) == tuple(1 if at == "1" else size for at, size in letters)
            given = given | ({"form": form} if form in GRID_FORMS else {})
            assert torch.equal(read(given, made).expand(table.shape), table), (rows, pattern)


def test_segments_are_stretches_and_scattered() -> None:
    """Packed sequences lie one after another; where random, equal numbers lie anywhere."""
    made = structure(8, 8)
    packed = STRUCTURED_MASKS["segments"].table("padding", made, Generator().manual_seed(3))
    numbers = STRUCTURED_MASKS["segments"].arguments(packed, made)
    assert torch.equal(numbers["key_segments"], numbers["key_segments"].sort(dim=-1).values)
    assert torch.equal(numbers["key_segments"], numbers["query_segments"])
    several = [
        STRUCTURED_MASKS["segments"].table("random", made, Generator().manual_seed(seed))
        for seed in range(5)
    ]
    assert any(
        (table[:, :, 0] != table[:, :, 0].sort(descending=True).values).any() for table in several
    )


def test_only_some_structures_leave_a_query_without_keys() -> None:
    """A prefix, a chunk and a tree show each query a key, if it stands at one."""
    assert set(EMPTYING) == {"segments", "indices", "blocks"}
    made = structure(6, 6)
    for form, mask in STRUCTURED_MASKS.items():
        if mask.pads:
            continue
        tables = [
            mask.table("empty-rows", made, Generator().manual_seed(seed)) for seed in range(9)
        ]
        empty = any(bool((~table.any(dim=-1)).any()) for table in tables)
        assert empty == (form in EMPTYING), form


def test_calls_without_a_batch_have_arguments_without_it() -> None:
    """An unbatched candidate gets one row of each argument, and numbers as they are."""
    made = conformance.core(masks=["segments", "chunks"], batched=False)(
        lambda query, key, value, **_structure: query
    )
    geometry = structure(5, 5).geometry.replace(batch=1)
    for form, shape in (("segments", "1QK"), ("chunks", "1QK")):
        plan = MaskPlan(pattern="padding", form=form, shape=shape)
        inputs = materialise(Problem(geometry=geometry, dtype="float32", seed=1, mask=plan), made)
        for value in structured_keywords(inputs).values():
            assert isinstance(value, int) or value.shape == (5,)
        assert structured_keywords(inputs.without_mask().replace(mask_form=form))


def test_prefix_replaces_causality() -> None:
    """A call with a prefix has no causal flag: keys of the prefix that are ahead are seen."""
    plan = MaskPlan(pattern="full", form="prefix", shape="B1QK")
    problem = Problem(
        geometry=structure(4, 4).geometry, dtype="float32", seed=1, mask=plan, causal=True
    )
    inputs = materialise(problem, structured_attention)
    assert not inputs.causal
    assert inputs.keep is not None
    assert inputs.keep.all()


MISTAKES = {
    "segments": (lambda _self, one, other: (one[:, :, None] >= other[:, None, :]).unsqueeze(1)),
    "prefix": lambda self, given, ahead: StructuredCore.prefix(self, given + 1, ahead),
    "chunks": lambda _self, chunk, rows, columns: (
        torch.arange(columns) // chunk == (torch.arange(rows) // chunk)[:, None]
    )[None, None],
    "tree": lambda self, given, columns: StructuredCore.tree(
        self, given.new_full(given.shape, -1), columns
    ),
    "indices": lambda self, given, columns: StructuredCore.indices(
        self, given[:1].expand_as(given), columns
    ),
    "blocks": lambda self, given, rows, columns: StructuredCore.blocks(
        self, given[:, :1].expand_as(given), rows, columns
    ),
}


@pytest.mark.parametrize("form", MISTAKES)
def test_a_structure_that_is_read_wrongly_fails(form: str) -> None:
    """Segments read as causal ones, a prefix a key too long, chunks from the first query."""
    wrong = type("Wrong", (StructuredCore,), {form: MISTAKES[form]})()
    sizes = {"block_size": (2, 3)} if form == "blocks" else {}
    made = conformance.core(masks=[form], empty_rows="zeros", **sizes)(wrong)
    report = conformance.check(made, only="mask.golden", explain=False)
    assert report.verdict == "fails"
    right = conformance.core(masks=[form], empty_rows="zeros", **sizes)(StructuredCore())
    report = conformance.check(right, only=["mask.golden", "mask.empty-row", "gradients.golden"])
    assert report.verdict == "conforms", report.reason


def test_what_cannot_be_had_together_is_refused() -> None:
    """Blocks need their size and a core, a prefix no causality of its own."""
    with refused(
        "block_size is None: give how many queries and keys a block has, such as (16, 16)"
    ):
        conformance.core(masks=["blocks"])
    with refused("block_size is (2, 2), but masks has no 'blocks': drop it, or declare them"):
        conformance.core(block_size=(2, 2))
    with refused("masks has 'blocks' for a layer: only a core has blocks for its heads; drop it"):
        conformance.layer(masks=["blocks"], block_size=(2, 2))
    with refused(
        "masks has 'prefix' with always_causal=True: a prefix says itself which keys ahead of a "
        "query are seen; drop always_causal"
    ):
        conformance.core(masks=["prefix"], causal="top-left", always_causal=True)
    with refused("masks has 'tree' with ranks, which is judged without: drop one"):
        conformance.core(masks=["tree"], ranks=conformance.Ranks(2))


def test_rows_behind_query_lengths_are_absent() -> None:
    """They are no part of the call: neither judged nor counted as rows without keys."""
    declared = conformance.core(masks=["query_lengths"], padded_rows="zeros")(StructuredCore())
    geometry = structure(6, 4).geometry
    mask = MaskPlan(form="query_lengths", shape="B1QK", pattern="padding")
    inputs = materialise(Problem(geometry=geometry, dtype="float32", seed=3, mask=mask), declared)
    lengths = structured_keywords(inputs)["query_lengths"]
    assert inputs.absent is not None
    assert torch.equal(inputs.absent[:, 0], torch.arange(6) >= lengths[:, None])
    answered = Subject(declared, "float32").golden(inputs).judged
    assert torch.equal(answered[:, 0, :, 0], ~inputs.absent[:, 0])


@pytest.mark.parametrize(
    ("promises", "said"),
    [
        (
            {"padded_rows": "zeros"},
            "padded_rows is 'zeros' without masks=['query_lengths']: drop it, or declare them",
        ),
        (
            {"padded_rows": "nan", "masks": ["query_lengths"]},
            "padded_rows is 'nan', which is unknown; did you mean 'any'?",
        ),
    ],
)
def test_what_padded_rows_need(promises: dict[str, object], said: str) -> None:
    """Each mistake of a declaration is one sentence."""
    with pytest.raises(conformance.DeclarationError) as raised:
        conformance.core(**promises)(StructuredCore())
    assert str(raised.value) == said


def test_queries_that_are_keys_have_no_lengths_of_their_own() -> None:
    """A layer that attends to itself says its padding by lengths."""
    with pytest.raises(conformance.DeclarationError, match="whose queries are its keys"):
        conformance.layer(masks=["query_lengths"], inputs="self")


def test_a_declared_grid_is_not_given_again() -> None:
    """A kernel for one grid gets its window alone, for as many tokens as the grid has cells."""
    made = conformance.core(masks=["shifted_grid"], grid=(2, 6))(
        lambda query, key, value, *, window=None, shift=(0, 0): query
    )
    assert made.declaration.pins.sizes["query_length"] == (12,)
    plan = MaskPlan(pattern="random", form="shifted_grid", shape="11QK")
    sizes = structure(12, 12).geometry
    inputs = materialise(Problem(geometry=sizes, dtype="float32", seed=1, mask=plan), made)
    given = structured_keywords(inputs)
    assert set(given) == {"window", "shift"}
    assert all(size % each == 0 for size, each in zip((2, 6), given["window"], strict=True))


@pytest.mark.parametrize(
    ("promises", "said"),
    [
        ({"grid": (2, 6)}, "grid is (2, 6), but masks has no 'grid': drop it, or declare them"),
        (
            {"masks": ["grid"], "grid": (2, 0)},
            "grid is (2, 0): give how many rows and columns its tokens have, such as (4, 6)",
        ),
        (
            {"masks": ["grid"], "grid": (2, 6), "geometry": {"query_length": 13}},
            "geometry pins lengths other than the 12 cells of grid=(2, 6): drop them",
        ),
        (
            {"masks": ["neighborhood"], "features": ["window"]},
            (
                "masks has 'neighborhood' with features=['window'], and the window of a grid is "
                "given with it: drop the feature"
            ),
        ),
        (
            {"masks": ["grid"], "geometry": {"query_length": 4, "key_length": 8}},
            (
                "geometry pins key_length to [8] and query_length to [4], but masks=['grid'] makes "
                "them one size"
            ),
        ),
    ],
)
def test_what_grids_need(promises: dict[str, object], said: str) -> None:
    """Each mistake of a declaration is one sentence."""
    with refused(said):
        conformance.core(**promises)(lambda query, key, value, **_given: query)
