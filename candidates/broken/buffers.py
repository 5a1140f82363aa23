"""Mistakes of kernels that write their answer into a buffer of the caller: ``out=``."""

from __future__ import annotations

from typing import Any, Final

from torch import Tensor

from ..eager import EagerCore
from ._kit import core

OUT: Final[dict[str, Any]] = {
    "masks": ["keep"],
    "features": ["scale", "out"],
    "without": ["gradients"],
}


class BufferCore(EagerCore):
    """Writes into ``out`` what it would have returned; a mistake replaces that."""

    def __call__(self, *tensors: Tensor, out: Tensor | None = None, **options: Any) -> Tensor:
        """Attend, into ``out`` if it is given."""
        output = super().__call__(*tensors, **options)
        if not isinstance(output, Tensor):
            msg = "no weights are promised"
            raise TypeError(msg)
        return output if out is None else self.write(output, out)

    def write(self, output: Tensor, out: Tensor) -> Tensor:
        """Fill the buffer."""
        return out.copy_(output)


@core("out.written", "out.strided", **OUT)
class LastRowUnwritten(BufferCore):
    """The last row of each head is not written: a tile that is not full is left out."""

    def write(self, output: Tensor, out: Tensor) -> Tensor:
        out[:, :, :-1] = output[:, :, :-1]
        return out


@core("out.written", "out.strided", **OUT)
class BufferIgnored(BufferCore):
    """The answer is returned in another tensor, and the buffer stays as it was."""

    def write(self, output: Tensor, out: Tensor) -> Tensor:
        del out
        return output


@core("out.written", "out.strided", **OUT)
class BufferAddedTo(BufferCore):
    """The answer is added to what is in the buffer."""

    def write(self, output: Tensor, out: Tensor) -> Tensor:
        return out.add_(output)


@core("out.strided", **OUT)
class BufferTakenAsContiguous(BufferCore):
    """The buffer is written from its first element on, whatever its strides."""

    def write(self, output: Tensor, out: Tensor) -> Tensor:
        row = out.as_strided((out.numel(),), (1,), out.storage_offset())
        row.copy_(output.reshape(-1))
        return out


@core("out.bounds", **OUT)
class WrittenPastTheBuffer(BufferCore):
    """A full tile is written where the buffer ends before the tile does."""

    def write(self, output: Tensor, out: Tensor) -> Tensor:
        out.copy_(output)
        end = out.storage_offset() + out.numel()
        if out.is_contiguous() and out.untyped_storage().nbytes() > end * out.element_size():
            out.as_strided((1,), (1,), end).zero_()
        return out


@core("out.kept", **OUT)
class BufferUsedAgain(BufferCore):
    """The first buffer that is given is kept as scratch memory for the calls that follow."""

    kept: Tensor | None = None

    def __call__(self, *tensors: Tensor, out: Tensor | None = None, **options: Any) -> Tensor:
        """Attend; scratch of an earlier call is filled before the answer is copied."""
        output = super().__call__(*tensors, out=out, **options)
        if self.kept is not None and self.kept is not out and self.kept.shape == output.shape:
            self.kept.copy_(output)
        type(self).kept = out if out is not None and out.is_contiguous() else self.kept
        return output
