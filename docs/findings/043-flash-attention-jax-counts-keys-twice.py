# ruff: noqa: INP001, T201 (a script that prints)
# Runs in the environment of the survey for flash_attention_jax.
"""flash-attention-jax: keys past 1024 are counted twice, and queries come back in whole chunks.

Exits 0 while the defect is there, 1 when it is gone.
"""

import sys

import jax
from flash_attention_jax import attention, flash_attention

limit = 1e-4
one, chunk, more = 8, 1024, 1500
query, many = jax.random.normal(jax.random.key(0), (2, 1, 1, more, 4))
key = jax.random.normal(jax.random.key(1), (1, 1, more, 4))


def apart(length: int) -> float:
    """How far the two functions of the package are apart for so many keys."""
    keys, values, shown = key[:, :, :length], many[:, :, :length], jax.numpy.ones((1, length), bool)
    few = query[:, :, :one]
    answers = [attend(few, keys, values, shown) for attend in (flash_attention, attention)]
    return float(abs(answers[0] - answers[1]).max())


fits, twice = apart(chunk), apart(more)
print(f"flash_attention and attention: {fits:.2g} apart for {chunk} keys, {twice:.2g} for {more}")
shown = jax.numpy.ones((1, one), bool)
rows = flash_attention(query, key[:, :, :one], many[:, :, :one], shown).shape[2]
print(f"{more} queries: an answer of {rows}")
wrong = fits < limit < twice and rows != more
print("lengths past 1024 must be its multiples" if wrong else "the defect is gone")
sys.exit(0 if wrong else 1)
