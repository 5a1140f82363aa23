"""device.stream, .graph-capture: work that is queued on a device and done later."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..calls.calling import Arguments, Forward, arguments
from ..calls.devices import module_of, synchronise
from ..problems.problem import Problem
from ..problems.recipes import LIVELY
from ..problems.space import Space
from ._devices import declares, needing, on_a_device
from ._vocabulary import relate
from .registry import Finding, clause
from .subject import Subject

# Long enough for a kernel that does not wait to be done before its inputs are there: cycles of
# torch.cuda._sleep (about 25 ms), products of square matrices where there is no such function.
CYCLES = 50_000_000
PRODUCTS, WIDTH = 40, 1024
WARM_UP = 3


@clause(
    "device.stream",
    level="MUST",
    sentence=(
        "Called on a stream that is not the default one, it works on that stream: its answer is "
        "right once that stream is synchronised."
    ),
    source="CUDA programming guide, streams; pytorch, CUDA semantics: the current stream",
    space=Space(mask="maybe", causal="maybe", values=LIVELY, share=0.5),
    applies=(on_a_device, needing("streams", "Stream", "stream")),
    explained=False,
)
def stream(subject: Subject, problem: Problem) -> Finding:
    """The tensors hold NaN until the stream, which has fallen behind, comes to fill them.

    Who works on another stream without waiting reads NaN. Nobody waits for more than this stream.
    """
    inputs = subject.inputs(problem)
    forward = subject.forward(inputs)
    plain = subject.call(forward, inputs).output  # whatever is compiled or tuned is so by now
    given, values = arguments(inputs), arguments(inputs)
    for tensor in _floating(given):
        tensor.fill_(torch.nan)
    synchronise(subject.device)
    late = _Late(forward, given, values, subject.device)
    answer = subject.ask(late, given, inputs).output
    wording = "on a stream of its own the answer is another: something does not wait for it"
    return relate(subject, (inputs, plain), (inputs, answer), wording)


class _Late:
    """Calls a forward on a stream that brings the values of its inputs late."""

    def __init__(self, forward: Forward, given: Arguments, values: Arguments, device: str) -> None:
        self.forward = forward
        self.pairs = list(zip(_floating(given), _floating(values), strict=True))
        self.device = device

    def __call__(self, *positional: Any, **keywords: Any) -> Any:
        """Everything on one stream; what is returned are copies that it made, too."""
        module = module_of(self.device)
        side = module.Stream(device=self.device)
        with module.stream(side):
            fall_behind(self.device)
            for tensor, values in self.pairs:
                tensor.copy_(values)
            returned = _copied(self.forward(*positional, **keywords))
        side.synchronize()
        return returned


def fall_behind(device: str) -> None:
    """Keep the current stream of a device busy for a while."""
    sleep = getattr(module_of(device), "_sleep", None)
    if sleep is not None:
        sleep(CYCLES)
        return
    busy = torch.ones(WIDTH, WIDTH, device=device)
    for _ in range(PRODUCTS):
        busy = busy @ busy


def _copied(returned: Any) -> Any:
    if isinstance(returned, tuple):
        return tuple(_copied(part) for part in returned)
    return returned.clone() if isinstance(returned, Tensor) else returned


def _floating(given: Arguments) -> list[Tensor]:
    """The inputs that hold numbers, each once."""
    tensors = {id(tensor): tensor for tensor in given[0] if tensor.is_floating_point()}
    return list(tensors.values())


@clause(
    "device.graph-capture",
    level="MUST",
    sentence="Captured as a graph and replayed with other inputs, it gives the answer to these.",
    source="pytorch, CUDA graphs: static inputs, no synchronisation, nothing decided by values",
    space=Space(causal="maybe", values=LIVELY, share=0.5),
    counterfactual="the answer to what was captured",
    applies=(
        declares("graph_capture"),
        on_a_device,
        needing("graphs", "CUDAGraph", "graph", "Stream", "stream"),
    ),
    explained=False,
)
def graph_capture(subject: Subject, problem: Problem) -> Finding:
    """One capture; the replay answers the values of another seed."""
    first = subject.inputs(problem)
    drawn = subject.inputs(problem.replace(seed=problem.seed + 1))
    other = drawn.replace(weights=first.weights, generic=False)
    forward = subject.forward(first)
    eager = subject.call(forward, other).output
    given = arguments(first)
    captured = _Captured(forward, arguments(other), subject.device)
    answer = subject.ask(captured, given, other).output
    return relate(
        subject,
        (other, eager),
        (other, answer),
        "replayed from a graph the answer is another than when it is called",
        counterfactual=lambda: subject.oracle.output(first),
    )


class _Captured:
    """Captures a forward as a graph and replays it with other values in the same tensors."""

    def __init__(self, forward: Forward, values: Arguments, device: str) -> None:
        self.forward = forward
        self.values = values
        self.device = device

    def __call__(self, *positional: Any, **keywords: Any) -> Any:
        """Warm up on a stream of its own, as torch asks for; capture; replay."""
        module = module_of(self.device)
        side = module.Stream(device=self.device)
        synchronise(self.device)
        with module.stream(side):
            for _ in range(WARM_UP):
                self.forward(*positional, **keywords)
        synchronise(self.device)
        graph = module.CUDAGraph()
        with module.graph(graph):
            returned = self.forward(*positional, **keywords)
        for tensor, values in zip(positional, self.values[0], strict=True):
            tensor.copy_(values)
        graph.replay()
        synchronise(self.device)
        return returned
