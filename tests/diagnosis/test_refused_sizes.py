"""Of a call that raises the sizes and the operation are told; what is right may be declared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from examples import BARE_FLOAT32, core, run_clause
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


def _eights(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    if query.shape[-1] % 8:
        raise RuntimeError
    return scaled_dot_product_attention(query, key, value)


def _of_one_width(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return scaled_dot_product_attention(query, key, value).reshape(query.shape)


def _small(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    if query.shape[-1] > 100:
        raise RuntimeError
    return scaled_dot_product_attention(query, key, value)


def _filling(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scores = (query @ key.mT).half().fill_(-1e9)
    return scores.softmax(-1).float() @ value


def _of_no_size(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    raise RuntimeError(query.shape, key.shape, value.shape)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (_eights, '{"head_size": [8, 16, 32, 64, 128]}'),
        (_of_one_width, '{"value_head_size": "head_size"}'),
        (_small, '{"head_size": [1, 2, 3, 4, 5, 7, 8, 16, 32, 64]}'),
        (_of_no_size, ""),
    ],
)
def test_refused_sizes_are_told(function: Callable[..., Tensor], said: str) -> None:
    """With what to declare; nothing is said of a call that raises at all sizes."""
    result = run_clause(core(function, **BARE_FLOAT32), "numerics.golden", explain=True)
    assert result.violation is not None
    assert result.violation.kind == "raised"
    fixes = [entry["fix"] for entry in result.diagnosis]
    assert [fix.rpartition("geometry=")[2] for fix in fixes] == ([said] if said else [])


def test_a_number_that_the_dtype_cannot_hold_is_told() -> None:
    """The call raises at all sizes: what to fill in instead is said."""
    result = run_clause(core(_filling, **BARE_FLOAT32), "numerics.golden", explain=True)
    (entry,) = result.diagnosis
    assert entry["name"] == "number-beyond-dtype"
    assert "torch.finfo" in entry["fix"]


@pytest.mark.parametrize(
    ("power", "name"),
    [(-0.5, "value-used-for-query"), (-1.0, "sizes: the head size, the value head size")],
)
def test_an_exception_has_the_cause_of_wrong_answers_that_cannot_be_made_there(
    power: float, name: str
) -> None:
    """Values in place of queries raise at other head sizes; a scale that is off raises nowhere."""

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if value.shape[-1] != query.shape[-1]:
            raise ValueError
        used = value if power == -0.5 else query
        return (used @ key.mT * query.shape[-1] ** power).softmax(-1) @ value

    result = run_clause(core(attend, **BARE_FLOAT32), "numerics.golden", explain=True)
    assert result.violation is not None
    assert result.violation.kind == "raised"
    assert [entry["name"] for entry in result.diagnosis] == [name]


def test_a_search_that_breaks_hides_no_refused_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sizes of an exception are told though nothing is known of other answers."""

    def broken(*_arguments: object) -> None:
        raise OverflowError

    monkeypatch.setattr("conformance.running.causes.Diagnostician.explain", broken)
    result = run_clause(core(_eights, **BARE_FLOAT32), "numerics.golden", explain=True)
    assert [entry["name"] for entry in result.diagnosis] == ["sizes: the head size"]


def _explained(function: Callable[..., Tensor], **promises: Any) -> dict[str, Any]:
    attention = core(function, **{**BARE_FLOAT32, **promises})
    (entry,) = run_clause(attention, "numerics.golden", explain=True).diagnosis
    return entry


def _no_repeat(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scores = query @ key.mT / query.shape[-1] ** 0.5
    return scores.softmax(-1) @ value


def test_heads_that_are_not_repeated_are_told_and_not_declared_away() -> None:
    """With several groups the product raises: what is missing is the repetition."""
    entry = _explained(_no_repeat, features=["gqa"])
    assert entry["name"] == "sizes: queries share key/value heads"
    assert "repeat_interleave" in entry["fix"]
    assert "geometry=" not in entry["fix"]
    given = "given [batch, heads, queries, head size] and [batch, key/value heads, head size, keys]"
    assert given in entry["text"]


def _not_transposed(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return (query @ key / query.shape[-1] ** 0.5).softmax(-1) @ value


def test_a_lost_transposition_is_named_by_its_answers() -> None:
    """Where as many keys as channels let it answer, the answer says which operand is turned."""
    entry = _explained(_not_transposed)
    assert entry["name"].startswith(
        "keys of the heads: laid out as batch items, heads, channels, keys"
    )
    assert "raise: where the number of keys is not the head size" in entry["text"]
    assert "transpose the last two axes of the second operand" in entry["fix"]
