from __future__ import annotations

import math
import threading
from typing import Any

import torch
from examples import CLAUSES, layer, problem, try_on
from torch import Tensor

from candidates.eager import EagerModule
from conformance.base.geometry import Geometry
from conformance.clauses.registry import all_clauses

PROMISES: dict[str, Any] = {"masks": [], "causal": None, "features": [], "empty_rows": "any"}


class PlainScale(EagerModule):
    """A scale that is a plain float32 tensor."""

    def __init__(self, geometry: Any, weights: Any) -> None:
        super().__init__(geometry, weights)
        self.factor = torch.tensor(1.0)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Any:
        """Scaled by it."""
        answer = super().forward(query, key, value, **options)
        return answer * self.factor


class HiddenScale(EagerModule):
    """A constant rounded to float32, hidden where no attribute shows it."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Any:
        """Query divided by its root in float32, multiplied back."""
        rounded = float(torch.tensor(math.sqrt(self.geometry.head_size)).float())
        exact = math.sqrt(self.geometry.head_size)
        assert self.q is not None
        before = self.q.data
        try:
            self.q.data = before * (exact / rounded)
            return super().forward(query, key, value, **options)
        finally:
            self.q.data = before


class Registered(PlainScale):
    """The same scale as a buffer."""

    def __init__(self, geometry: Any, weights: Any) -> None:
        EagerModule.__init__(self, geometry, weights)
        self.register_buffer("factor", torch.tensor(1.0))


def test_plain_tensor_stays_behind() -> None:
    """A tensor that is neither parameter nor buffer is named, whatever its value."""
    finding = try_on(layer(PlainScale, **PROMISES), "state.follows-to", problem())
    assert finding.violation is not None
    assert finding.violation.message == "plain tensors stay behind after .to(device): factor"


def test_buffer_follows() -> None:
    """The same tensor as a buffer follows."""
    assert try_on(layer(Registered, **PROMISES), "state.follows-to", problem()).violation is None


class Locked(EagerModule):
    """A module that holds a lock, which nobody can copy."""

    def __init__(self, geometry: Any, weights: Any) -> None:
        super().__init__(geometry, weights)
        self.lock = threading.Lock()


def test_what_cannot_be_copied_is_not_moved() -> None:
    """A module that holds a lock is no error of the harness, and no mistake: a copy is ours."""
    finding = try_on(layer(Locked, **PROMISES), "state.follows-to", problem())
    assert finding.violation is None
    assert "cannot pickle" in finding.inapplicable


def test_a_space_without_problems_is_no_error() -> None:
    """Where a geometry function makes sizes that no clause can use, nothing is built to look at."""

    def longer(geometry: Geometry) -> Geometry:
        return geometry.replace(key_length=geometry.query_length + 1)

    made = layer(EagerModule, inputs="self", geometry=longer, **PROMISES)
    assert CLAUSES["state.follows-to"].not_applicable(made) == ""


def test_constant_in_single_precision_shows_in_float64() -> None:
    """A constant rounded to float32 is invisible there and shows once the module is float64."""
    candidate = layer(HiddenScale, **PROMISES)
    example = problem(head_size=3, value_size=9)
    assert try_on(candidate, "numerics.golden", example).violation is None
    finding = try_on(candidate, "state.follows-to", example)
    assert finding.violation is not None
    assert "something still has another dtype" in finding.violation.message


def test_dropout_that_ignores_eval_is_random() -> None:
    """A module whose eval does not reach its dropout answers differently under other seeds."""

    class Always(EagerModule):
        def eval(self) -> Any:
            return self

    finding = try_on(layer(Always, **PROMISES), "state.eval-deterministic", problem())
    assert finding.violation is not None


def test_state_dict_of_another_answers_like_it() -> None:
    """Loading the state of another module gives its answer, and examples bind."""
    finding = try_on(layer(EagerModule, **PROMISES), "state.state-dict", problem())
    assert finding.violation is None
    assert finding.binding


def test_weights_outside_the_state_are_detected() -> None:
    """A matrix that the state dict does not hold keeps the old answer."""

    class Frozen(EagerModule):
        def __init__(self, geometry: Any, weights: Any) -> None:
            super().__init__(geometry, weights)
            del self.v
            self.register_buffer("v", weights.v.clone(), persistent=False)

    finding = try_on(layer(Frozen, **PROMISES), "state.state-dict", problem())
    assert finding.violation is not None


def test_what_a_call_keeps_of_the_weights_is_detected() -> None:
    """A matrix that the first call copies is old news after another state was loaded."""

    class Fused(EagerModule):
        copied: Tensor | None = None

        def forward(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Any:
            output: Any = self.o
            self.copied = output.detach().clone() if self.copied is None else self.copied
            with torch.no_grad():
                output.copy_(self.copied)
            return super().forward(query, key, value, **options)

    candidate = layer(Fused, **PROMISES)
    assert try_on(candidate, "state.state-dict", problem(seed=1)).violation is not None
    assert try_on(candidate, "state.state-dict", problem(seed=2)).violation is None


def test_an_empty_state_promises_nothing() -> None:
    """A module whose weights stay with its builder has no state to load: not applicable."""

    class Stateless(torch.nn.Module):
        def __init__(self, geometry: Any, weights: Any) -> None:
            super().__init__()
            self.attend = [EagerModule(geometry, weights)]

        def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Any:
            """Attend with a module that nobody registered."""
            return self.attend[0](query, key, value)

    (clause,) = [clause for clause in all_clauses() if clause.id == "state.state-dict"]
    assert "state dict is empty" in clause.not_applicable(layer(Stateless, **PROMISES))
    assert not clause.not_applicable(layer(EagerModule, **PROMISES))
