"""The steps of a right computation are those of a right attention, and of a mistake its own."""

from __future__ import annotations

import torch
from examples import plan, problem
from torch import Tensor

import conformance
from conformance.clauses.subject import Subject
from conformance.diagnosis.lines.steps import KnownValues, mistaken_steps, right_steps
from conformance.diagnosis.mistaken_answer import act, made_on
from conformance.diagnosis.mistakes import named_mistakes


@conformance.core(masks=["keep"], causal="bottom-right", empty_rows="zeros")
def never_called(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
) -> Tensor:
    """A candidate that is declared alone."""
    raise NotImplementedError


SUBJECT = Subject(never_called, "float32")
INPUTS = SUBJECT.inputs(problem(mask=plan(), causal=True, query_length=4, key_length=5))
POINT = SUBJECT.declaration.semantics


def right() -> KnownValues:
    """The values that a right computation may pass through."""
    steps = right_steps(POINT, INPUTS, SUBJECT.golden(INPUTS).output)
    return KnownValues(steps, INPUTS.geometry, torch.float32, tiled=False)


def mistaken(name: str) -> KnownValues:
    """Those of the first way to make a mistake."""
    made = made_on(POINT, [one for one in named_mistakes() if one.name == name][:1], INPUTS)
    answer = act(SUBJECT.oracle, POINT, made, INPUTS).output
    steps = mistaken_steps(POINT, made, INPUTS, answer)
    return KnownValues(steps, INPUTS.geometry, torch.float32, tiled=False)


def test_an_attention_written_out_is_recognised_throughout() -> None:
    """Products, scores, masks, logits, exponentials, weights and answer, in float32."""
    query, key, value = INPUTS.query, INPUTS.key, INPUTS.value
    heads = query.shape[1] // key.shape[1]
    key, value = (each.repeat_interleave(heads, dim=1) for each in (key, value))
    scale = query.shape[-1] ** -0.5
    seen = INPUTS.allowed(POINT)
    ahead = torch.ones(4, 5, dtype=torch.bool).triu(2)
    logits = (query @ key.mT * scale).masked_fill(~seen, -torch.inf)
    values = right()
    assert values.kind(logits.amax(dim=-1)) == "inner"
    weights = logits.softmax(dim=-1)
    assert values.kind(ahead) == "inner"  # the mask is missing in it
    steps = (query * scale, query @ key.mT, query @ key.mT * scale, seen, logits, weights)
    for number, one in enumerate((*steps, weights.nan_to_num(0.0) @ value.float())):
        assert values.kind(one) == "step", number


def test_a_mistake_has_steps_that_are_not_right() -> None:
    """Logits and weights of a missing scale are its own; its products are right as well."""
    query, key = INPUTS.query, INPUTS.key
    key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    products = query @ key.mT
    logits = products.masked_fill(~INPUTS.allowed(POINT), -torch.inf)
    assert mistaken("scale-missing").kind(logits) == "step"
    assert right().kind(logits) == ""
    assert right().kind(products) == "step"
