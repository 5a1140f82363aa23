"""A forward pass as calls: operands, scopes, sizes, and what is changed in place."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from conformance.models.recording import Size, record, size_at


class Small(nn.Module):
    """A product, a sum in place, and an attention of torch's own."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: Tensor, shift: Tensor) -> Tensor:
        """As a module is called."""
        y = self.linear(x).view(x.shape[0] * x.shape[1], -1)
        y += shift
        y = y.view(x.shape[0], x.size(1), 4)
        answer: Tensor = self.attention(y, y, y, need_weights=False)[0]
        return answer


def test_each_call_knows_its_operands_and_its_module() -> None:
    """The product of the linear part reads the input and two weights, under the part's name."""
    made = record(Small().eval(), {"x": torch.randn(2, 3, 4), "shift": torch.randn(4)})
    linear = next(call for call in made.calls if call.name == "linear")
    assert linear.scope == "linear"
    kinds = [made.values[number].kind for number in linear.reads]
    assert kinds == ["input", "weight", "weight"]


def test_what_depends_on_an_input_is_known() -> None:
    """Behind the sum the second input counts, too, before it the first alone."""
    made = record(Small().eval(), {"x": torch.randn(2, 3, 4), "shift": torch.randn(4)})
    linear = next(call for call in made.calls if call.name == "linear")
    assert made.values[linear.results[0]].above == {"x"}
    kernel = next(call for call in made.calls if call.name == "scaled_dot_product_attention")
    assert made.values[kernel.results[0]].above == {"x", "shift"}


def test_a_tensor_changed_in_place_keeps_what_it_was() -> None:
    """The value before the sum is that of the linear part; the one after it is another value."""
    x, shift = torch.randn(2, 3, 4), torch.ones(4)
    module = Small().eval()
    made = record(module, {"x": x, "shift": shift})
    added = next(call for call in made.calls if call.name == "add")
    changes = dict(added.renewed)
    view = next(call for call in made.calls if call.name == "view")
    before, after = view.results[0], changes[view.results[0]]
    expected = module.linear(x).reshape(6, 4)
    torch.testing.assert_close(made.values[before].tensor, expected)
    torch.testing.assert_close(made.values[after].tensor, expected + 1)


class Compiled(nn.Module):
    """A part that is compiled whole, and changes a tensor in place."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.inner = torch.compile(lambda x: (x + 1).neg_(), backend="eager", fullgraph=True)

    def forward(self, x: Tensor) -> Tensor:
        """As a module is called."""
        answer: Tensor = self.inner(self.linear(x))
        return answer


def test_a_part_that_is_compiled_is_recorded() -> None:
    """A compiler that traces the module's calls can do so, and the answer is the module's."""
    module, x = Compiled().eval(), torch.randn(3, 4)
    made = record(module, {"x": x})
    with torch.no_grad():
        torch.testing.assert_close(made.answer, module(x))
    assert made.calls[0].name == "linear"


def test_what_torchs_own_attention_computes_inside_is_seen() -> None:
    """Its kernel is among the calls, with the module's path."""
    made = record(Small().eval(), {"x": torch.randn(2, 3, 4), "shift": torch.randn(4)})
    kernels = [call for call in made.calls if call.name == "scaled_dot_product_attention"]
    assert [call.scope for call in kernels] == ["attention"]


def test_the_answer_is_that_of_the_module() -> None:
    """Recording changes no number."""
    x, shift = torch.randn(2, 3, 4), torch.randn(4)
    module = Small().eval()
    torch.testing.assert_close(record(module, {"x": x, "shift": shift}).answer, module(x, shift))


def test_sizes_stay_tied_to_what_they_were_read_off() -> None:
    """A product of two sizes of one tensor is that of the new sizes of another."""
    made = record(Small().eval(), {"x": torch.randn(2, 3, 4), "shift": torch.randn(4)})
    view = next(call for call in made.calls if call.name == "view")
    size = view.arguments[1]
    assert isinstance(size, Size)
    assert size == 6
    x = next(value.number for value in made.values if value.above == {"x"})
    assert size_at(size, {x: (5, 7, 4)}, lambda number: number) == 35
    assert size_at(size, {}, lambda number: number + 1) == 12


class Refilled(nn.Module):
    """A tensor gets memory that nobody saw, and changes in place; then so does what it was."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """As a module is called."""
        moved = x * 1
        view = moved[:]
        moved.data = torch.from_numpy(np.zeros(3, np.float32))
        moved.add_(1)
        view.mul_(2)
        return moved, view


def test_a_tensor_may_get_other_memory() -> None:
    """It changes alone, and what lies where it was changes without it."""
    made = record(Refilled(), {"x": torch.ones(3)})
    assert [tensor.tolist() for tensor in made.answer] == [[1.0] * 3, [2.0] * 3]
    added, doubled = (call for call in made.calls if call.renewed)
    ((before, _),) = doubled.renewed
    assert made.values[before].tensor.tolist() == [1.0] * 3
    assert before not in dict(added.renewed)
    assert added.reads[0] in dict(added.renewed)
