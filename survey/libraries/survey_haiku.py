"""haiku: its layer, on a CPU."""

import haiku as hk

import conformance

REQUIREMENTS = ["dm-haiku==0.0.17", "jax==0.10.2", "jaxlib==0.10.2"]
CANDIDATES = {"layer": "check"}


@conformance.layer(
    arrays="jax",
    without=["gradients"],
    masks=["keep"],
    mask_shapes=["BHQK", "B1QK", "B11K"],
    empty_rows="mean-of-all",
)
def layer(geometry, weights):
    """``hk.MultiHeadAttention``, with the weights that are drawn."""
    biased = weights.q_bias is not None

    def attend(query, key, value, keep):
        own = hk.MultiHeadAttention(
            geometry.num_heads,
            geometry.head_size,
            w_init=hk.initializers.Constant(0.0),
            with_bias=biased,
            value_size=geometry.value_head_size,
            model_size=geometry.output_size,
            name="own",
        )
        return own(query, key, value, keep)

    apply = hk.without_apply_rng(hk.transform(attend)).apply
    names = {"query": "q", "key": "k", "value": "v", "linear": "o"}
    parameters = {f"own/{name}": {"w": getattr(weights, role).T} for name, role in names.items()}
    for name, role in names.items():
        if biased:
            parameters[f"own/{name}"]["b"] = getattr(weights, f"{role}_bias")

    def forward(query, key, value, *, keep=None):
        return apply(parameters, query, key, value, keep)

    return forward
