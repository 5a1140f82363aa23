"""Mistakes in attention sinks."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from ._kit import core
from ._prepared import Prepared

SINKS: Final[dict[str, Any]] = {"masks": ["keep"], "features": ["scale", "sinks", "gqa"]}


def beside(logits: Tensor, column: Tensor) -> tuple[Tensor, Tensor]:
    """The weights of the keys and of one more logit ``[H]`` or of its shape."""
    if column.dim() == 1:
        column = column[:, None, None]
    every = torch.cat([logits, column.expand(*logits.shape[:-1], 1)], dim=-1).softmax(-1)
    return every[..., :-1], every[..., -1:]


class Column(Prepared):
    """The sink is a column of the logits; ``column`` and ``finish`` may be wrong."""

    def weigh(self, logits: Tensor, table: Tensor, sinks: Tensor | None, value: Tensor) -> Tensor:
        if sinks is None:
            return super().weigh(logits, table, sinks, value)
        hidden = logits.masked_fill(~table, -torch.inf)
        weights, share = beside(hidden, self.column(hidden, sinks))
        return self.finish(weights, share, value)

    def column(self, logits: Tensor, sinks: Tensor) -> Tensor:
        """The logit of the sink."""
        del logits
        return sinks

    def finish(self, weights: Tensor, share: Tensor, value: Tensor) -> Tensor:
        """The weighted sum; the sink has no value."""
        del share
        return weights @ value


@core("sinks.golden", **SINKS)
class SinkIgnored(Prepared):
    """The sinks are taken and not used."""

    def weigh(self, logits: Tensor, table: Tensor, sinks: Tensor | None, value: Tensor) -> Tensor:
        del sinks
        return super().weigh(logits, table, None, value)


@core("sinks.golden", **SINKS)
class SinkWithTheMeanValue(Column):
    """The sink's weight goes to the mean of the values."""

    def finish(self, weights: Tensor, share: Tensor, value: Tensor) -> Tensor:
        return weights @ value + share * value.mean(2, keepdim=True)


@core("sinks.golden", **SINKS)
class SinkWithTheFirstValue(Column):
    """The sink's weight goes to the first value."""

    def finish(self, weights: Tensor, share: Tensor, value: Tensor) -> Tensor:
        return weights @ value + share * value[:, :, :1]


@core("sinks.golden", **SINKS)
class WeightsNormalisedAgain(Column):
    """The weights are divided by their sum once more, so that the sink does nothing."""

    def finish(self, weights: Tensor, share: Tensor, value: Tensor) -> Tensor:
        del share
        return weights @ value / weights.sum(-1, keepdim=True).clamp(min=1e-30)


@core("sinks.large", **SINKS)
class SinkBesideTheMaximum(Prepared):
    """The maximum that is subtracted does not count the sink, whose exponential overflows."""

    def weigh(self, logits: Tensor, table: Tensor, sinks: Tensor | None, value: Tensor) -> Tensor:
        logits = logits.masked_fill(~table, -torch.inf)
        largest = logits.amax(-1, keepdim=True)
        largest = torch.where(torch.isneginf(largest), 0.0, largest)
        weights = (logits - largest).exp()
        total = weights.sum(-1, keepdim=True)
        output = weights @ value
        if sinks is not None:
            grown = (sinks[:, None, None] - largest).exp()
            return output * (1.0 / grown) / (total / grown + 1.0)
        answer: Tensor = output / torch.where(total == 0, 1.0, total)
        return answer


@core("sinks.golden", **SINKS)
class SinkOfTheFirstHead(Column):
    """All heads have the sink of the first."""

    def column(self, logits: Tensor, sinks: Tensor) -> Tensor:
        return sinks[:1].expand(logits.shape[1])


@core("sinks.golden", **SINKS)
class SinksOfOtherHeads(Column):
    """Sinks are read in the opposite order of the heads."""

    def column(self, logits: Tensor, sinks: Tensor) -> Tensor:
        del logits
        return sinks.flip(0)


@core("sinks.golden", **SINKS)
class SinkScaled(Prepared):
    """The sink is multiplied by the scale, as if it were a dot product."""

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, **given: Any) -> Tensor:
        if given.get("sinks") is not None:
            factor = given.get("scale")
            factor = query.shape[-1] ** -0.5 if factor is None else factor
            given["sinks"] = given["sinks"] * factor
        return super().__call__(query, key, value, **given)


@core("sinks.golden", **SINKS)
class SinkAsAnExponential(Prepared):
    """The sink itself joins the sum, not its exponential."""

    def weigh(self, logits: Tensor, table: Tensor, sinks: Tensor | None, value: Tensor) -> Tensor:
        logged = None if sinks is None else sinks.abs().log()
        return super().weigh(logits, table, logged, value)


@core("sinks.golden", **SINKS)
class SinkForFullRowsAlone(Column):
    """A row of which a key is hidden has no sink: the mask hides it."""

    def weigh(self, logits: Tensor, table: Tensor, sinks: Tensor | None, value: Tensor) -> Tensor:
        with_sink = super().weigh(logits, table, sinks, value)
        without = Prepared.weigh(self, logits, table, None, value)
        hidden = ~table.expand(logits.shape).all(-1, keepdim=True)
        return torch.where(hidden, without, with_sink)


@core("sinks.golden", **SINKS)
class SinkInEveryBlock(Prepared):
    """Each block of four keys counts the sink again."""

    def weigh(self, logits: Tensor, table: Tensor, sinks: Tensor | None, value: Tensor) -> Tensor:
        blocks = max(1, -(-logits.shape[-1] // 4))
        more = None if sinks is None else sinks + torch.tensor(float(blocks)).log()
        return super().weigh(logits, table, more, value)


@core("sinks.empty-row", **SINKS)
class EmptyRowsDivideBySinks(Column):
    """A row without keys returns the first value, as if the sink had one."""

    def weigh(self, logits: Tensor, table: Tensor, sinks: Tensor | None, value: Tensor) -> Tensor:
        answer = super().weigh(logits, table, sinks, value)
        if sinks is None:
            return answer
        empty = ~table.expand(logits.shape).any(-1, keepdim=True)
        return torch.where(empty, value[:, :, :1], answer)
