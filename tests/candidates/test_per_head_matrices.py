from __future__ import annotations

import torch

from candidates.per_head_matrices import (
    KEY_MATRICES,
    OUTPUT_MATRIX,
    QUERY_MATRICES,
    VALUE_MATRICES,
    WEIGHTS,
    attend_head,
    attend_heads,
    per_head_matrices,
)
from conformance._golden import golden

TOKENS = torch.tensor([[0.1, 0.9, 0.4], [0.7, 0.2, 0.3], [0.5, 0.6, 0.8], [0.0, 0.3, 1.0]])


def test_documents_run() -> None:
    """Four tokens come out as eight rows of two."""
    assert attend_heads(TOKENS).shape == (8, 2)


def test_matrices_are_uniform_and_fixed() -> None:
    """Every matrix has the document's shape, entries in [0, 1), and the same ones each time."""
    for matrix in (*QUERY_MATRICES, *KEY_MATRICES, *VALUE_MATRICES):
        assert matrix.shape == (3, 2)
        assert bool(((matrix >= 0) & (matrix < 1)).all())
    assert OUTPUT_MATRIX.shape == (2, 2)
    first = torch.rand(3, 2, generator=torch.Generator().manual_seed(0))
    assert torch.equal(QUERY_MATRICES[0], first)


def test_scores_are_not_scaled() -> None:
    """One head's weights are the row softmax of the plain dot products: the document's figures."""
    query = torch.tensor([[1.0277, 0.4852], [0.8772, 0.4506], [0.5097, 0.2065], [0.7879, 0.4787]])
    key = torch.tensor([[1.0057, 1.0469, 0.5064, 1.0779], [0.6135, 0.5327, 0.4113, 0.3430]]).T
    printed = torch.tensor(
        [
            [0.2865, 0.2874, 0.1555, 0.2706],
            [0.2831, 0.2831, 0.1668, 0.2670],
            [0.2682, 0.2693, 0.1994, 0.2631],
            [0.2828, 0.2810, 0.1732, 0.2630],
        ]
    )
    weights = attend_head(query, key, torch.eye(4))
    assert float((weights - printed).abs().max()) < 1.5e-4  # one unit in the last printed place


def test_is_the_point_unscaled_and_concatenated_along_tokens() -> None:
    """The golden at that point of the semantics gives the document's eight rows."""
    point = golden.STANDARD.replace(scale="none", head_merge="tokens")
    tokens = TOKENS[None].double()
    wrong = golden.multi_head_attention(
        tokens, tokens, tokens, WEIGHTS, num_heads=2, semantics=point
    ).output[0]
    # A few dozen roundings of numbers below 10, in float32.
    assert float((attend_heads(TOKENS) - wrong).abs().max()) < 100 * 10 * 2.0**-24


def test_declares_what_the_document_meant() -> None:
    """The declaration pins width 3 and two heads of size 2, without biases."""
    sizes = per_head_matrices.declaration.pins.sizes
    assert {name: allowed[0] for name, allowed in sizes.items()} == {
        "num_heads": 2,
        "num_kv_heads": 2,
        "head_size": 2,
        "value_head_size": 2,
        "query_size": 3,
        "key_size": 3,
        "value_size": 3,
        "output_size": 2,
    }
    assert WEIGHTS.q_bias is None
    assert WEIGHTS.o_bias is None
    assert not per_head_matrices.declaration.batched
