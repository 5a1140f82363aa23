"""learned.*, gradients.learned: what they apply to, what they see, what they let pass."""

from __future__ import annotations

import pytest
from examples import core, failing, run_clause

from candidates import learned
from candidates.broken import learned as broken
from candidates.broken._kit import DECLARED
from conformance import Mistake

SLUGS = {
    "learned.norm-weight": "norm_weights",
    "learned.temperature": "temperatures",
    "learned.slopes": "given_slopes",
    "gradients.learned": "all_learned",
    "sinks.null-key": "null_key",
}
BROKEN = [one for one in DECLARED if one.name in vars(broken)]


@pytest.mark.parametrize("slug", SLUGS)
def test_without_learned_arguments_none_applies(slug: str) -> None:
    """The reason is that calls give none, or that the semantics has no null key."""
    reason = run_clause(core(), slug).reason
    assert reason.startswith("its calls give no ") or reason == "its semantics has no null key"


@pytest.mark.parametrize("mistake", BROKEN, ids=lambda mistake: mistake.name)
def test_mistakes_with_learned_arguments_are_detected(mistake: Mistake) -> None:
    """By their primary clause."""
    assert failing(mistake.candidate, mistake.primary)


@pytest.mark.parametrize("slug", SLUGS)
def test_right_uses_of_learned_arguments_pass(slug: str) -> None:
    """Each clause has examples that bind."""
    result = run_clause(getattr(learned, SLUGS[slug]), slug, examples=12)
    assert result.status == "passed", result.reason
    assert result.binding > 0


@pytest.mark.parametrize("name", ["norm_weights_of_all_heads", "tempered_queries"])
@pytest.mark.parametrize("slug", ["mask.no-leak", "gradients.golden", "cache.golden"])
def test_learned_arguments_go_with_masks_gradients_and_caches(name: str, slug: str) -> None:
    """Norms over all heads read what other heads may not attend: nothing of that is a leak."""
    result = run_clause(getattr(learned, name), slug, examples=12)
    assert result.status == "passed", result.reason
