from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from conformance import Cache
from conformance.adapters.calling import Calling
from conformance.adapters.sequences import counts

TOKENS = torch.arange(2 * 7 * 3.0).reshape(2, 7, 3)


class Told(nn.Module):
    """Keeps what each call gives."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[dict[str, Any]] = []

    def forward(self, x: Tensor, **options: Any) -> tuple[Tensor, int]:
        """Return the tokens and the number of calls, as if it were a cache."""
        self.calls.append({"x": x, **options})
        return x, len(self.calls)


def told(cache: Cache, past: int, calls: int = 1, **more: Any) -> list[dict[str, Any]]:
    """What the calls of a sequence were given."""
    module, calling = Told(), Calling(inputs="self", cache=cache, fills=more.pop("fills", ()))
    given = {"past": TOKENS[:, :past], "past_calls": calls, **more}
    answer = calling(module, (TOKENS[:, past:],), given)
    assert torch.equal(answer, TOKENS[:, past:])
    return module.calls


def test_every_token_is_given_once_and_in_order() -> None:
    """The first tokens in as many calls as are asked for, the others in one."""
    assert [list(counts(5, calls)) for calls in (1, 2, 5, 9)] == [[5], [3, 2], [1] * 5, [1] * 5]
    calls = told(Cache(parameter="past", returned=1), 5, 2)
    assert [one["x"].shape[1] for one in calls] == [3, 2, 2]
    assert torch.equal(torch.cat([one["x"] for one in calls], dim=1), TOKENS)


def test_a_returned_cache_is_given_back() -> None:
    """The first call gets none, each later one what the call before returned."""
    calls = told(Cache(parameter="past", returned=1, options={"keep": True}), 4, 2)
    assert [one.get("past") for one in calls] == [None, 1, 2]
    assert all(one["keep"] for one in calls)


def test_a_made_cache_is_one_object_a_sequence() -> None:
    """Another sequence, in between or later, gets another object."""
    calls = told(Cache(parameter="past", make=list), 4, other_past=TOKENS[:, :2])
    first, other, last = (one["past"] for one in calls)
    assert first is last
    assert first is not other


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("start", [0, 4]),
        ("length", [4, 7]),
        ("L", [[0, 1, 2, 3], [4, 5, 6]]),
        ("1L", [[[0, 1, 2, 3]], [[4, 5, 6]]]),
        ("BL", [[[0, 1, 2, 3]] * 2, [[4, 5, 6]] * 2]),
        ("B", [[0, 0], [4, 4]]),
    ],
)
def test_places_in_each_form(form: str, expected: list[Any]) -> None:
    """The places of new tokens go on where those of the call before end."""
    calls = told(Cache(positions={"at": form}), 4)
    places = [one["at"] for one in calls]
    assert [at.tolist() if isinstance(at, Tensor) else at for at in places] == expected


def test_masks_of_earlier_calls_hide_nothing() -> None:
    """The last call gets the mask; the others one of their own sizes, padded to the slots."""
    mask = torch.zeros(2, 1, 3, 7, dtype=torch.bool)
    calls = told(Cache(parameter="past", make=dict, slots=9), 4, keep=mask, past_axes="B1QK")
    first, last = (one["keep"] for one in calls)
    assert first.shape == (2, 1, 4, 9)
    assert bool(first[..., :4].all())
    assert not bool(first[..., 4:].any())
    assert last.shape == (2, 1, 3, 9)
    assert not bool(last.any())


def test_tables_are_cut_to_the_tokens_of_each_call() -> None:
    """Those of a call and those that are made for it, along the axis of tokens."""
    table = torch.arange(7.0)[:, None]
    fills = (
        ("at", "torch.arange({query}.shape[-2])[None]"),
        ("seen", "{query}.new_ones({query}.shape[-2], {key}.shape[-2])"),
    )
    calls = told(Cache(parameter="past", make=dict), 5, angles=table, fills=fills)
    assert [one["angles"].flatten().tolist() for one in calls] == [[0, 1, 2, 3, 4], [5, 6]]
    assert [one["at"].tolist() for one in calls] == [[[0, 1, 2, 3, 4]], [[5, 6]]]
    assert [tuple(one["seen"].shape) for one in calls] == [(5, 5), (2, 7)]


def test_a_module_that_holds_its_cache_begins_anew() -> None:
    """Before every sequence, one of a single call, too; a copy is asked in between."""
    begun: list[tuple[nn.Module, int]] = []
    cache = Cache(reset=lambda module, tokens: begun.append((module, tokens.shape[1])))
    module, calling = Told(), Calling(inputs="self", cache=cache)
    calling(module, (TOKENS,), {})
    calling(module, (TOKENS[:, 4:],), {"past": TOKENS[:, :4], "other_past": TOKENS[:, :2]})
    assert [length for _, length in begun] == [7, 7, 2]
    assert [one is module for one, _ in begun] == [True, True, False]


def test_what_a_call_says_of_the_cache_gives_way() -> None:
    """A call= of the user's may give a start by place: it is that of the sequence all the same."""

    class Placed(Told):
        def forward(self, x: Tensor, start: int) -> tuple[Tensor, int]:  # type: ignore[override]
            return super().forward(x, start=start)

    module = Placed()
    calling = Calling(
        inputs="self",
        cache=Cache(positions={"start": "start"}),
        function=lambda module, x: module(x, 0),
    )
    calling(module, (TOKENS[:, 4:],), {"past": TOKENS[:, :4]})
    assert [one["start"] for one in module.calls] == [0, 4]
