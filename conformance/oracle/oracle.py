"""The golden answers and their bounds, computed once an example."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from functools import cached_property
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from .._golden import golden
from ..declare.declaration import Declaration
from ..problems.inputs import Inputs, rows_of_answer
from ..tolerance import (
    Contract,
    contract_for,
    core_bound,
    layer_bound,
    least_core_bound,
    least_layer_bound,
    most_core_bound,
    most_layer_bound,
)
from ..tolerance.attention_bound import log_sum_exp_bound, shares, weights_bound
from ..tolerance.layer import head_errors
from .headroom import finite_limit, representable_output, representable_rows


@dataclass(frozen=True, kw_only=True, eq=False)
class Golden:
    """A golden answer: float64 output, its bound at the declared precision, weights, empty rows.

    ``evaluation`` holds every intermediate value, ``core`` the values of its attention proper.
    ``limit`` is the largest number that a candidate can compute with. Queries ``absent`` from their
    sequence count as rows that no candidate can represent. For an answer to some of the queries
    only, ``attended`` marks the keys that any query attends, as for :func:`core_bound`.
    """

    output: Tensor
    contract: Contract
    weights: Tensor
    empty: Tensor
    core: golden.Attention
    evaluation: golden.Attention | golden.MultiHeadAttention
    limit: float
    absent: Tensor | None = None
    attended: Tensor | None = None

    @cached_property
    def bound(self) -> Tensor:
        """The worst-case bound under the contract; derived when it is asked for."""
        return _bound(self.evaluation, self.contract, self.attended)

    @cached_property
    def least_bound(self) -> Tensor | None:
        """A part of the bound that is quickly derived; None without a quick part."""
        if isinstance(self.evaluation, golden.Attention):
            return least_core_bound(self.evaluation, self.contract)
        return least_layer_bound(self.evaluation, self.contract)

    @cached_property
    def most_bound(self) -> float:
        """A number that no element of the bound exceeds, soon derived; infinite if none is."""
        if isinstance(self.evaluation, golden.Attention):
            return most_core_bound(self.evaluation, self.contract)
        return most_layer_bound(self.evaluation, self.contract)

    @cached_property
    def judged(self) -> Tensor:
        """The rows that ordinary clauses judge, broadcastable to output.

        All rows except empty rows and rows that a correct candidate may fail to represent.
        """
        return ~self.empty_rows & self.representable

    @property
    def empty_rows(self) -> Tensor:
        """The rows of the answer with a head without keys, broadcastable to output."""
        return self._rows_of_answer(self.empty)

    @cached_property
    def representable(self) -> Tensor:
        """The rows whose intermediate values are all representable, broadcastable to output."""
        rows = ~self._rows_of_answer(~self.representable_core)
        return rows & representable_output(self.output, self.limit).unsqueeze(-1)

    @cached_property
    def representable_core(self) -> Tensor:
        """The representable rows of each head: ``[B, H, Lq]``."""
        rows = representable_rows(self.core, self.limit)
        return rows if self.absent is None else rows & ~self.absent

    def _rows_of_answer(self, heads: Tensor) -> Tensor:
        """Whether some head of a row ``[B, H, Lq]`` is marked, as rows of the answer."""
        is_layer = self.output.dim() == len("BLE")
        rows = rows_of_answer(heads, self.core.semantics) if is_layer else heads
        return rows.unsqueeze(-1)


class Oracle:
    """Evaluates the golden at the declared point, or at another one, and remembers the answers."""

    def __init__(self, declaration: Declaration, dtype: str) -> None:
        self.declaration = declaration
        self.dtype = dtype
        self.seconds = 0.0
        self._answers: WeakKeyDictionary[Inputs, Golden] = WeakKeyDictionary()
        self._contract: tuple[float, Contract] | None = None

    def answer(self, inputs: Inputs) -> Golden:
        """The golden answer and bound of the declared point; remembered."""
        answer = self._answers.get(inputs)
        if answer is None:
            start = time.perf_counter()
            answer = self.answer_at(inputs, self.point(inputs))
            self.seconds += time.perf_counter() - start
            self._answers[inputs] = answer
        return answer

    def knows(self, inputs: Inputs) -> bool:
        """Whether the answer of the declared point has been computed."""
        return inputs in self._answers

    def empty_rule(self, inputs: Inputs) -> str:
        """The promised rule for a call's rows without keys, "any" for no promise."""
        implied = inputs.always_causal and inputs.masked
        return self.declaration.empty_rule(
            form=inputs.mask_form,
            causal=inputs.causal and not implied,
            weights=inputs.return_weights,
        )

    def point(self, inputs: Inputs) -> golden.Semantics:
        """The declared point, with the rule for rows without keys that applies to the inputs."""
        declared = self.declaration
        if not declared.empty_rows_by:
            return declared.semantics
        rule = self.empty_rule(inputs)
        return declared.semantics.replace(empty_rows="zeros" if rule == "any" else rule)

    def weights_bound(self, inputs: Inputs) -> Tensor:
        """The bound of returned weights, ``[B, H, Lq, Lk]``."""
        answer = self.answer(inputs)
        core, contract = answer.core, self.contract(answer.core.scale)
        if isinstance(answer.evaluation, golden.Attention):
            return weights_bound(core, contract)
        return weights_bound(core, contract, head_errors(answer.evaluation, contract))

    def log_sum_exp(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """A core's golden log-sum-exps in the declared base, and their bound: ``[B, H, Lq]``."""
        core, factor = self.answer(inputs).core, self.lse_factor
        bound = log_sum_exp_bound(core, self.contract(core.scale))
        return core.log_sum_exp * factor, bound * factor

    @property
    def lse_factor(self) -> float:
        """The factor from natural logarithms to those of the declared base."""
        return math.log2(math.e) if self.declaration.lse_base == "2" else 1.0

    def output(self, inputs: Inputs, semantics: golden.Semantics | None = None) -> Tensor:
        """The golden output alone, at any point of the semantics."""
        point = self.point(inputs) if semantics is None else semantics
        with torch.inference_mode():  # operations are a quarter quicker
            run = run_of(inputs, point)
            output: Tensor = run["answer" if inputs.is_layer else "output"]
        return output.clone()  # as any other tensor

    def answer_at(self, inputs: Inputs, point: golden.Semantics) -> Golden:
        """The answer and its bound at any point; not remembered."""
        return self.answer_of(evaluate(inputs, point), inputs.absent)

    def answer_of(
        self,
        evaluation: golden.Attention | golden.MultiHeadAttention,
        absent: Tensor | None = None,
    ) -> Golden:
        """An evaluation at any point, as an answer with its bound under the contract."""
        core = core_of(evaluation)
        return Golden(
            output=evaluation.output,
            contract=self.contract(core.scale),
            weights=core.weights,
            empty=core.empty,
            core=core,
            evaluation=evaluation,
            limit=self._limit,
            absent=absent,
        )

    @cached_property
    def _limit(self) -> float:
        return finite_limit(self.declaration, self.dtype)

    def contract(self, scale: float) -> Contract:
        """The declared precision contract for a scale; the last one is remembered."""
        if self._contract is None or self._contract[0] != scale:
            self._contract = scale, contract_for(self.declaration, self.dtype, scale)
        return self._contract[1]

    def shares(self, inputs: Inputs, index: tuple[int, ...]) -> dict[str, float]:
        """The part of every stage in the worst-case bound of one element, the largest first."""
        contract = self.contract(self.answer(inputs).core.scale)
        return shares(lambda other: self.bound(inputs, other), contract, index)

    def bound(self, inputs: Inputs, contract: Contract) -> Tensor:
        """The worst-case bound of the declared point's answer under another contract."""
        return _bound(self.answer(inputs).evaluation, contract)


def _bound(
    evaluation: golden.Attention | golden.MultiHeadAttention,
    contract: Contract,
    attended: Tensor | None = None,
) -> Tensor:
    with torch.inference_mode():  # nothing is differentiated: operations are a fifth quicker
        if isinstance(evaluation, golden.Attention):
            bound = core_bound(evaluation, contract, attended=attended)
        else:
            bound = layer_bound(evaluation, contract)
    return bound.clone()  # as any other tensor


def core_of(evaluation: golden.Attention | golden.MultiHeadAttention) -> golden.Attention:
    """The attention proper of an evaluation."""
    return evaluation if isinstance(evaluation, golden.Attention) else evaluation.core


def known_weights(inputs: Inputs) -> golden.ProjectionWeights:
    """The projections of a layer's inputs. LookupError when the candidate keeps them to itself."""
    if inputs.weights is None:
        msg = "a layer whose weights are unknown has no golden answer"
        raise LookupError(msg)
    return inputs.weights


def evaluate(
    inputs: Inputs, semantics: golden.Semantics, *, recorded: bool = False
) -> golden.Attention | golden.MultiHeadAttention:
    """Run the golden on one example, with gradients recorded where ``recorded``."""
    mode = torch.enable_grad() if recorded else torch.inference_mode()
    with mode:
        return golden.evaluated(run_of(inputs, semantics, recorded=recorded), semantics)


def run_of(inputs: Inputs, semantics: golden.Semantics, *, recorded: bool = False) -> golden.Run:
    """The golden's run on one example, with no result computed yet."""
    tokens = inputs.exact
    if not inputs.is_layer:
        return golden.run_of_attention(*tokens, semantics, **inputs.options)
    weights = known_weights(inputs)
    return golden.run_of_layer(
        *tokens,
        weights if recorded else inputs.weights_in_float64 or weights,
        semantics,
        num_heads=inputs.geometry.num_heads,
        num_kv_heads=inputs.geometry.num_kv_heads,
        **inputs.options,
    )
