"""shape.shared, .bounds, mask.strided, state.answer-is-fresh: where tensors lie in memory."""

from __future__ import annotations

from torch import Tensor

from ..calling import arguments
from ..candidate import Candidate
from ..layouts import CANARIES, STRIDED
from ..problem import Problem
from ..recipes import LIVELY
from ..registry import Finding, clause
from ..results import Violation
from ..space import Space
from ..subject import Subject
from ._vocabulary import same_answer, same_unless_identical, still_says

MASK_LAYOUTS = (*STRIDED, "expanded")


def _separate_inputs(candidate: Candidate) -> str:
    apart = candidate.declaration.inputs == "separate"
    return "" if apart else "key and value are one input anyway"


# Key and value have one shape; query too where the lengths and the heads may be equal.
ONE_SHAPE = (
    ("value_head_size", "head_size"),
    ("value_size", "key_size"),
    ("key_size", "query_size"),
)


@clause(
    "shape.shared",
    level="MUST",
    sentence=(
        "Key and value, or query, key and value, that are one tensor object give the answer of "
        "equal copies."
    ),
    source="torch.nn.MultiheadAttention takes another path where query is key and key is value",
    space=Space(mask="maybe", causal="maybe", values=LIVELY, equal=ONE_SHAPE, share=0.5),
    applies=(_separate_inputs,),
    explained=False,
)
def shared(subject: Subject, problem: Problem) -> Finding:
    """The same numbers as one object and as copies."""
    inputs = subject.inputs(problem)
    key, query, told = inputs.key, inputs.query, "key and value that are one object"
    if inputs.query.shape == key.shape and problem.seed % 2 == 0:
        query, told = key, "query, key and value that are one object"
    if inputs.value.shape != key.shape:
        return Finding(binding=False)
    copies = inputs.with_tokens(query=query, key=key, value=key)
    one = copies.replace(shared=True)
    wording = f"{told} change the answer"
    answers = subject.answer(copies), subject.answer(one)
    return same_unless_identical(subject, (copies, answers[0]), (copies, answers[1]), wording)


@clause(
    "shape.bounds",
    level="MUST",
    sentence="Nothing beside the elements of the given tensors is read: NaN around them is unseen.",
    source="pytorch#174861: out of bounds at a boundary size; PEERS: canaries",
    space=Space(mask="maybe", causal="maybe", share=0.5),
    explained=False,
)
def bounds(subject: Subject, problem: Problem) -> Finding:
    """The same values in the middle of buffers of NaN."""
    inputs = subject.inputs(problem)
    layout = CANARIES[problem.seed % len(CANARIES)]
    between = inputs.replace(layout=layout, mask_layout="between-canaries")
    wording = f"what lies beside the inputs in memory ({layout}) changes the answer"
    answers = subject.answer(inputs), subject.answer(between)
    return same_unless_identical(subject, (inputs, answers[0]), (inputs, answers[1]), wording)


@clause(
    "mask.strided",
    level="MUST",
    sentence="Transposed, sliced, expanded and offset masks act like contiguous ones.",
    source="xformers#813: a bias of another stride; PEERS: contiguity assumptions",
    space=Space(
        mask="always",
        finite_bias="maybe",
        values=LIVELY,
        patterns=("random", "mixed", "padding"),
        least=(("key_length", 2),),
    ),
    counterfactual="no mask at all",
    explained=False,
)
def mask_strided(subject: Subject, problem: Problem) -> Finding:
    """The same mask in another memory layout; the one that is expanded repeats itself."""
    inputs = subject.inputs(problem)
    layout = MASK_LAYOUTS[problem.seed % len(MASK_LAYOUTS)]
    if layout == "expanded":
        inputs = inputs.replace(keep=_repeated(inputs.keep), bias=_repeated(inputs.bias))
    return same_answer(
        subject,
        inputs,
        inputs.replace(mask_layout=layout),
        f"a {layout} mask acts like another",
        counterfactual=lambda: subject.oracle.output(inputs.without_mask()),
    )


def _repeated(mask: Tensor | None) -> Tensor | None:
    """A mask that is the same along its first axis longer than one, of items, heads and queries."""
    if mask is None:
        return None
    axis = next((axis for axis in range(3) if mask.shape[axis] > 1), 0)
    return mask.narrow(axis, 0, 1).expand(mask.shape).contiguous()


@clause(
    "state.answer-is-fresh",
    level="SHOULD",
    sentence=(
        "The answer is a tensor of its own: changing the inputs does not change it, and changing "
        "it changes no later answer."
    ),
    source="BUGS: a view of the input returned; torch operations that are not views own their data",
    space=Space(values=LIVELY, mask="maybe", share=0.5, kinds=("core", "layer", "positions")),
    explained=False,
)
def answer_is_fresh(subject: Subject, problem: Problem) -> Finding:
    """Inputs overwritten after the call; then the answer overwritten, and the call made again."""
    inputs = subject.inputs(problem)
    forward = subject.forward(inputs)
    given = arguments(inputs)
    answer = subject.ask(forward, given, inputs)
    for tensor in (*given[0], *given[1].values()):
        if isinstance(tensor, Tensor):
            tensor.fill_(1)
    if not still_says(answer):
        message = "the answer shares memory with an input: changing one changes the other"
        return Finding(violation=Violation(kind="mutated", message=message))
    if answer.returned is None or answer.returned.is_inference() or _repeats(answer.returned):
        return Finding()  # it cannot be written to
    returned = answer.returned.detach()
    returned.fill_(1)
    again = subject.call(forward, inputs).output
    returned.copy_(answer.output.reshape(returned.shape))
    wording = "changing an answer changes the answer to the next call"
    return same_unless_identical(subject, (inputs, answer.output), (inputs, again), wording)


def _repeats(tensor: Tensor) -> bool:
    """Whether one element in memory stands for several."""
    return any(
        step == 0 and size > 1 for step, size in zip(tensor.stride(), tensor.shape, strict=True)
    )
