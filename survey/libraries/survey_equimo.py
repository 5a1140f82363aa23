"""equimo: the attention of its vision transformers, which takes one sequence, on a CPU."""

import equinox as eqx
import jax
import jax.numpy as jnp
from equimo.layers.attention import Attention

import conformance

REQUIREMENTS = ["equimo==1.1.0", "jax==0.10.2", "jaxlib==0.10.2"]
CANDIDATES = {"layer": "check"}
_WIDTHS = ("query_size", "key_size", "value_size", "output_size")


def _sizes(geometry):
    """One width, which is that of all heads together."""
    width = geometry.num_heads * geometry.head_size
    same = {"num_kv_heads": geometry.num_heads, "value_head_size": geometry.head_size}
    return geometry.replace(**same, **dict.fromkeys(_WIDTHS, width))


@conformance.layer(
    arrays="jax",
    batched=False,
    inputs="self",
    without=["gradients"],
    masks=["keep"],
    mask_shapes=["HQK", "QK"],
    empty_rows="mean-of-all",
    geometry=_sizes,
)
def layer(geometry, weights):
    """``Attention`` with the weights that are drawn, packed."""
    biased = weights.q_bias is not None
    drawn = Attention(
        geometry.query_size,
        geometry.num_heads,
        key=jax.random.PRNGKey(0),
        qkv_bias=biased,
        proj_bias=biased,
    )
    values = [jnp.concatenate([weights.q, weights.k, weights.v]), weights.o]
    if biased:
        values += [
            jnp.concatenate([weights.q_bias, weights.k_bias, weights.v_bias]),
            weights.o_bias,
        ]

    def parts(module):
        biases = [module.qkv.bias, module.proj.bias] if biased else []
        return [module.qkv.weight, module.proj.weight, *biases]

    own = eqx.tree_at(parts, drawn, values)

    def forward(tokens, *, keep=None):
        return own(tokens, jax.random.PRNGKey(0), inference=True, mask=keep)

    return forward
