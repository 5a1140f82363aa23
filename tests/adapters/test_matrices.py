"""Functions that take their weights as arguments are judged as modules that have these."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import conformance
from conformance.adapters.matrices import as_module, matrices_given, with_matrices
from conformance.identification.undeclared import read_undeclared
from conformance.targets.resolving import Undeclared


def _attend(q: Tensor, k: Tensor, v: Tensor, heads: int, scale: float = 1.0) -> Tensor:
    q, k, v = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in (q, k, v))
    logits = scale * q @ k.mT / q.shape[-1] ** 0.5
    return (logits.softmax(-1) @ v).transpose(1, 2).flatten(2)


def of_rows(x: Any, Wq: Any, Wk: Any, Wv: Any, Wo: Any, n_heads: int) -> Tensor:  # noqa: N803
    """Matrices as torch has them."""
    return _attend(x @ Wq.T, x @ Wk.T, x @ Wv.T, n_heads) @ Wo.T


def fused(x: Any, c_attn_w: Any, c_attn_b: Any, out_w: Any, out_b: Any, num_heads: int) -> Tensor:
    """One matrix of columns, with biases."""
    return _attend(*(x @ c_attn_w + c_attn_b).chunk(3, -1), num_heads) @ out_w + out_b


def of_heads(x: Any, wq: Any, wk: Any, wv: Any, wo: Any) -> Tensor:
    """A matrix for each head."""
    q, k, v = (torch.einsum("ble,hed->bhld", x, each) for each in (wq, wk, wv))
    return torch.einsum("bhld,hde->ble", (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v, wo)


def of_arrays(x: Any, w_query: Any, w_key: Any, w_value: Any) -> Any:
    """One head of NumPy's arrays, without a batch."""
    _, width = x.shape
    logits = x @ w_query @ (x @ w_key).T / np.sqrt(width)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ (x @ w_value)


def of_bundle(x: Any, params: dict[str, Any], n_heads: int) -> Tensor:
    """A dict of matrices ``[in, out]``, under names that the code spells out."""
    q, k, v = (x @ params[name] for name in ("Wq", "Wk", "Wv"))
    return _attend(q, k, v, n_heads) @ params["Wo"]


def _rows(x: Any, w: Any, b: Any) -> Any:
    return x @ w + b


def of_pairs(x: Any, c_attn: dict[str, Any], c_proj: dict[str, Any], n_head: int) -> Any:
    """A dict of a matrix and its bias for each projection, in NumPy, of one sequence."""
    parts = np.split(_rows(x, **c_attn), 3, axis=-1)
    answers = []
    for q, k, v in zip(*(np.split(part, n_head, axis=-1) for part in parts), strict=True):
        logits = q @ k.T / np.sqrt(q.shape[-1])
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        answers.append(weights / weights.sum(-1, keepdims=True) @ v)
    return _rows(np.hstack(answers), **c_proj)


def doubled(x: Any, wq: Any, wk: Any, wv: Any, wo: Any, num_heads: int) -> Tensor:
    """The scale of all heads together."""
    return _attend(x @ wq, x @ wk, x @ wv, num_heads, scale=num_heads**-0.5) @ wo


def core(q: Any, k: Any, v: Any, heads: int) -> None:
    """Takes no matrices."""


def projected(q_proj: Any, k_proj: Any, v_proj: Any) -> None:
    """Takes what was projected: there is nothing else."""


@pytest.mark.parametrize("function", [of_rows, of_heads, of_arrays, of_bundle, of_pairs])
def test_a_right_function_is_read(function: Any) -> None:
    """The layer is what the answers show: no mistake is found and nothing stays unread."""
    (candidate,) = read_undeclared(Undeclared(value=function, target="attention.py:attend"))
    assert candidate.kind == "layer"
    assert candidate.reading is not None
    assert not candidate.reading.mistakes
    assert not candidate.reading.unread
    assert any("with_matrices(attend, " in one for one in candidate.declaration.assumptions)


def test_a_function_of_arrays_has_no_gradients_to_judge() -> None:
    """NumPy keeps no history: nothing is left open for the lack of gradients."""
    (candidate,) = read_undeclared(Undeclared(value=of_pairs, target="attention.py:attend"))
    assert "gradients" not in candidate.declaration.features
    (candidate,) = read_undeclared(Undeclared(value=of_rows, target="attention.py:attend"))
    assert "gradients" in candidate.declaration.features


def test_a_wrong_function_is_caught() -> None:
    """A wrong scale is a mistake of the reading."""
    (candidate,) = read_undeclared(Undeclared(value=doubled, target="attention.py:attend"))
    assert candidate.reading is not None
    assert candidate.reading.mistakes


def test_the_shapes_that_are_answered() -> None:
    """Biases and matrices of columns have shapes in which a call succeeds."""
    given = matrices_given(fused)
    assert given is not None
    shapes = {"c_attn_w": (24, 72), "c_attn_b": (72,), "out_w": (24, 24), "out_b": (24,)}
    assert given == {**shapes, "num_heads": 3}


def test_the_shapes_of_a_dict_of_matrices() -> None:
    """Its keys are those that the function's code names."""
    keys = ("Wq", "Wk", "Wv", "Wo")
    assert matrices_given(of_bundle) == {"params": dict.fromkeys(keys, (24, 24)), "n_heads": 3}
    made = with_matrices(of_bundle, params=dict.fromkeys(keys, (12, 12)), n_heads=3)
    assert {name for name, _ in made.named_parameters()} == {f"params.{key}" for key in keys}


@pytest.mark.parametrize("function", [core, projected])
def test_functions_without_matrices(function: Any) -> None:
    """Heads that are given projected are no matrices."""
    assert as_module(function, "it") is None


def test_names_that_a_function_has_not() -> None:
    """A wrong name is refused with the right ones."""
    with pytest.raises(conformance.DeclarationError, match=r"no parameter 'w' \(it has q, k, v"):
        with_matrices(core, w=(2, 3))


def test_words_of_python_are_no_names_of_weights() -> None:
    """An annotation leaves "return" among a function's texts, which no parameter is called."""

    def outer(x: Tensor, notes: Any, lookup: Any) -> Any:  # noqa: ARG001 (nothing is called)
        def inner(y: Tensor) -> Tensor:
            return y

        return inner(x)

    assert matrices_given(outer) is None
