"""How a module is called for its export: sizes, masks, dynamic axes, names of outputs."""

from __future__ import annotations

import pytest
import torch
from modules_to_export import Padded
from torch import Tensor, nn

from conformance.errors import UsageError
from conformance.tools.exporting.export_call import export_call


class Masked(nn.Module):
    """Two inputs and one mask, whose form a function decides."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(8, 8) for _ in range(4))
        self.num_heads, self.form = 2, form

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Tokens ``[B, L, 8]``; the weights come second."""
        tokens = (self.q_proj(query), self.k_proj(key), self.v_proj(value))
        q, k, v = (token.unflatten(-1, (2, 4)).transpose(1, 2) for token in tokens)
        scores = q @ k.transpose(-1, -2) / 2
        if attn_mask is not None:
            scores = self.masked(scores, attn_mask)
        weights = scores.softmax(-1)
        return self.out_proj((weights @ v).transpose(1, 2).flatten(2)), weights

    def masked(self, scores: Tensor, mask: Tensor) -> Tensor:
        """Scores as the form of the mask changes them."""
        if self.form == "BK":
            return scores.masked_fill(~mask[:, None, None], float("-inf"))
        if self.form == "BQK":
            return scores.masked_fill(~mask.unsqueeze(1), float("-inf"))
        if self.form == "bias":
            if mask.dtype == torch.bool:
                raise TypeError
            return scores + mask
        return scores


class Required(Masked):
    """A mask without a default, which the module indexes."""

    def forward(  # type: ignore[override]  # a mask is required
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Tokens ``[B, L, 8]``, and a mask ``[B, K]``; the weights come second."""
        return super().forward(query, key, value, attn_mask[:, :])


def shapes(module: nn.Module) -> dict[str, list[int]]:
    return {name: list(tensor.shape) for name, tensor in export_call(module, "it").inputs.items()}


def test_sizes_are_distinct_and_more_than_one() -> None:
    """No two of batch, queries, keys and heads are of one size: tracing tells them apart."""
    for heads in (2, 4):
        asking = export_call(nn.MultiheadAttention(8, heads, batch_first=True), "it")
        batch, queries, _ = asking.inputs["query"].shape
        keys = asking.inputs["key"].shape[1]
        assert len({batch, queries, keys, heads, 1}) == 5


def test_torchs_layer() -> None:
    """Both masks are found under their names, every axis is dynamic, the weights have a name."""
    asking = export_call(nn.MultiheadAttention(8, 2, batch_first=True), "it")
    assert list(asking.inputs) == ["query", "key", "value", "key_padding_mask", "attn_mask"]
    assert asking.axes == {
        "query": {0: "batch", 1: "query_length"},
        "key": {0: "batch", 1: "key_length"},
        "value": {0: "batch", 1: "key_length"},
        "key_padding_mask": {0: "batch", 1: "key_length"},
        "attn_mask": {0: "query_length", 1: "key_length"},
    }
    assert asking.outputs == ("output", "weights")


def test_tokens_before_items() -> None:
    """A module whose tensors are [L, B, E] has its axes named so."""
    asking = export_call(nn.MultiheadAttention(8, 2), "it")
    assert asking.axes["query"] == {0: "query_length", 1: "batch"}
    assert asking.axes["key_padding_mask"] == {0: "batch", 1: "key_length"}


@pytest.mark.parametrize(
    ("form", "shape", "dtype"),
    [
        ("BK", [4, 5], torch.bool),
        ("BQK", [4, 3, 5], torch.bool),
        ("bias", [4, 1, 3, 5], torch.float32),
        ("none", None, None),
    ],
)
def test_masks_are_found_by_trying(
    form: str, shape: list[int] | None, dtype: torch.dtype | None
) -> None:
    """The first form of a mask that is taken and has an influence is exported, if there is one."""
    asking = export_call(Masked(form), "it")
    mask_of_call = asking.inputs.get("attn_mask")
    assert (None if mask_of_call is None else list(mask_of_call.shape)) == shape
    assert (None if mask_of_call is None else mask_of_call.dtype) == dtype


def test_lengths_that_must_be_given() -> None:
    """A parameter without a default that names lengths gets lengths."""
    asking = export_call(Padded(), "it")
    assert asking.inputs["valid_lens"].tolist() == [2] * 4
    assert asking.axes["valid_lens"] == {0: "batch"}


def test_a_module_of_other_inputs() -> None:
    """What takes no tokens at all is told in one sentence."""

    class Scalar(nn.Module):
        def forward(self, number: int) -> int:
            return number + 1

    with pytest.raises(UsageError):
        export_call(Scalar(), "it")


def test_a_required_mask_is_an_input() -> None:
    """What a module cannot be called without is given as a reading of it gives it."""
    assert shapes(Required("BK"))["attn_mask"] == [4, 5]
    assert export_call(Required("BK"), "it").axes["attn_mask"] == {0: "batch", 1: "key_length"}
