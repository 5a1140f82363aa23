from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from examples import bare
from fixed_layers import forward, weights
from refusals import refused
from torch import Tensor

import conformance
from conformance.declare.decorators import renamed
from conformance.errors import DeclarationError


class Kernel:
    """A core that is an object."""

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend."""
        return bare(query, key, value)


def test_decorated_core_still_calls_like_the_function() -> None:
    """A declared kernel can be called as before, keywords and all."""

    @conformance.core(features=["scale"])
    def kernel(query: Tensor, key: Tensor, value: Tensor, *, scale: float | None = None) -> Tensor:
        return bare(
            query if scale is None else query * scale * math.sqrt(query.shape[-1]), key, value
        )

    query = torch.randn(1, 1, 2, 3)
    assert torch.equal(kernel(query, query, query), bare(query, query, query))
    assert kernel(query, query, query, scale=0.5).shape == query.shape
    assert kernel.name == "kernel"


def test_decorated_layer_still_builds() -> None:
    """A declared builder can be called as before."""

    @conformance.layer()
    def build(geometry: object, given: object) -> tuple[object, object]:
        return geometry, given

    assert build("geometry", "weights") == ("geometry", "weights")


def test_name_may_be_given() -> None:
    """``name=`` overrides the function's own, and a candidate can be renamed."""
    made = conformance.core(name="fast")(bare)
    assert made.name == "fast"
    assert renamed(made, "faster").name == "faster"
    assert renamed(made, "faster").function is bare


def test_decorators_work_in_a_loop() -> None:
    """Functions made at run time are declared one by one, and do not share their promises."""

    def make(factor: float) -> Callable[..., Tensor]:
        def kernel(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return bare(query, key, value) * factor

        return kernel

    made = [conformance.core(name=f"times {n}")(make(n)) for n in range(3)]
    tensor = torch.ones(1, 1, 1, 1)
    assert [float(candidate(tensor, tensor, tensor)) for candidate in made] == [0.0, 1.0, 2.0]
    assert [candidate.name for candidate in made] == ["times 0", "times 1", "times 2"]


def test_one_decorator_may_be_used_twice() -> None:
    """A decorator can be kept and applied to several functions."""
    decorate = conformance.core()
    assert decorate(bare).name == "bare"
    assert decorate(Kernel()).name == "Kernel"


def test_callable_object_is_named_after_its_class() -> None:
    """An object without ``__name__`` shows the name of its class."""
    assert conformance.core()(Kernel()).name == "Kernel"


def test_a_decorator_needs_no_parentheses() -> None:
    """A bare ``@core`` or ``@layer`` is one without promises, and may have some at once."""
    assert conformance.core(bare).declaration == conformance.core()(bare).declaration
    assert conformance.layer(bare).declaration == conformance.layer()(bare).declaration
    assert conformance.core(bare, name="mine", dtypes=["float64"]).name == "mine"
    with refused("conformance.core decorates a function, not 'keep'", DeclarationError):
        conformance.core("keep")  # type: ignore[call-overload]  # the mistake


@pytest.mark.parametrize("declared", [bare, None])
def test_positions_must_say_how_long(declared: object) -> None:
    """No length can be assumed, with parentheses or without."""
    with pytest.raises(DeclarationError, match=r"write positions\(max_length=512\)"):
        conformance.positions(declared)


@pytest.mark.parametrize("thing", [3, None, "kernel", [bare]])
def test_only_callables_are_decorated(thing: object) -> None:
    """What cannot be called cannot be a candidate."""
    with refused(f"conformance.core decorates a function, not {thing!r}", DeclarationError):
        conformance.core()(thing)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("declare", "word", "message"),
    [
        (
            conformance.core,
            "mask",
            "conformance.core got an unknown argument 'mask'; did you mean 'masks'?",
        ),
        (
            conformance.layer,
            "emptyrows",
            "conformance.layer got an unknown argument 'emptyrows'; did you mean 'empty_rows'?",
        ),
        (
            lambda **promises: conformance.positions(max_length=9, **promises),
            "dtype",
            "conformance.positions got an unknown argument 'dtype'; did you mean 'dtypes'?",
        ),
        (
            lambda **promises: conformance.fixed_layer(forward, weights(), num_heads=4, **promises),
            "mask",
            "conformance.fixed_layer got an unknown argument 'mask'; did you mean 'masks'?",
        ),
    ],
)
def test_unknown_promise_is_suggested(
    declare: Callable[..., object], word: str, message: str
) -> None:
    """A misspelt argument of any way to declare gets a did-you-mean, not a TypeError."""
    with refused(message, DeclarationError):
        declare(**{word: ["keep"]})


def test_missing_keyword_is_refused() -> None:
    """A promised keyword that the signature lacks is found when it is declared."""
    message = (
        "bare(query: 'Tensor', key: 'Tensor', value: 'Tensor') -> 'Tensor' does not take the "
        "keyword 'keep' that its declaration promises: give it a parameter keep=None, or promise "
        "less"
    )
    with refused(message, DeclarationError):
        conformance.core(masks=["keep"])(bare)


@pytest.mark.parametrize(
    ("promises", "keyword"),
    [
        ({"causal": "top-left"}, "causal"),
        ({"features": ["scale"]}, "scale"),
        ({"features": ["softcap"]}, "softcap"),
        ({"features": ["window"]}, "window"),
        ({"features": ["weights"]}, "return_weights"),
        ({"features": ["dropout"]}, "dropout"),
        ({"features": ["kv_cache"]}, "past_key"),
        ({"masks": ["keep_int"]}, "keep_int"),
    ],
)
def test_each_promise_needs_its_keyword(promises: dict[str, Any], keyword: str) -> None:
    """Every promise that brings a keyword is held against the signature."""
    with pytest.raises(DeclarationError, match=f"does not take the keyword '{keyword}'"):
        conformance.core(**promises)(bare)


def test_a_promise_under_another_name() -> None:
    """A parameter that speaks of the same option is to be renamed; else one is to be added."""

    def kernel(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
        return bare(query, key, value) if mask is None else value

    with pytest.raises(
        DeclarationError, match=r"promises: declare keywords=\{'keep': 'mask'\}, rename its"
    ):
        conformance.core(masks=["keep"])(kernel)
    with pytest.raises(DeclarationError, match="promises: give it a parameter scale=None"):
        conformance.core(features=["scale"])(kernel)


def test_two_inputs_where_three_are_called() -> None:
    """A function of two inputs cannot be a core."""

    def kernel(query: Tensor, memory: Tensor) -> Tensor:
        return query + memory

    signature = "kernel(query: 'Tensor', memory: 'Tensor') -> 'Tensor'"
    message = f"{signature} is called with 3 positional inputs (query, key, value)"
    with refused(message, DeclarationError):
        conformance.core()(kernel)


def test_required_parameter_is_refused() -> None:
    """A fourth parameter without a default can never be filled."""

    def kernel(query: Tensor, key: Tensor, value: Tensor, keep: Tensor) -> Tensor:
        return bare(query, key, value) * keep

    message = (
        "kernel(query: 'Tensor', key: 'Tensor', value: 'Tensor', keep: 'Tensor') -> 'Tensor' "
        "cannot be called with query, key, value alone (missing a required argument: 'keep'): "
        "give its keywords defaults"
    )
    with refused(message, DeclarationError):
        conformance.core(masks=["keep"])(kernel)


def test_positional_only_mask_cannot_be_a_keyword() -> None:
    """Inputs are positional and everything else a keyword: a positional-only mask never arrives."""

    def kernel(query: Tensor, key: Tensor, value: Tensor, keep: Tensor | None = None, /) -> Tensor:
        return bare(query, key, value) if keep is None else value

    with pytest.raises(DeclarationError, match="does not take the keyword 'keep'"):
        conformance.core(masks=["keep"])(kernel)


def test_catch_all_keywords_are_trusted() -> None:
    """``**options`` takes every keyword."""

    def kernel(query: Tensor, key: Tensor, value: Tensor, **options: object) -> Tensor:
        del options
        return bare(query, key, value)

    made = conformance.core(masks=["keep", "bias"], causal="top-left", features=["scale"])(kernel)
    assert made.declaration.keywords == ("keep", "bias", "causal", "scale")


def test_functions_written_in_c_are_taken_at_their_word() -> None:
    """A builtin shows no signature, so its promises cannot be held against it."""
    made = conformance.core(masks=["keep"])(torch._C._nn.scaled_dot_product_attention)
    assert made.name == "scaled_dot_product_attention"


def test_layer_builder_is_not_called_to_declare_it() -> None:
    """Declaring a layer builds nothing."""

    @conformance.layer(masks=["keep"])
    def build(_geometry: object, _weights: object) -> object:
        raise AssertionError

    assert build.kind == "layer"


def test_positions_pin_a_longest_length() -> None:
    """A position encoding is called with one input and knows how long it may be."""
    made = conformance.positions(max_length=16, name="encode")(lambda x: x)
    assert made.kind == "positions"
    assert made.declaration.max_length == 16
    assert made.declaration.positional == ("x",)
    with pytest.raises(DeclarationError, match="is called with 1 positional inputs"):
        conformance.positions(max_length=16)(lambda: None)
