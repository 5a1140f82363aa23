"""The whole models by name, ready for an exporter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import nn

from ..exports import Input, Source
from .transformer import Decoder, Encoder, EncoderDecoder, HidingEncoder, Mistake, Shape, Vision

_IDS: Final = Input(name="input_ids", axes=("batch", "tokens"), kind="ids")
_MASK: Final = Input(name="attention_mask", axes=("batch", "tokens"), kind="keep")
_DECODER_IDS: Final = Input(name="decoder_ids", axes=("batch", "queries"), kind="ids")
_GROUPED: Final = Shape(kv_heads=2)
_WRITTEN: Final = Shape(written=True)


def _source(name: str, module: nn.Module, *more: Input) -> Source:
    answer = ("batch", "queries" if more else "tokens", "width")
    return Source(
        name=name, module=module.eval(), inputs=(_IDS, _MASK, *more), outputs={"answer": answer}
    )


def _vision(name: str, *mistakes: Mistake) -> Source:
    return Source(
        name=name,
        module=Vision(Shape(), mistakes).eval(),
        inputs=(Input(name="pixel_values", axes=("batch", 3, 8, 8)),),
        outputs={"classes": ("batch", "classes")},
    )


def encoder(layers: int, width: int = Shape().width) -> Source:
    """An encoder of any size, with random weights."""
    return _source(f"encoder-{layers}", Encoder(Shape(layers=layers, width=width)))


def _models() -> dict[str, Source]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return {
            "encoder": _source("encoder", Encoder(Shape())),
            "encoder-written": _source("encoder-written", Encoder(_WRITTEN)),
            "encoder-hiding": Source(
                name="encoder-hiding",
                module=HidingEncoder(Shape()).eval(),
                inputs=(_IDS, Input(name="hidden_mask", axes=("batch", "tokens"), kind="drop")),
                outputs={"answer": ("batch", "tokens", "width")},
            ),
            "decoder": _source("decoder", Decoder(_GROUPED)),
            "encoder-decoder": _source("encoder-decoder", EncoderDecoder(Shape()), _DECODER_IDS),
            "vision": _vision("vision"),
        }


@dataclass(frozen=True, kw_only=True, eq=False)
class BrokenModel:
    """A model in which some attentions are wrong.

    wrong
        Their indices in the order of execution; the others are right.
    clause
        A MUST clause that each of them fails.
    """

    source: Source
    wrong: tuple[int, ...]
    clause: str


def _broken() -> dict[str, BrokenModel]:
    right = Mistake()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return {
            "second-unscaled": BrokenModel(
                source=_source("second-unscaled", Encoder(Shape(), [right, Mistake(scale=1.0)])),
                wrong=(1,),
                clause="numerics.golden",
            ),
            "first-small-fill": BrokenModel(
                source=_source("first-small-fill", Encoder(_WRITTEN, [Mistake(fill=-30.0)])),
                wrong=(0,),
                clause="mask.no-leak",
            ),
            "second-sums-over-queries": BrokenModel(
                source=_source(
                    "second-sums-over-queries", Encoder(_WRITTEN, [right, Mistake(axis=-2)])
                ),
                wrong=(1,),
                clause="numerics.golden",
            ),
            "second-groups-tiled": BrokenModel(
                source=_source(
                    "second-groups-tiled", Decoder(_GROUPED, [right, Mistake(tiled=True)])
                ),
                wrong=(1,),
                clause="numerics.golden",
            ),
            "second-of-pictures-unscaled": BrokenModel(
                source=_vision("second-of-pictures-unscaled", right, Mistake(scale=1.0)),
                wrong=(1,),
                clause="numerics.golden",
            ),
        }


MODELS: Final = _models()
BROKEN: Final = _broken()
