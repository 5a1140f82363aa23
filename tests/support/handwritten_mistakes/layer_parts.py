# As people write them, with what they leave out.
# ruff: noqa: ANN001, ANN201
"""Parts of hand-written layers, right as they are."""

from __future__ import annotations

import torch.nn.functional as F  # noqa: N812


def heads_of(x, n):
    """The heads of tokens."""
    return x.view(x.shape[0], x.shape[1], n, -1).transpose(1, 2)


def projected(w, q, k, v):
    """Query, key and value behind their projections."""
    return F.linear(q, w.q, w.q_bias), F.linear(k, w.k, w.k_bias), F.linear(v, w.v, w.v_bias)


def merged(x):
    """The tokens of heads."""
    return x.transpose(1, 2).contiguous().view(x.shape[0], x.shape[2], -1)
