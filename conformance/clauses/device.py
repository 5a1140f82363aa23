"""device.*: one device beside another, streams and captured graphs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..calls.calling import Arguments, Forward, arguments
from ..calls.devices import CPU, here, judged_on, kind_of, module_of, offers, synchronise
from ..declare.candidate import Candidate
from ..problems.problem import Problem
from ..problems.recipes import LIVELY
from ..problems.space import Space
from ._vocabulary import identical, one_item, relate
from .registry import Applies, Finding, clause, declares, violated
from .subject import Subject


def on_a_device(candidate: Candidate) -> str:
    """Why a clause about other devices than the CPU has nothing to ask, or ""."""
    if kind_of(judged_on(candidate.declaration.devices)) != CPU:
        return ""
    return f"it is judged on the CPU, and {here()}"


def called_on_the_cpu(candidate: Candidate) -> str:
    """Why a candidate cannot be called on the CPU, or ""."""
    declared = candidate.declared_on or candidate.declaration.devices
    if any(kind_of(name) == CPU for name in declared):
        return ""
    return f"it is declared for {' and '.join(declared)} alone"


def needing(what: str, *functions: str) -> Applies:
    """Require that torch's module for the judged device has some functions."""

    def applies(candidate: Candidate) -> str:
        device = judged_on(candidate.declaration.devices)
        return "" if offers(device, *functions) else f"torch has no {what} on {device}"

    return applies


def in_this_process(candidate: Candidate) -> str:
    """Why what a candidate does with memory cannot be seen, or ""."""
    if candidate.graph is not None:
        return "onnxruntime makes its tensors in a process of its own"
    arrays = candidate.declaration.arrays
    return "" if arrays == "torch" else f"its {arrays} arrays are not torch's"


# How often a call is made again: races and atomic sums show in some calls only.
REPEATS = 8


@clause(
    "device.matches-cpu",
    sentence="On a device the answer is that of the same candidate on the CPU, within both bounds.",
    source="pytorch#112577, #116333: kernels of one operator that differ by device",
    space=Space(mask="maybe", causal="maybe", extras="maybe", values=LIVELY),
    counterfactual="the mean of the values",
    applies=(on_a_device, called_on_the_cpu),
    explained=False,
)
def matches_cpu(subject: Subject, problem: Problem) -> Finding:
    """The same numbers on both."""
    there = subject.inputs(problem)
    here = there.replace(device="cpu")
    return relate(
        subject,
        (here, subject.answer(here)),
        (there, subject.answer(there)),
        f"on {subject.device} the answer is another than on the CPU",
        counterfactual=there.replace(scale=0.0),
    )


@clause(
    "device.deterministic",
    level="SHOULD",
    sentence="On a device the same call made many times gives the same bits each time.",
    source="BUGS 50, 55: races; atomic additions finish in any order",
    space=Space(mask="maybe", causal="maybe", edges="lengths", share=0.5),
    applies=(on_a_device,),
    explained=False,
)
def deterministic(subject: Subject, problem: Problem) -> Finding:
    """Equal calls of one forward; on a CPU state.bitwise-repeatable asks the same."""
    inputs = subject.inputs(problem)
    forward = subject.forward(inputs)
    first = subject.call(forward, inputs).output
    for number in range(1, REPEATS):
        if not identical(first, subject.call(forward, inputs).output):
            message = f"on {subject.device} call {number + 1} of equal ones gives other bits"
            return violated("value", message)
    return Finding()


@clause(
    "device.batch-invariant",
    level="SHOULD",
    sentence="The bits of an item's answer do not depend on the other items of its batch.",
    source=(
        "He et al. 2025, Defeating nondeterminism in LLM inference: splits chosen by the batch; "
        "declared, as torch.matmul does not promise it"
    ),
    space=Space(mask="maybe", causal="maybe", least=(("batch", 2),), edges="lengths"),
    applies=(declares("batch_invariant"),),
    explained=False,
)
def batch_invariant(subject: Subject, problem: Problem) -> Finding:
    """An item of a batch, and the same item alone."""
    inputs = subject.inputs(problem)
    item = problem.seed % inputs.geometry.batch
    alone, view = one_item(subject, inputs, item)
    together, single = view(subject.answer(inputs)), subject.answer(alone)
    if identical(together, single):
        return Finding(binding=alone.geometry.batch != inputs.geometry.batch)
    largest = float((together.double() - single.double()).abs().nan_to_num().max())
    count = inputs.geometry.batch
    message = f"an item of {count} is answered with other bits alone (by up to {largest:.3g})"
    return violated("value", message, got=largest, expected=0.0)


# Long enough for a kernel that does not wait to be done before its inputs are there: cycles of
# torch.cuda._sleep (about 25 ms), products of square matrices where there is no such function.
CYCLES = 50_000_000
PRODUCTS, WIDTH = 40, 1024
WARM_UP = 3


@clause(
    "device.stream",
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
    wording = "replayed from a graph the answer is another than when it is called"
    return relate(subject, (other, eager), (other, answer), wording, counterfactual=first)


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
