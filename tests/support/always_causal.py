"""Attention that is causal in every call, right and wrong: what no flag asks for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Final

import torch
from torch import Tensor

import conformance
from candidates.eager import Answer, Call, EagerCore, EagerLayer
from conformance.declare.candidate import Candidate

PROMISES: Final[dict[str, Any]] = {
    "masks": ["keep", "bias", "lengths"],
    "always_causal": True,
    "features": ["scale", "gqa", "softcap", "window", "weights"],
    "dtypes": ["float32", "float16"],
}


class AlwaysCausal(EagerCore):
    """A triangle in every call; a flag that is passed all the same is refused."""

    def attend(self, call: Call) -> Answer:
        """As the eager core with its flag set; raises TypeError where it is set already."""
        if call.causal:
            msg = "this core has no causal flag"
            raise TypeError(msg)
        return super().attend(call.replace(causal=True))


class NeverCausal(EagerCore):
    """No triangle at all."""


class SeesNext(AlwaysCausal):
    """A diagonal that is one too far."""

    def ahead(self, call: Call) -> Tensor:
        """One less."""
        return super().ahead(call) - 1


class HidesOwn(AlwaysCausal):
    """A diagonal that is one short."""

    def ahead(self, call: Call) -> Tensor:
        """One more."""
        return super().ahead(call) + 1


class LosesItUnderMask(AlwaysCausal):
    """A triangle only where there is no mask."""

    def tables(self, call: Call) -> Iterator[Tensor]:
        """Without causality where there is a mask."""
        masked = call.keep is not None or call.bias is not None or call.lengths is not None
        return super().tables(call.replace(causal=not masked))


class FiniteFill(AlwaysCausal):
    """Later keys get a logit of -1e4, as in GPT-2."""

    def mask(self, logits: Tensor, allowed: Tensor) -> Tensor:
        """A number where minus infinity belongs."""
        return logits.masked_fill(~allowed, -1e4)

    def weights(self, logits: Tensor, allowed: Tensor | None) -> Tensor:
        """Nothing is filled after the softmax."""
        return self.softmax(logits if allowed is None else self.mask(logits, allowed))


def core(kind: type[EagerCore], alignment: str, **promises: Any) -> Candidate:
    """A core of a kind, declared always causal at an alignment, which is its own by default."""
    own = promises.pop("own", alignment)
    declared = {**PROMISES, "causal": alignment, "empty_rows": "zeros", **promises}
    made: Candidate = conformance.core(name=kind.__name__, **declared)(kind(causal=own))
    return made


class Layer(EagerLayer):
    """A layer around such a core, called with one, two or three inputs."""

    core: EagerCore = AlwaysCausal()

    def __call__(self, *tokens: Tensor, **options: Any) -> Answer:
        """What is one input is query, key and value; of two, the second is key and value."""
        query, key, value = (*tokens, *(3 - len(tokens)) * tokens[-1:])
        return super().__call__(query, key, value, **options)


def layer(
    kind: type[EagerCore], alignment: str, *, inputs: str = "self", **promises: Any
) -> Candidate:
    """A layer around a core of a kind, declared always causal at an alignment."""
    own = promises.pop("own", alignment)

    class Around(Layer):
        core: ClassVar[EagerCore] = kind(causal=own)  # type: ignore[misc]  # one for all

    declared = {
        **PROMISES,
        "causal": alignment,
        "empty_rows": "zeros",
        "inputs": inputs,
        **promises,
    }
    made: Candidate = conformance.layer(name=kind.__name__, **declared)(Around)
    return made


def language_model(
    *, weights_known: bool = True, kind: type[EagerCore] = AlwaysCausal
) -> Candidate:
    """A self-attention that brings its weights, as an exported language model does."""
    generator = torch.Generator().manual_seed(3)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator) / shape[-1] ** 0.5

    weights = conformance.ProjectionWeights(
        q=drawn(12, 12), k=drawn(12, 12), v=drawn(12, 12), o=drawn(12, 12),
        q_bias=drawn(12), k_bias=drawn(12), v_bias=drawn(12), o_bias=drawn(12),
    )  # fmt: skip
    sizes = conformance.Geometry(
        batch=1, num_heads=3, num_kv_heads=3, query_length=1, key_length=1, head_size=4,
        value_head_size=4, query_size=12, key_size=12, value_size=12, output_size=12,
    )  # fmt: skip

    class Around(Layer):
        core: ClassVar[EagerCore] = kind(causal="top-left")  # type: ignore[misc]  # one for all

    widths = dict.fromkeys(("query_size", "key_size", "value_size", "output_size"), 12)
    return conformance.fixed_layer(
        Around(sizes, weights),
        weights if weights_known else None,
        num_heads=3,
        name="language_model",
        inputs="self",
        causal="top-left",
        always_causal=True,
        **({} if weights_known else {"geometry": widths}),
    )
