"""One call with gradients recorded: its arguments, its answer and its gradients."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from ..base.results import EXCLUDE_GRADIENTS, Violation
from ..declare.declaration import LEARNED_KEYWORDS
from ..problems.arrangements import (
    canonical_tokens,
    present_output,
    presented_log_sum_exp,
    token_names,
)
from ..problems.inputs import Inputs
from .calling import Answer, Arguments, CandidateFailure, guarded
from .weight_leaves import WeightLeaves

# The inputs of a call, in the harness' own axes, by the mode of the inputs.
INPUT_NAMES = {
    "separate": ("query", "key", "value"),
    "memory": ("query", "context"),
    "self": ("x",),
}
# Keywords whose tensors require gradients wherever a call uses them.
CACHED_NAMES = {"past_key": "key", "past_value": "value"}
LEARNED_NAMES = tuple(word for words in LEARNED_KEYWORDS.values() for word in words)
KEYWORD_LEAVES = (*CACHED_NAMES, "sinks", *LEARNED_NAMES)
COMPUTING_GRADIENTS = "computing the gradients"


class NotDifferentiable(LookupError):  # noqa: N818 (a promise that nobody made is not broken)
    """The candidate has no gradients, and promises them by default only."""

    def __init__(self, why: str) -> None:
        super().__init__(f"{why}: {EXCLUDE_GRADIENTS}")


class _Handing(torch.autograd.Function):
    """A zero whose backward pass hands given gradients to answers unchanged."""

    @staticmethod
    def forward(ctx: Any, given: Sequence[Tensor], *answers: Tensor) -> Tensor:
        ctx.given = given
        return answers[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, *_one: Tensor) -> Any:
        return (None, *ctx.given)


def pull_back(answers: Sequence[Tensor], given: Sequence[Tensor], *, again: bool = False) -> None:
    """Backpropagate given gradients of the answers, adding to the leaves' gradients.

    ``again`` keeps the history. ``torch.autograd.backward`` with ``grad_tensors`` does this, too,
    but imports sympy to compare sizes as symbols, which takes most of a second.
    """
    with torch.enable_grad():
        handing: Tensor = _Handing.apply(given, *answers)  # type: ignore[no-untyped-call]  # of torch
    handing.backward(retain_graph=again)


@dataclass(frozen=True, kw_only=True, eq=False)
class Gradients:
    """The gradients of one call in the axes of the inputs.

    ``by_name`` holds zeros for inputs without a gradient, named in ``missing``; weights that cannot
    get a gradient are left out. ``output`` is the answer of the call.
    """

    by_name: dict[str, Tensor]
    missing: frozenset[str]
    output: Tensor

    def without(self, names: Collection[str]) -> Gradients:
        """Return the gradients except the named ones."""
        kept = {name: tensor for name, tensor in self.by_name.items() if name not in names}
        missing = self.missing.difference(names)
        return Gradients(by_name=kept, missing=missing, output=self.output)


@dataclass(frozen=True, kw_only=True, eq=False)
class Taped:
    """A call made with gradients recorded.

    ``leaves`` are the arguments that require gradients, by name. ``other_parameters`` are the
    candidate's own parameters, whose gradients are left unchanged.
    """

    inputs: Inputs
    arguments: Arguments
    leaves: dict[str, Tensor]
    answer: Answer
    weights: WeightLeaves | None = None
    other_parameters: tuple[Tensor, ...] = ()

    @property
    def returned(self) -> Tensor:
        """The answer object, with its history."""
        if self.answer.returned is None:
            msg = "a call that was recorded has returned something"
            raise LookupError(msg)
        return self.answer.returned

    @property
    def returned_beside(self) -> Tensor | None:
        """The weights or log-sum-exps that were returned beside the answer, with their history."""
        lse = self.answer.returned_lse
        return self.answer.returned_weights if lse is None else lse

    @property
    def all_leaves(self) -> tuple[Tensor, ...]:
        """The leaves, and those of the weights."""
        more = () if self.weights is None else self.weights.tensors
        return (*self.leaves.values(), *more)

    def pull(
        self, upstream: Tensor | None, *, beside: Tensor | None = None, again: bool = False
    ) -> Gradients:
        """The gradients for an output gradient in the axes of the answer proper.

        ``beside`` is that of what is returned beside it: weights ``[B, H, Lq, Lk]``, or
        log-sum-exps ``[B, H, Lq]``. Either is None where that part of the answer is not used.
        ``again`` keeps the history for another backward pass. Raises CandidateFailure.
        """
        gradient = None if upstream is None else as_returned(upstream, self)
        return self.pull_as_returned(gradient, beside=beside, again=again)

    def pull_as_returned(
        self, gradient: Tensor | None, *, beside: Tensor | None = None, again: bool = False
    ) -> Gradients:
        """The gradients for an output gradient in the shape of what was returned.

        Computed as in training, by ``backward()``, and read from the leaves: a reentrant checkpoint
        refuses ``torch.autograd.grad``.
        """
        with _put_aside((*self.all_leaves, *self.other_parameters)):
            self.backward(gradient, beside=beside, again=again)
            return self.gather(tuple(leaf.grad for leaf in self.all_leaves))

    def backward(
        self, gradient: Tensor | None, *, beside: Tensor | None = None, again: bool = False
    ) -> None:
        """Add the gradients for an output gradient to those of the leaves."""
        used = [] if gradient is None else [(self.returned, gradient)]
        if beside is not None and self.returned_beside is not None:
            if self.answer.returned_lse is not None:
                beside = presented_log_sum_exp(beside, self.inputs)
            second = self.returned_beside
            used.append((second, beside.reshape(second.shape).to(second)))
        answers, given = zip(*used, strict=True)
        guarded(pull_back, (answers, given), {"again": again}, COMPUTING_GRADIENTS)

    def connected(self, gradients: tuple[Tensor | None, ...]) -> dict[str, Tensor]:
        """Gradients of ``leaves`` as those of inputs, with their own history."""
        by_name = self._inputs(gradients[: len(self.leaves)])
        return {
            name: torch.zeros_like(_like(self, name)) if tensor is None else tensor
            for name, tensor in by_name.items()
        }

    def gather(self, gradients: tuple[Tensor | None, ...]) -> Gradients:
        """Gradients of ``all_leaves``, in their order, as those of inputs and weights."""
        by_name: dict[str, Tensor | None] = self._inputs(gradients[: len(self.leaves)])
        if self.weights is not None:
            by_name |= self.weights.gather(gradients[len(self.leaves) :])
        named = {name: _like(self, name) for name in by_name}
        return Gradients(
            by_name={
                name: torch.zeros_like(named[name]) if tensor is None else tensor.detach().cpu()
                for name, tensor in by_name.items()
            },
            missing=frozenset(name for name, tensor in by_name.items() if tensor is None),
            output=self.answer.output,
        )

    def _inputs(self, gradients: Iterable[Tensor | None]) -> dict[str, Tensor | None]:
        """Return gradients of tokens, bias and other keywords, in the harness' own axes."""
        arrived = dict(zip(self.leaves, gradients, strict=True))
        by_name: dict[str, Tensor | None] = {}
        for name in KEYWORD_LEAVES:
            if name in arrived:
                tensor = arrived.pop(name)
                by_name[name] = None if tensor is None else self._of_keyword(name, tensor)
        if "bias" in arrived:
            bias = arrived.pop("bias")
            by_name["bias"] = None if bias is None else bias.reshape(_like(self, "bias").shape)
        layout = self.inputs.head_layout
        if layout.is_own or layout.value_in_key:
            names = INPUT_NAMES[self.inputs.mode]
            input_names = dict(zip(self.positional_names, names, strict=True))
            batched = {
                input_names[name]: None if tensor is None else self._batched(tensor)
                for name, tensor in arrived.items()
            }
            return batched | by_name
        return by_name | self._of_heads(arrived)

    def _of_heads(self, arrived: dict[str, Tensor | None]) -> dict[str, Tensor | None]:
        """Return gradients of query, key and value packed in one input."""
        arguments = zip(self.positional_names, self.arguments[0], strict=True)
        whole = tuple(
            torch.zeros_like(tensor) if gradient is None else gradient
            for tensor, gradient in ((tensor, arrived.get(name)) for name, tensor in arguments)
        )
        tokens = dict(
            zip(INPUT_NAMES["separate"], canonical_tokens(whole, self.inputs), strict=True)
        )
        lying = zip(self.positional_names, token_names(self.inputs), strict=True)
        return {
            name: None if arrived[leaf] is None else tokens[name]
            for leaf, names in lying
            if leaf in arrived
            for name in names
        }

    @property
    def positional_names(self) -> tuple[str, ...]:
        """The names of the arguments that are given by position."""
        return tuple(f"input {number}" for number in range(len(self.arguments[0])))

    def _of_keyword(self, name: str, tensor: Tensor) -> Tensor:
        """Return a gradient of cached heads as ``[B, H, P, D]``, one of other keywords as is."""
        if name not in CACHED_NAMES:
            return tensor
        tensor = self._batched(tensor)
        return self.inputs.head_layout.restored(tensor)

    def _batched(self, tensor: Tensor) -> Tensor:
        if not self.inputs.batched:
            return tensor.unsqueeze(0)
        lacks_heads = not self.inputs.is_layer and tensor.dim() < self.inputs.key.dim()
        return tensor.unsqueeze(1) if lacks_heads else tensor


@contextmanager
def _put_aside(leaves: tuple[Tensor, ...]) -> Iterator[None]:
    """Clear the leaves' gradients meanwhile, then restore them."""
    held = [(leaf, leaf.grad) for leaf in dict.fromkeys(leaves)]  # a leaf may stand for several
    for leaf, _ in held:
        leaf.grad = None
    try:
        yield
    finally:
        for leaf, gradient in held:
            leaf.grad = gradient


def _like(taped: Taped, name: str) -> Tensor:
    """Return a tensor of the gradient's shape."""
    inputs = taped.inputs
    if name in ("x", "context"):
        return inputs.key
    if name in CACHED_NAMES:
        cached: Tensor = getattr(inputs, CACHED_NAMES[name])
        return cached[..., : inputs.past, :]
    if name in ("query", "key", "value"):
        tokens: Tensor = getattr(inputs, name)
        return tokens if name == "query" else tokens[..., inputs.past :, :]
    given = {"sinks": inputs.sinks, **inputs.learned_arguments}
    if (tensor := given.get(name)) is not None:
        return tensor
    if name == "bias":
        return taped.leaves["bias"] if inputs.bias is None else inputs.bias
    if taped.weights is None:
        msg = f"{name} names no tensor of this call"
        raise LookupError(msg)
    return taped.weights.by_role[name].detach().cpu()


def as_returned(upstream: Tensor, taped: Taped) -> Tensor:
    """Return an output gradient in the axes, dtype and place of the returned answer.

    A copy: a backward pass may write into it.
    """
    gradient = present_output(upstream, taped.inputs)
    if not taped.inputs.batched:
        gradient = gradient.squeeze(0)
    returned = taped.returned
    return gradient.to(device=returned.device, dtype=returned.dtype, copy=True)


def require_gradients(
    arguments: Arguments, names: Iterable[str] | None, *, bias: bool = False
) -> dict[str, Tensor]:
    """Make positional tensors of a call require gradients; returned by name.

    ``names`` are a part of :attr:`Taped.positional_names`; without names cached heads, sinks
    and learned arguments require gradients, too. The tensors must be fresh.
    """
    named: dict[str, Any] = {f"input {number}": each for number, each in enumerate(arguments[0])}
    if names is None:
        named |= {name: arguments[1].get(name) for name in KEYWORD_LEAVES}
    else:
        named = {name: tensor for name, tensor in named.items() if name in set(names)}
    if bias:
        named["bias"] = arguments[1].get("bias")
    tensors = {name: each for name, each in named.items() if isinstance(each, Tensor)}
    return {name: tensor.requires_grad_() for name, tensor in tensors.items()}


# The kind of violation for an answer without backward pass, as for a wrong type.
LOST: Final = "type"


def lost(message: str) -> CandidateFailure:
    """The failure of a candidate that promises gradients and has none."""
    return CandidateFailure(Violation(kind=LOST, message=message))
