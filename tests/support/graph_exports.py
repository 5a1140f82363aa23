"""Attention modules of many signatures, exported to ONNX files for tests of how graphs are read."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from onnxruntime.capi.onnxruntime_pybind11_state import (
    Fail,
    InvalidArgument,
    NotImplemented,  # noqa: A004 (onnxruntime's own name)
    RuntimeException,
)
from torch import Tensor, nn

from conformance.graphs.protocol import GraphRefused

WIDTH = 16
HEADS = 4


class Layer(nn.Module):
    """Multi-head attention written out: projections, logits, softmax, output projection."""

    def __init__(
        self,
        *,
        heads: int = HEADS,
        kv_heads: int | None = None,
        widths: Sequence[int] = (WIDTH, WIDTH, WIDTH),
        spread: float | None = None,
        rotary: bool = False,
    ) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.rotary = heads, kv_heads or heads, rotary
        size = WIDTH // heads
        with torch.random.fork_rng():
            torch.manual_seed(11)
            self.query = nn.Linear(widths[0], WIDTH)
            self.key = nn.Linear(widths[1], self.kv_heads * size)
            self.value = nn.Linear(widths[2], self.kv_heads * size)
            self.output = nn.Linear(WIDTH, WIDTH)
            if spread is not None:
                for parameter in self.parameters():
                    nn.init.normal_(parameter, std=spread)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        masking: Callable[[Tensor], Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The answer ``[B, Lq, E]`` and the weights ``[B, H, Lq, Lk]``."""
        query, key, value = (
            projection(tokens).unflatten(-1, (heads, -1)).transpose(1, 2)
            for projection, tokens, heads in (
                (self.query, query, self.heads),
                (self.key, key, self.kv_heads),
                (self.value, value, self.kv_heads),
            )
        )
        if self.rotary:
            query, key = rotated(query), rotated(key)
        answer, weights = attend(query, key, value, masking=masking)
        return self.output(answer.transpose(1, 2).flatten(2)), weights


def rotated(heads: Tensor) -> Tensor:
    """Rotary positions."""
    half = heads.shape[-1] // 2
    angles = torch.arange(heads.shape[-2])[:, None] * 0.3 ** torch.arange(half)
    cosine, sine = angles.cos(), angles.sin()
    first, second = heads[..., :half], heads[..., half:]
    return torch.cat([first * cosine - second * sine, first * sine + second * cosine], -1)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    masking: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Scaled dot products ``[B, H, L, D]``; key and value may have fewer heads."""
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = (
            heads[:, :, None].expand(-1, -1, groups, -1, -1).flatten(1, 2) for heads in (key, value)
        )
    logits = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    if masking is not None:
        logits = masking(logits)
    weights = logits.softmax(-1)
    return weights @ value, weights


class Calls(nn.Module):
    """A module with the signature of a function whose first argument is a layer."""

    def __init__(self, layer: nn.Module, function: Callable[..., Any]) -> None:
        super().__init__()
        self.layer, self.function = layer, function

    def forward(self, *inputs: Tensor) -> Any:
        """Whatever the function says."""
        return self.function(self.layer, *inputs)


def export(
    path: Path,
    module: nn.Module,
    inputs: Mapping[str, Tensor],
    *,
    dynamic: Mapping[str, Mapping[int, str]] | None = None,
    outputs: Sequence[str] = ("y",),
    opset: int = 18,
    dynamo: bool = False,
) -> Path:
    """Export with the legacy exporter, or with the newer one, in one file."""
    shapes: dict[str, Any] = {"dynamic_axes": dynamic}
    if dynamo:
        axes = [dict((dynamic or {}).get(name, {})) for name in inputs]
        spec = (tuple(axes),) if isinstance(module, Calls) else tuple(axes)
        shapes = {"dynamic_shapes": spec, "external_data": False}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module.eval(),
            tuple(inputs.values()),
            str(path),
            input_names=list(inputs),
            output_names=list(outputs),
            opset_version=opset,
            dynamo=dynamo,
            **shapes,
        )
    return path


def runner(path: Path) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """A graph in this process, with GraphRefused where the runtime refuses."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def run(feeds: Mapping[str, Any]) -> dict[str, Any]:
        try:
            answers = session.run(names, dict(feeds))
        except (Fail, InvalidArgument, NotImplemented, RuntimeException) as error:
            raise GraphRefused(str(error)) from None
        return {name: np.asarray(answer) for name, answer in zip(names, answers, strict=True)}

    return run


def dynamic(**axes: str) -> dict[str, dict[int, str]]:
    """Names of axes by input: ``q="b . s"`` names the first and the third, a dot is a fixed one."""
    return {
        name: {at: axis for at, axis in enumerate(text.split()) if axis != "."}
        for name, text in axes.items()
    }


def numbers(*shape: int) -> Tensor:
    """Normal numbers, the same ones every time."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(3))


def separate(**more: Tensor) -> dict[str, Tensor]:
    """Query, key and value of a layer, five and seven positions, and more inputs."""
    return {"q": numbers(3, 5, WIDTH), "k": numbers(3, 7, WIDTH), "v": numbers(3, 7, WIDTH)} | more


def heads(kv_heads: int = HEADS, **more: Tensor) -> dict[str, Tensor]:
    """Query, key and value of a core ``[B, H, L, D]``, and more inputs."""
    key = numbers(3, kv_heads, 7, 8)
    return {"q": numbers(3, HEADS, 5, 8), "k": key, "v": key.clone(), **more}


def of_layer(function: Callable[..., Any], **options: Any) -> nn.Module:
    """A module that computes a function of a :class:`Layer` and the inputs."""
    return Calls(Layer(**options), function)


def of_heads(function: Callable[..., Any]) -> nn.Module:
    """A module that computes a function of the inputs alone."""
    return Calls(nn.Identity(), lambda _, *inputs: function(*inputs))


def split(packed: Tensor, number: int = HEADS) -> Tensor:
    """``[B, L, H·D]`` as heads ``[B, H, L, D]``."""
    return packed.unflatten(-1, (number, -1)).transpose(1, 2)


def merged(apart: Tensor) -> Tensor:
    """``[B, H, L, D]`` as ``[B, L, H·D]``."""
    return apart.transpose(1, 2).flatten(2)


def keeping(mask: Tensor) -> Callable[[Tensor], Tensor]:
    """Logits with minus infinity where a mask is False."""
    return lambda logits: logits.masked_fill(~mask, -math.inf)


def dropping(mask: Tensor) -> Callable[[Tensor], Tensor]:
    """Logits with minus infinity where a mask is True."""
    return lambda logits: logits.masked_fill(mask, -math.inf)


def adding(bias: Tensor) -> Callable[[Tensor], Tensor]:
    """Logits plus a bias."""
    return lambda logits: logits + bias


def causal(logits: Tensor) -> Tensor:
    """Logits without later keys, aligned top-left, at any length."""
    queries, keys = logits.shape[-2], logits.shape[-1]
    return logits.masked_fill(~torch.ones(queries, keys, dtype=torch.bool).tril(), -math.inf)
