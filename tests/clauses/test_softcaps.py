from __future__ import annotations

from typing import Any

import pytest
import torch
from examples import core, failing, problem, run_clause, try_on
from torch import Tensor

from candidates.eager import Call, EagerCore
from conformance._golden import golden
from conformance.clauses.registry import all_clauses

SLUGS = [clause.id for clause in all_clauses() if clause.family == "softcap"]


class ScaledLast(EagerCore):
    """The cap acts on dot products that are not scaled yet."""

    def logits(self, call: Call, key: Tensor) -> Tensor:
        """Capped, then scaled."""
        if call.softcap is None:
            return super().logits(call, key)
        products = call.query @ key.mT
        return self.scale(call) * call.softcap * torch.tanh(products / call.softcap)


class Quotient(EagerCore):
    """tanh as a quotient of exponentials."""

    def logits(self, call: Call, key: Tensor) -> Tensor:
        """NaN where an exponential overflows."""
        if call.softcap is None:
            return super().logits(call, key)
        power = (2.0 * self.scores(call, key) / call.softcap).exp()
        return call.softcap * (power - 1.0) / (power + 1.0)


def test_without_a_softcap_none_applies() -> None:
    """The reason is that no softcap is declared."""
    assert len(SLUGS) == len(("golden", "before-mask", "large", "after-scale"))
    for slug in SLUGS:
        assert run_clause(core(features=[]), slug).reason == "no softcap is declared"


def test_cap_before_scale_is_detected() -> None:
    """A cap that acts before the scale fails its own clause."""
    promises = {"features": ["softcap"], "masks": []}
    assert failing(core(ScaledLast(), **promises), "softcap.after-scale")
    assert run_clause(core(**promises), "softcap.after-scale").status == "passed"


def test_a_cap_that_is_declared_to_come_last_is_judged_as_that() -> None:
    """Where a cap after the mask is declared, hidden keys keep a weight, as the golden's do."""
    last = golden.STANDARD.replace(softcap_order="after-mask")

    def attend(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        return golden.attend(query, key, value, semantics=last, **options).output.to(query.dtype)

    promises: dict[str, Any] = {"features": ["softcap"], "masks": ["keep"], "empty_rows": "any"}
    declared = core(attend, semantics=last, **promises)
    assert run_clause(declared, "softcap.golden").status == "passed"
    result = run_clause(declared, "softcap.before-mask")
    assert result.status == "not-applicable"
    assert result.reason.startswith("it declares that the cap comes after the mask")
    assert failing(core(attend, **promises), "softcap.before-mask")


def test_overflow_is_detected() -> None:
    """Scores far above the cap must end at it, not at NaN."""
    promises = {"features": ["softcap"], "masks": []}
    assert failing(core(Quotient(), **promises), "softcap.large")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_correct_caps_pass_in_every_dtype(dtype: str) -> None:
    """No clause of the family fails or goes untested in other dtypes."""
    candidate = core(features=["softcap", "scale"], dtypes=[dtype])
    for slug in SLUGS:
        assert run_clause(candidate, slug, dtype=dtype).status == "passed", slug


def test_hidden_keys_need_something_that_hides() -> None:
    """Without a mask, a flag or a window the clause has nothing to speak of; a window is enough."""
    bare = {"masks": [], "causal": None, "empty_rows": "any"}
    result = run_clause(core(**bare, features=["softcap"]), "softcap.before-mask")
    assert result.reason == "no key can be hidden"
    windowed = run_clause(core(**bare, features=["softcap", "window"]), "softcap.before-mask")
    assert windowed.status == "passed"


def test_examples_bind() -> None:
    """A plain problem binds for each clause that asks it as it is."""
    finding = try_on(core(), "softcap.golden", problem(seed=5))
    assert finding.violation is None
    assert finding.binding
