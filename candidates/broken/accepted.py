"""Mistakes with sizes that do not belong together and are made to fit."""

from __future__ import annotations

from ..eager import Answer, Call
from ._kit import core
from .dtype_and_shape import Unchecked


@core("shape.rejects-others")
class MoreValuesAccepted(Unchecked):
    """More values than keys are accepted: the values without a key are dropped silently."""

    def attend(self, call: Call) -> Answer:
        return super().attend(call.replace(value=call.value[:, :, : call.key_length]))


@core("shape.rejects-others", masks=["keep"])
class LongerMaskAccepted(Unchecked):
    """A mask for more keys than there are is accepted and cut."""

    def attend(self, call: Call) -> Answer:
        keep = call.keep
        if keep is not None and keep.shape[-1] > call.key_length:
            call = call.replace(keep=keep[..., : call.key_length])
        self.check_keys(call)
        return super().attend(call)

    def check_keys(self, call: Call) -> None:
        """Masks for too few keys are refused all the same."""
        if call.keep is not None and call.keep.shape[-1] not in (1, call.key_length):
            msg = "the mask is for another number of keys"
            raise ValueError(msg)


@core("shape.rejects-others")
class BatchesCutToFit(Unchecked):
    """Queries and keys of different batches are accepted: both are cut to the smaller one."""

    def attend(self, call: Call) -> Answer:
        size = min(call.query.shape[0], call.key.shape[0])
        query, key, value = (tensor[:size] for tensor in (call.query, call.key, call.value))
        super().check(call)
        return super().attend(call.replace(query=query, key=key, value=value))
