"""Every clause passes for some correct candidate."""

from __future__ import annotations

import pytest
from examples import CLAUSES, SMALL, layer, run_clause

from candidates.broken._kit import CORRECT
from candidates.eager import EagerModule, eager_core, eager_layer, eager_module
from candidates.given_positions import placed_halves
from candidates.learned import all_learned, null_key
from candidates.legitimate import CANDIDATES as LEGITIMATE
from candidates.legitimate.backward import by_autograd
from candidates.log_sum_exp import log_sum_exp
from candidates.memory_keys import memory_keys
from candidates.module_caches import by_object
from candidates.operator_attention import operator_attention
from candidates.out_attention import out_attention
from candidates.paged_attention import paged, paged_written
from candidates.quantised_attention import quantised_by_tensor
from candidates.relative_tables import relative_table
from candidates.rotary_tables import tables_by_halves
from candidates.structured_attention import structured_attention
from candidates.torch_scaled_dot_product import torch_scaled_dot_product
from candidates.varlen_attention import varlen_attention
from conformance.adapters.compiled import compiled_variants
from conformance.declare.candidate import Candidate


class Undropped(EagerModule):
    """A module that drops nothing in training: the others leave nothing to compare there."""

    rate = 0.0


UNDROPPED = layer(Undropped, masks=[], causal=None, features=[], empty_rows="any")
UNDROPPED_FOR = ("state.train-agrees",)
EVERYBODY: list[Candidate] = [eager_core, eager_layer, eager_module, *CORRECT]
EXAMPLES = (varlen_attention, out_attention, operator_attention)
SOMEBODY = (
    *EVERYBODY,
    by_autograd,
    *EXAMPLES,
    *LEGITIMATE,
    tables_by_halves,
    all_learned,
    null_key,
    memory_keys,
    relative_table,
    log_sum_exp,
    quantised_by_tensor,
    placed_halves,
    by_object,
    structured_attention,
    paged,
    paged_written,
)
IN_FLOAT16 = ("numerics.overflow-half", "numerics.lifted-logits")
# So small a sample has one problem of thousands of keys, or of as many queries as keys.
ONCE = ("numerics.long-sequence", "gradients.shared")
IN_FLOAT64 = ("gradients.check",)
LEAST_SHARE = 0.75


# Graphs, models, devices and ranks have their own tests: test_export_*.py, test_whole_models.py,
# test_device.py, test_fake_device.py, test_ranks.py.
# What applies to one of EVERYBODY is passed by `conformance check candidates` of each CI run, and
# here at night.
OF_ALL = [
    pytest.param(slug, marks=pytest.mark.nightly)
    if slug not in (*IN_FLOAT16, *IN_FLOAT64)
    and any(not CLAUSES[slug].not_applicable(candidate) for candidate in EVERYBODY)
    else slug
    for slug in CLAUSES
    if not slug.startswith(("export.", "device.", "model.", "ranks."))
]


@pytest.mark.parametrize("slug", OF_ALL)
def test_each_clause_is_passed_by_somebody(slug: str) -> None:
    """Every clause applies to a correct candidate, binds there and passes."""
    clause = CLAUSES[slug]
    compiled = compiled_variants([by_autograd]) if slug == "compile.agrees" else []
    candidates = (*SOMEBODY, *compiled)
    if slug in IN_FLOAT16:
        candidates = (torch_scaled_dot_product, *candidates)
        candidates = tuple(c for c in candidates if "float16" in c.declaration.dtypes)
    able = [candidate for candidate in candidates if not clause.not_applicable(candidate)]
    more = [UNDROPPED] if slug in UNDROPPED_FOR else []
    dtype = "float64" if slug in IN_FLOAT64 else "float32"
    dtype = "float16" if slug in IN_FLOAT16 else dtype
    # Clauses that try few examples get some more.
    examples = 4 * SMALL.examples if clause.space.share < LEAST_SHARE else SMALL.examples
    results = [
        run_clause(candidate, slug, examples=examples, dtype=dtype)
        for candidate in (*able[:1], *more)
    ]
    passed = [result for result in results if result.status == "passed"]
    assert passed, [result.reason for result in results]
    assert max(result.binding for result in passed) >= (1 if slug in ONCE else 2)
