# ruff: noqa: INP001, T201 (a script that prints)
# Runs in the environment of the survey for flax.
"""flax: nnx.dot_product_attention refuses what its other path, and linen, answer.

Exits 0 while the defect is there, 1 when it is gone.
"""

import sys
from collections.abc import Callable

import jax
from flax import linen, nnx

first, second, third = jax.random.split(jax.random.key(0), 3)
query = jax.random.normal(first, (2, 5, 3, 4))
key = jax.random.normal(second, (2, 7, 3, 4))
value = jax.random.normal(third, (2, 7, 3, 6))
keys = jax.numpy.arange(7)[None, None, None] < jax.numpy.array([3, 5])[:, None, None, None]


def answered(name: str, attend: Callable[[], jax.Array]) -> str:
    """The shape of the answer, or "" where it raises."""
    try:
        shape = str(attend().shape)
    except (ValueError, TypeError) as error:
        print(f"{name}: {type(error).__name__}: {error}")
        return ""
    print(f"{name}: {shape}")
    return shape


recorded = {"module": nnx.Module()}
causal = {"mask": keys, "is_causal": True}
wide = [
    answered("values of depth 6, nnx", lambda: nnx.dot_product_attention(query, key, value)),
    answered(
        "the same with module=", lambda: nnx.dot_product_attention(query, key, value, **recorded)
    ),
    answered("the same, linen", lambda: linen.dot_product_attention(query, key, value)),
]
both = [
    answered(
        "a mask [2, 1, 1, 7] and is_causal, nnx",
        lambda: nnx.dot_product_attention(query, key, key, **causal),
    ),
    answered(
        "the same with module=",
        lambda: nnx.dot_product_attention(query, key, key, **causal, **recorded),
    ),
]
wrong = [bool(shape) for shape in (*wide, *both)] == [False, True, True, True, False]
print("each path refuses what the other answers" if wrong else "the defect is gone")
sys.exit(0 if wrong else 1)
