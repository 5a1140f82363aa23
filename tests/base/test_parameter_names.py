from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from conformance.base.parameter_names import (
    may_be_left_out,
    option_of,
    role_of,
    signature_in_docstring,
)


@pytest.mark.parametrize(
    ("path", "roles"),
    [
        ("q_proj.weight", "q"),
        ("attention.self.key.weight", "k"),
        ("attention.output.dense.weight", "o"),
        ("query.linear.weight", "q"),
        ("W_V", "v"),
        ("Wqkv.weight", "qkv"),
        ("c_attn.weight", "qkv"),
        ("in_proj_weight", "qkv"),
        ("in_proj_bias", "qkv"),
        ("c_attn_w", "qkv"),
        ("c_attn_b", "qkv"),
        ("query_key_value.weight", "qkv"),
        ("to_kv.weight", "kv"),
        ("heads.3.query.weight", "q"),
        ("to_out.0.weight", "o"),
    ],
)
def test_clear_names(path: str, roles: str) -> None:
    """Names that say a role are read as that role, wherever in the path they stand."""
    assert role_of(path) == (roles, True)


@pytest.mark.parametrize("path", ["c_proj.weight", "dense.weight", "W.weight", "fc.weight"])
def test_vague_names(path: str) -> None:
    """Names that only say "a projection" may be the output's, but not clearly."""
    assert role_of(path) == ("o", False)


@pytest.mark.parametrize("path", ["a.weight", "query_global.weight", "norm.weight", "query_out"])
def test_names_that_say_nothing(path: str) -> None:
    """Unknown words, or two roles that are never fused, say nothing."""
    assert role_of(path) == ("", False)


@pytest.mark.parametrize(
    ("text", "signature"),
    [
        ("attend(query, key, scale=0.5)\n\nAttention.", "(query, key, scale=0.5)"),
        ("attend(query, key, scale=None, /) -> Tensor", "(query, key, scale=None, /)"),
        ("attend(query, *, causal=False)", "(query, *, causal=False)"),
        ("attend(*args, **kwargs)", "(*args, **kwargs)"),
        ("attend(query, query)", None),
        ("Attends.", None),
        ("other(query)", None),
        (7, None),
    ],
)
def test_the_signature_of_a_function_in_c(text: Any, signature: str | None) -> None:
    """It is what begins a docstring; nothing where that is no signature, or no text."""
    read = signature_in_docstring(SimpleNamespace(__name__="attend", __doc__=text))  # type: ignore[arg-type]
    assert (None if read is None else str(read)) == signature


@pytest.mark.parametrize(
    ("default", "left_out"),
    [(None, True), (torch.ones((0, 0, 0)), True), (torch.ones(2), False), ((), False), (0, False)],
)
def test_a_default_without_elements_gives_nothing(default: Any, *, left_out: bool) -> None:
    """A mask whose default is an empty tensor, as in modules that are scripted, is a mask."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameter = inspect.Parameter("mask", kind, default=default)
    assert may_be_left_out(parameter) == left_out
    assert (option_of(parameter) == "mask") == left_out
