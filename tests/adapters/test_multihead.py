from __future__ import annotations

from typing import Any

import pytest
import torch
from refusals import refused
from torch import Tensor, nn
from wrapped import BASE, drawn_inputs, drawn_weights, is_golden, sizes_of

import conformance
from conformance._golden import golden
from conformance.adapters.trial import Inputs
from conformance.declare.candidate import Candidate
from conformance.declare.promises import declare
from conformance.errors import DeclarationError
from conformance.tolerance import contract_for, layer_bound

LAYERS: dict[str, dict[str, Any]] = {
    "sequence-first": {},
    "batch-first": {"batch_first": True},
    "widths": {"kdim": 5, "vdim": 7, "batch_first": True},
    "widths-sequence-first": {"kdim": 5, "vdim": 7},
    "no-bias": {"bias": False, "batch_first": True},
    "dropout": {"dropout": 0.5},
}


def layer_of(name: str) -> nn.MultiheadAttention:
    return nn.MultiheadAttention(12, 3, **LAYERS[name])


def masked_agreement(candidate: Candidate, **masks: Tensor) -> bool:
    """Whether the answer under torch's masks is the golden one under ours."""
    declaration = candidate.declaration
    geometry = declaration.pins.apply(BASE)
    weights = drawn_weights(geometry, declaration.semantics)
    inputs: Inputs = drawn_inputs(geometry, "separate")
    with torch.no_grad():
        output = candidate(geometry, weights).eval()(*inputs, **masks)
    drop, bias = masks.get("drop"), masks.get("bias")
    evaluated = golden.multi_head_attention(
        *inputs,
        weights,
        num_heads=sizes_of(geometry).num_heads,
        keep=None if drop is None else ~_four(drop),
        bias=None if bias is None else _four(bias),
        semantics=declaration.semantics,
    )
    contract = contract_for(declare("layer"), "float64", evaluated.core.scale)
    bound = layer_bound(evaluated, contract)
    return bool(((output - evaluated.output).abs() <= bound).all())


def _four(mask: Tensor) -> Tensor:
    return mask.reshape((1,) * (4 - mask.dim()) + tuple(mask.shape))


def mask_of(shape: str) -> Tensor:
    """A mask that leaves every row a key."""
    sizes = {"B": 2, "H": 3, "Q": 5, "K": 7, "1": 1}
    mask = torch.rand([sizes[letter] for letter in shape], generator=torch.manual_seed(3)) < 0.5
    mask[..., 0] = False
    return mask


@pytest.mark.parametrize("name", LAYERS)
def test_layer_answers_as_the_golden(name: str) -> None:
    """Both batch orders, fused or separate widths, with or without bias: the golden answer."""
    assert is_golden(conformance.module(layer_of(name)))


@pytest.mark.parametrize("inputs", ["self", "memory"])
def test_fewer_inputs(inputs: str) -> None:
    """Declared with one or two inputs, the layer gets them as key and value too."""
    assert is_golden(conformance.module(layer_of("batch-first"), inputs=inputs))


@pytest.mark.parametrize("shape", ["BHQK", "QK", "B11K"])
@pytest.mark.parametrize("name", ["sequence-first", "batch-first"])
def test_declared_masks(shape: str, name: str) -> None:
    """Each declared mask form, in each declared shape, and both together, mean what they say."""
    candidate = conformance.module(layer_of(name))
    assert shape in candidate.declaration.mask_shapes
    drop = mask_of(shape)
    bias = torch.randn(drop.shape, dtype=torch.float64, generator=torch.manual_seed(4))
    assert masked_agreement(candidate, drop=drop)
    assert masked_agreement(candidate, bias=bias)
    assert masked_agreement(candidate, drop=drop, bias=bias)


@pytest.mark.parametrize("shape", ["BK", "BQK"])
def test_shapes_that_could_be_taken_for_others_are_refused(shape: str) -> None:
    """The layer tells masks apart by their axes: of two or three none may be the items'."""
    with pytest.raises(DeclarationError, match=f"mask_shapes has '{shape}'; write B11K"):
        conformance.module(layer_of("batch-first"), masks=["drop"], mask_shapes=[shape])


def test_padding_beside_an_attention_mask() -> None:
    """A padding mask and a bias of another shape reach the layer as its two masks."""
    candidate = conformance.module(layer_of("batch-first"))
    bias = torch.randn(5, 7, dtype=torch.float64)
    assert masked_agreement(candidate, drop=mask_of("B11K"), bias=bias)


def test_returned_weights() -> None:
    """With ``return_weights`` the answer is a pair with weights of every head that sum to one."""
    candidate = conformance.module(layer_of("sequence-first"))
    assert "weights" in candidate.declaration.features
    geometry = candidate.declaration.pins.apply(BASE)
    weights = drawn_weights(geometry, candidate.declaration.semantics)
    forward = candidate(geometry, weights).eval()
    output, rows = forward(*drawn_inputs(geometry, "separate"), return_weights=True)
    assert output.shape == (2, 5, 12)
    assert rows.shape == (2, 3, 5, 7)
    # Seven terms, each rounded once or twice, and their sum: fewer than 2 * 7 roundings in all.
    assert ((rows.sum(-1) - 1).abs() <= 14 * torch.finfo(rows.dtype).eps).all()


@pytest.mark.parametrize("key_size", [9, 20])
def test_class_draws_its_sizes(key_size: int) -> None:
    """The class is constructed for every geometry it can have, fused and with separate widths."""
    candidate = conformance.module(nn.MultiheadAttention)
    base = BASE.replace(num_heads=2, head_size=5, key_size=key_size, value_size=11)
    geometry = candidate.declaration.pins.apply(base)
    assert (geometry.key_size == geometry.query_size) == (key_size == 9)
    assert is_golden(candidate, base)


def test_what_it_promises() -> None:
    """Only what the layer really takes is declared: no causality, no rule for empty rows."""
    declaration = conformance.module(layer_of("batch-first")).declaration
    assert declaration.masks == ("drop", "bias")
    assert declaration.causal is None
    assert declaration.empty_rows == "any"


def test_refused_promises() -> None:
    """A mask form or causality that the layer cannot take is refused in one sentence."""
    with refused(
        "nn.MultiheadAttention takes no mask 'lengths': declare keep, drop, bias, or pass call="
    ):
        conformance.module(layer_of("batch-first"), masks=["lengths"])
    with refused(
        "nn.MultiheadAttention takes causality as a mask only: drop causal=, or pass call="
    ):
        conformance.module(layer_of("batch-first"), causal="top-left")


@pytest.mark.parametrize("with_zeros", [False, True])
def test_keys_of_its_own_are_a_memory(*, with_zeros: bool) -> None:
    """A layer with ``add_bias_kv`` answers like the golden, and another memory does not."""
    layer = nn.MultiheadAttention(
        12, 3, add_bias_kv=True, add_zero_attn=with_zeros, batch_first=True
    )
    candidate = conformance.module(layer)
    assert candidate.has_memory
    assert is_golden(candidate)
    only = ["mask.golden", "mask.single-key", "shape.empty-key"]
    report = conformance.check(candidate, profile="quick", only=only)
    statuses = {clause.id: clause.status for clause in report.candidates[0].clauses}
    assert statuses == dict(zip(only, ("passed", "passed", "not-applicable"), strict=True))
    with torch.no_grad():
        layer.bias_v.add_(1.0)  # type: ignore[union-attr]  # it has one
    assert not is_golden(candidate)


def test_a_key_of_zeros_is_a_null_key() -> None:
    """A layer with ``add_zero_attn`` declares it, and answers like the golden."""
    layer = nn.MultiheadAttention(12, 3, add_zero_attn=True, batch_first=True)
    candidate = conformance.module(layer)
    assert candidate.declaration.semantics.null_key
    assert is_golden(candidate)
    report = conformance.check(candidate, profile="quick", only=["sinks.null-key", "mask.golden"])
    assert {clause.status for clause in report.candidates[0].clauses} == {"passed"}


def test_own_names_for_masks() -> None:
    """``call=`` with the layer's own names passes masks as they are."""
    candidate = conformance.module(
        layer_of("batch-first"), call={"drop": "attn_mask"}, mask_shapes=["QK"]
    )
    assert masked_agreement(candidate, drop=mask_of("QK"))
