# ruff: noqa: INP001, T201 (a script that prints)
# Runs in the environment of the survey for memory_efficient_attention.
"""memory-efficient-attention: a mask needs a bias, and chunks that do not fit are wrong.

Exits 0 while the defect is there, 1 when it is gone.
"""

import sys

import jax
from memory_efficient_attention import efficient_dot_product_attention_jax as attend

query, key, value = jax.random.normal(jax.random.key(0), (3, 1, 7, 2, 4))
limit = 1e-4
whole = attend(query, key, value)
mask = jax.numpy.ones((1, 2, 7, 7), bool)
bias = jax.numpy.zeros((1, 2, 7, 7))

raised = []
for options in ({"mask": mask}, {"bias": bias}, {"mask": mask, "bias": bias}):
    name = " and ".join(options)
    try:
        attend(query, key, value, **options)
    except AttributeError as error:
        print(f"{name}: AttributeError: {error}")
        raised.append(name)
    else:
        print(f"{name}: answered")

fits = abs(attend(query, key, value, key_chunk_size=7) - whole).max()
twice = abs(attend(query, key, value, key_chunk_size=4) - whole).max()
print(f"7 keys in chunks of 7: {fits:.2g} from whole, in chunks of 4: {twice:.2g}")
length = attend(query, key, value, query_chunk_size=4).shape[1]
print(f"7 queries in chunks of 4: an answer of {length}")
wrong = raised == ["mask", "bias"] and fits < limit < twice and length != query.shape[1]
print("masks need biases, and chunks must fit" if wrong else "the defect is gone")
sys.exit(0 if wrong else 1)
