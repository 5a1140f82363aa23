# ruff: noqa: ARG001 (parameters are what is declared)
from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from examples import bare
from fixed_layers import forward, weights
from refusals import refused
from torch import Tensor, nn

import conformance
from conformance.declare.keywords import parameters_of


def kernel(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sm_scale: float,
    is_causal: bool,  # noqa: FBT001 (a required flag, as kernels have it)
    attn_mask: Tensor | None = None,
    **more: Any,
) -> dict[str, Any]:
    """What it was called with."""
    return {"sm_scale": sm_scale, "is_causal": is_causal, "attn_mask": attn_mask, **more}


NAMES = {
    "scale": "sm_scale",
    "causal": "is_causal",
    "keep": "attn_mask",
    "window": ("window_left", "window_right"),
}
declared = conformance.core(
    masks=["keep"], causal="top-left", features=["scale", "window"], keywords=NAMES
)(kernel)
HEADS = torch.zeros(1, 2, 3, 4)


def test_a_call_in_our_words_becomes_one_in_theirs() -> None:
    """Each keyword arrives under the function's own name, a pair as two arguments."""
    keep = torch.ones(1, 1, 1, 3, dtype=torch.bool)
    given = declared(HEADS, HEADS, HEADS, keep=keep, scale=2.0, causal=True, window=(1, -1))
    assert given.pop("attn_mask") is keep
    assert given == {"sm_scale": 2.0, "is_causal": True, "window_left": 1, "window_right": -1}


def test_required_parameters_get_what_changes_nothing() -> None:
    """A call that uses no keyword gives the scale of the specification, and no causality."""
    given = declared(HEADS, HEADS, HEADS)
    assert given == {"sm_scale": 0.5, "is_causal": False, "attn_mask": None}


def test_signature_shows_our_words_and_what_is_left() -> None:
    """Whoever asks for the parameters finds the harness' keywords, and not their other names."""
    own = inspect.signature(declared.function).parameters
    assert list(own) == ["q", "k", "v", "scale", "causal", "keep", "window", "more"]


def test_forward_of_a_layer_has_names_of_its_own() -> None:
    """A builder's forward, and that of a fixed layer, are called by their own names."""
    seen: dict[str, Any] = {}

    def attend(x: Tensor, key: Tensor, value: Tensor, pad: Tensor | None = None) -> Tensor:
        seen["pad"] = pad
        return forward(x, key, value)

    fixed = conformance.fixed_layer(
        attend, weights(), num_heads=2, masks=["drop"], keywords={"drop": "pad"}
    )
    tokens = torch.zeros(1, 3, 8)
    fixed.function(None, None)(tokens, tokens, tokens, drop="a mask")
    assert seen == {"pad": "a mask"}

    @conformance.layer(masks=["drop"], keywords={"drop": "pad"})
    def build(geometry: Any, given: Any) -> Any:
        return attend

    made = build(type("Sizes", (), {"head_size": 4}), None)
    made(tokens, tokens, tokens, drop="another")
    assert seen == {"pad": "another"}


def test_module_has_names_of_its_own() -> None:
    """``keywords=`` of a module is its ``call=``; both together are refused."""

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.num_heads = 2
            self.q, self.k, self.v, self.out = (nn.Linear(8, 8) for _ in range(4))

        def forward(self, x: Tensor, hide: Tensor | None = None) -> Tensor:
            q, k, v = (
                part(x).unflatten(-1, (2, 4)).transpose(1, 2) for part in (self.q, self.k, self.v)
            )
            logits = q @ k.mT / 2
            if hide is not None:
                logits = logits.masked_fill(hide, float("-inf"))
            answer = logits.softmax(-1) @ v
            merged: Tensor = self.out(answer.transpose(1, 2).flatten(2))
            return merged

    made = conformance.module(Attention(), inputs="self", keywords={"drop": "hide"})
    assert made.declaration.masks == ("drop",)
    report = conformance.check(made, only="mask.golden", dtypes="float32")
    assert report.verdict == "conforms"
    message = "call and keywords are both given for Attention: drop one"
    with refused(message):
        conformance.module(Attention(), call={"drop": "hide"}, keywords={"drop": "hide"})


def test_module_as_core_is_called_as_a_module() -> None:
    """A module that is a core stays one, so that it is put in eval mode and moved."""

    class Heads(nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor, sm_scale: float) -> Tensor:
            return bare(q * sm_scale * q.shape[-1] ** 0.5, k, v)

    made = conformance.core(features=["scale"], keywords={"scale": "sm_scale"})(Heads())
    assert isinstance(made.function, nn.Module)
    assert made(HEADS, HEADS, HEADS).shape == HEADS.shape
    report = conformance.check(made, only="numerics.scale", dtypes="float32")
    assert report.verdict == "conforms"


def test_parameters_of_what_is_written_in_c() -> None:
    """What shows no signature has none, and is called by the names that are declared."""
    assert parameters_of(max) is None
    made = conformance.core(features=["scale"], keywords={"scale": "alpha"})(max)
    assert made.function.__wrapped__ is max  # type: ignore[attr-defined]  # of a wrapper


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            ["keep"],
            (
                "keywords is ['keep']: give a dict of our keywords to yours, such as "
                '{"keep": "attn_mask", "scale": "sm_scale"}'
            ),
        ),
        (
            {"kep": "mask"},
            "keywords has the key 'kep', which is no keyword of the harness; did you mean 'keep'?",
        ),
        ({"keep": 3}, "keywords calls 'keep' 3: give the name of a parameter"),
        ({"keep": ("a", "b")}, "keywords calls 'keep' ('a', 'b'): give the name of a parameter"),
        (
            {"window": ("a", "b", "c")},
            (
                "keywords calls 'window' ('a', 'b', 'c'): give the name of a parameter, or two of "
                "them for its left and right part"
            ),
        ),
    ],
)
def test_what_is_no_dict_of_names_is_refused(given: Any, message: str) -> None:
    """One sentence with the entry that is wrong, and what to give."""
    with refused(message):
        conformance.core(keywords=given)


def test_a_name_that_the_function_lacks_is_refused() -> None:
    """The sentence has the function's parameters, and the likeliest of them."""

    def attend(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        return bare(q, k, v)

    with pytest.raises(ValueError, match=r"attn_msk.*no parameter of.*did you mean 'attn_mask'"):
        conformance.core(masks=["keep"], keywords={"keep": "attn_msk"})(attend)
