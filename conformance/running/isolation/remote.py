"""The judge's end of a candidate's process: requests, replies, and what a lost process means."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from torch import Tensor

from ...base.printable_text import capped, ending_text, printable, size_text
from ...base.results import Violation
from ...calls.calling import CandidateLost, RaisedElsewhere
from ...errors import UsageError
from ...graphs.protocol import Head, ProtocolError
from . import kernel, zygote
from .wire import OWN_NUMBERS, TOO_MUCH, Arena, Handed, field, new_arena, receive, send

_FAREWELL: Final = 2.0
_MEMORY: Final = 8 << 30
_UNLIMITED_BY_US: Final = "could not start a process of its own"


class Remote:
    """The process in which a target's candidates run; restarted by the next request after a loss.

    ``memory`` is the limit in bytes; None: 8 GiB. ``held`` describes the barriers to the judge.
    ``generation`` counts the processes: layers and recordings of an earlier process are lost.
    """

    def __init__(self, client: socket.socket, load: Head, memory: int | None = None) -> None:
        self._client = client
        self._most = _MEMORY if memory is None else memory
        self._load = load
        self._end: socket.socket | None = None
        self._status = -1
        self._arena: Arena | None = None
        self._loaded: Head | None = None
        self._sent = 0
        self.generation = 0
        self.held: list[str] = []
        self._dropped: list[int] = []

    def loaded(self) -> tuple[list[Any], list[Tensor]]:
        """Return the process's description of its candidates, and the tensors of their weights.

        Raises UsageError for an unusable target, CandidateLost for a target that ends the process.
        """
        reply = self._started()
        return field(reply, "candidates", list), self._memory.take(reply.get("tensors"))

    def number(self) -> int:
        """Return a new number for an object built or recorded in the process."""
        self._sent += 1
        return self._sent

    def drop(self, number: int, generation: int) -> None:
        """Let the process forget the object of a number, with the next request."""
        if generation == self.generation:
            self._dropped.append(number)

    @property
    def promises(self) -> dict[str, Any] | None:
        """Return the promises a third party makes for the target's function."""
        promises: dict[str, Any] | None = self._load["promises"]
        return promises

    @property
    def target(self) -> str:
        """What is loaded."""
        return str(self._load["target"])

    def request(
        self, do: str, tensors: Sequence[Tensor] = (), *, written: bool = False, **head: Any
    ) -> tuple[Head, list[Tensor]]:
        """Return a reply and its tensors.

        Writes into ``tensors`` by the candidate are visible here only if ``written``: the tensors
        must be copies made for the call. Raises RaisedElsewhere for an exception of the candidate,
        CandidateLost when its process is gone.
        """
        self._started()
        dropped, self._dropped = self._dropped, []
        memory = self._memory
        try:
            handed = Handed(memory, tensors)
        except ProtocolError as error:
            msg = f"cannot be handed {error}: less is shared with isolated candidates"
            raise CandidateLost(msg) from None
        request = {
            "do": do,
            "drop": dropped,
            "tensors": handed.described,
            "storages": handed.storages,
            "end": handed.end,
            **head,
        }
        reply = self._exchanged(request)
        if written:
            handed.fetch()
        if "refused" in reply:
            raise UsageError(_words(reply, "refused"))
        if "raised" in reply:
            raise RaisedElsewhere(
                Violation(
                    kind="raised",
                    message=_words(reply, "raised"),
                    got=_words(reply, "got"),
                    traceback=printable(capped(str(reply.get("traceback", "")))),
                )
            )
        try:
            return reply, memory.take(reply.get("tensors", []))
        except ProtocolError as error:
            raise self._forged(error) from None

    def refuse(self, what: str) -> NoReturn:
        """Raise CandidateLost for a reply that cannot be; the process is ended."""
        raise self._forged(ProtocolError(what))

    def _forged(self, error: ProtocolError) -> CandidateLost:
        self.close()
        return CandidateLost(printable(f"answered with what is no answer: {capped(str(error))}"))

    @property
    def _memory(self) -> Arena:
        if self._arena is None:
            raise CandidateLost(_UNLIMITED_BY_US)
        return self._arena

    def _started(self) -> Head:
        """Return the description of the candidates; starts and loads a process if none runs."""
        if self._end is not None and self._loaded is not None:
            return self._loaded
        self._start()
        promises = None if self.promises is None else repr(self.promises)
        load = {**self._load, "promises": promises}
        reply = self._exchanged({"do": "load", **load})
        if "refused" in reply:
            raise UsageError(_words(reply, "refused"))
        if "raised" in reply:
            msg = f"{self._load['target']} cannot be loaded: {_words(reply, 'raised')}"
            raise UsageError(msg)
        if self._loaded is not None and reply != {**self._loaded, "of": reply["of"]}:
            self.close()
            msg = "declares something else when it is loaded again"
            raise CandidateLost(msg)
        self._loaded = reply
        return reply

    def _start(self) -> None:
        own, theirs = socket.socketpair()
        arena = new_arena(self._most)
        self._status, status = os.pipe()
        try:
            handed_over = [theirs.fileno(), arena, status, 1]
            zygote.ask(self._client, str(Path.cwd()), self._most, handed_over)
        except OSError:
            msg = "candidates cannot be isolated here: the process that starts theirs has ended"
            raise UsageError(msg) from None
        finally:
            theirs.close()
            os.close(status)
        self._end, self._arena = own, Arena(arena)
        os.close(arena)
        self.generation += 1
        self._dropped = []
        try:
            hello = receive(own)
        except (EOFError, OSError, ProtocolError):
            self.close()
            msg = f"candidates cannot be isolated here: one {_UNLIMITED_BY_US}"
            raise UsageError(msg) from None
        self.held = [str(word) for word in hello["held"]]
        if OWN_NUMBERS not in self.held:  # it could name this process
            kernel.forbid_tracing()

    def _exchanged(self, head: Head) -> Head:
        """Send a request and read its reply; raises CandidateLost."""
        end = self._end
        if end is None:
            raise CandidateLost(_UNLIMITED_BY_US)
        of = self.number()
        try:
            send(end, {**head, "of": of})
            reply = receive(end)
        except (EOFError, OSError):
            raise self._died() from None
        except ProtocolError as error:
            raise self._forged(error) from None
        except BaseException:  # Ctrl-C: what comes later would answer another question
            self.close()
            raise
        if type(reply.get("of")) is not int or reply["of"] != of:
            self.refuse("the reply to another request")
        return reply

    def _died(self) -> CandidateLost:
        text = ""
        if select.select([self._status], [], [], _FAREWELL)[0]:
            text = os.read(self._status, 64).decode(errors="replace")
        self.close()
        if text.startswith(TOO_MUCH):
            most = size_text(self._most)
            return CandidateLost(
                f"took more than {most} of memory with its children, and was ended"
            )
        kind, _, number = text.partition(" ")
        if not number.isdecimal():
            return CandidateLost(ending_text(None))
        return CandidateLost(ending_text(int(number) if kind == "exit" else -int(number)))

    def close(self) -> None:
        """End the process and its descendants."""
        if self._end is not None:
            self._end.close()
            os.close(self._status)
        self._end, self._arena = None, None


def _words(reply: Head, name: str) -> str:
    """Return a printable, shortened text from the candidate's side."""
    value = reply.get(name)
    return printable(capped(value)) if isinstance(value, str) else f"nothing readable ({name})"
