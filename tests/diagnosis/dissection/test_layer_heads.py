"""What becomes of a layer's heads is told by its answer, where weights say nothing of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from examples import BARE, core, layer
from torch import Tensor

from candidates.eager import Call, EagerCore, EagerLayer
from conformance.clauses.subject import Subject
from conformance.declare.candidate import Candidate
from conformance.diagnosis import diagnose

Centred = tuple[Tensor, Tensor, Tensor]


class ValuesCentred(EagerLayer):
    """The mean over the heads is taken off the values."""

    def heads(self, query: Tensor, key: Tensor, value: Tensor) -> Centred:
        """Cut and changed."""
        one, two, three = super().heads(query, key, value)
        return one, two, three - three.mean(1, keepdim=True)


class QueriesCentred(EagerCore):
    """The mean over the batch is taken off the queries."""

    def scores(self, call: Call, key: Tensor) -> Tensor:
        """Of such queries."""
        query = call.query - call.query.mean(0, keepdim=True)
        return super().scores(call.replace(query=query), key)


def sharing(order: Callable[[int, int, int], int]) -> EagerCore:
    """A core whose query heads read the key/value heads of an order."""

    class Sharing(EagerCore):
        """By the order."""

        def share(self, heads: Tensor, num_heads: int) -> Tensor:
            """One for each query head."""
            shared = heads.shape[1]
            return heads[:, [order(head, num_heads, shared) for head in range(num_heads)]]

    return Sharing()


class Divided(EagerLayer):
    """Head h reads key/value head h divided by their number."""

    core = sharing(lambda head, _count, shared: min(head // shared, shared - 1))


# Rounded up: as four heads over two are read, so are those that read head h, or the last one.
ROUNDED_UP = sharing(lambda head, count, shared: min(-(-head * shared // count), shared - 1))
GROUPED = {**BARE, "features": ["gqa"]}


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("candidate", "said"),
    [
        (layer(ValuesCentred, **BARE), "the values are less their mean over the key/value heads"),
        (
            core(QueriesCentred(), **BARE),
            "the logits are made with the query less its mean over the batch items",
        ),
        (
            layer(Divided, **GROUPED),
            (
                "keys and values of the heads are those of key/value head h // their number, "
                "at most the last"
            ),
        ),
        (
            core(ROUNDED_UP, **GROUPED),
            (
                "query head h reads key/value head h * their number / the query heads, rounded up, "
                "or the last"
            ),
        ),
    ],
)
def test_changed_heads_are_stated(candidate: Candidate, said: str) -> None:
    """Centred over items or heads, or another key/value head: for every number of them."""
    (entry,) = diagnose(Subject(candidate, "float32"))
    assert entry["text"] == said
