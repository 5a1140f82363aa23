"""Which promise of a candidate a problem breaks."""

from __future__ import annotations

import dataclasses

from conformance.declare.candidate import Candidate
from conformance.problems.problem import Problem
from conformance.problems.space import can_cross


def broken_promise(problem: Problem, candidate: Candidate) -> str:
    """Which promise a problem breaks, or ""."""
    declared, sizes = candidate.declaration, problem.geometry
    pins = declared.pins
    wrong = {
        "pinned sizes": any(getattr(sizes, name) not in pin for name, pin in pins.sizes.items()),
        "equal sizes": any(
            getattr(sizes, name) != getattr(sizes, other) for name, other in pins.equal_to.items()
        ),
        "built sizes": pins.build is not None and pins.build(sizes) != sizes,
        "positive sizes": any(size < 1 for size in dataclasses.astuple(sizes)),
        "longest length": declared.max_length is not None
        and max(sizes.query_length, sizes.key_length) > declared.max_length,
        "whole groups": sizes.num_heads % sizes.num_kv_heads != 0,
        "gqa": "gqa" not in declared.features
        and "num_kv_heads" not in pins.sizes
        and sizes.num_heads != sizes.num_kv_heads,
        "one item": not declared.batched and sizes.batch != 1,
        "cross": not can_cross(candidate) and sizes.query_length != sizes.key_length,
        "self": declared.inputs == "self"
        and not sizes.query_size == sizes.key_size == sizes.value_size,
        "memory": declared.inputs == "memory" and sizes.key_size != sizes.value_size,
        "positions": candidate.kind == "positions"
        and (sizes.key_size % 2 == 1 or sizes.key_length > (declared.max_length or 0)),
        "causal": problem.causal and declared.causal is None,
        "scale": problem.scale is not None and "scale" not in declared.features,
        "softcap": problem.softcap is not None and "softcap" not in declared.features,
        "window": problem.window is not None and "window" not in declared.features,
        "mask form": problem.mask is not None and problem.mask.form not in declared.masks,
    }
    return ", ".join(name for name, broken in wrong.items() if broken)
