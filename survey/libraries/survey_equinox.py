"""equinox: its layer, which takes one sequence, on a CPU."""

import equinox as eqx
import jax

import conformance

REQUIREMENTS = ["equinox==0.13.8", "jax==0.10.2", "jaxlib==0.10.2"]
CANDIDATES = {"layer": "check"}
PROMISES = [
    {
        "sentence": "A value of `False` at a position indicates that position should be ignored.",
        "link": "https://docs.kidger.site/equinox/api/nn/attention/",
        "clauses": ["mask.golden"],
        "declares": {"masks": ["keep"]},
    },
]


@conformance.layer(
    arrays="jax",
    batched=False,
    without=["gradients"],
    masks=["keep"],
    mask_shapes=["HQK", "QK"],
    empty_rows="mean-of-all",
)
def layer(geometry, weights):
    """``eqx.nn.MultiheadAttention`` with the weights that are drawn."""
    biased = weights.q_bias is not None
    drawn = eqx.nn.MultiheadAttention(
        geometry.num_heads,
        geometry.query_size,
        geometry.key_size,
        geometry.value_size,
        geometry.output_size,
        geometry.head_size,
        geometry.value_head_size,
        use_query_bias=biased,
        use_key_bias=biased,
        use_value_bias=biased,
        use_output_bias=biased,
        key=jax.random.PRNGKey(0),
    )
    names = {"query_proj": "q", "key_proj": "k", "value_proj": "v", "output_proj": "o"}

    def parts(module):
        own = [getattr(module, name) for name in names]
        return [part.weight for part in own] + [part.bias for part in own if biased]

    values = [getattr(weights, role) for role in names.values()]
    values += [getattr(weights, f"{role}_bias") for role in names.values() if biased]
    own = eqx.tree_at(parts, drawn, values)

    def forward(query, key, value, *, keep=None):
        return own(query, key, value, keep)

    return forward
