"""What names and defaults of parameters suggest, before anything is called."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn
from torch.nn import functional

from conformance.identification.record import parameters_words
from conformance.identification.signature import Parameters, read_parameters


@pytest.mark.parametrize(
    ("name", "meaning"),
    [
        ("attn_mask", "mask"),
        ("key_padding_mask", "mask"),
        ("valid_lens", "mask"),
        ("bias", "mask"),
        ("is_causal", "causal"),
        ("softmax_scale", "scale"),
        ("dropout_p", "dropout"),
        ("window_size", "window"),
        ("logits_soft_cap", "softcap"),
        ("num_heads", "heads"),
        ("need_weights", "weights"),
        ("enable_gqa", "gqa"),
        ("queries", "q"),
        ("context", "other"),
    ],
)
def test_names_of_optional_parameters(name: str, meaning: str) -> None:
    """Each usual spelling is known; what says nothing is left at its default."""
    namespace: dict[str, Any] = {}
    exec(f"def function({name}=None): ...", namespace)  # noqa: S102 (a name from the list above)
    (parameter,) = read_parameters(namespace["function"]).entries
    assert parameter.meaning == meaning


def test_functions_in_c_are_read_from_their_docstrings() -> None:
    """Torch's kernel shows no signature, but its documentation begins with one."""
    parameters = read_parameters(functional.scaled_dot_product_attention)
    assert parameters.names[:4] == ["query", "key", "value", "attn_mask"]
    assert [entry.name for entry in parameters.entries if entry.required] == [
        "query",
        "key",
        "value",
    ]


def test_modules_are_read_by_their_forward() -> None:
    """A class shows its constructor: what is called is its forward."""
    assert read_parameters(nn.MultiheadAttention).names[:3] == ["query", "key", "value"]


def test_open_keywords_may_take_anything() -> None:
    """A function of **keywords is asked for the usual ones."""

    def function(query: Any, key: Any, value: Any, **use: Any) -> None:
        del query, key, value, use

    parameters = read_parameters(function)
    assert parameters.open_ended
    assert {"keep", "attn_mask", "causal"} <= set(parameters.names)


def test_keywords_that_are_guessed_are_not_listed() -> None:
    """What ``**kwargs`` may hold is no parameter."""

    def attend(q: Any, k: Any, v: Any, **kwargs: Any) -> Any:
        return q, k, v, kwargs

    assert parameters_words(read_parameters(attend)) == "parameters q, k, v, and any keyword"


class _Answering(type):
    """A class that raises whatever it likes for what it lacks."""

    def __getattr__(cls, name: str) -> object:
        raise KeyError(name)


class Unreadable(metaclass=_Answering):
    """What inspect asks of it, it refuses in its own way."""


def test_an_object_whose_parameters_cannot_be_read_is_called_without_knowing_them() -> None:
    """Whatever it raises is no failure of the harness."""
    assert read_parameters(Unreadable) == Parameters((), open_ended=True)
