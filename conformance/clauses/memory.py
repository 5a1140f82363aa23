"""shape.shared, .bounds: inputs that are one object, and what lies beside them in memory."""

from __future__ import annotations

from ..declare.candidate import Candidate
from ..declare.declaration import PACKED
from ..problems.arrangements import with_equal_sequences
from ..problems.layouts import CANARIES
from ..problems.problem import Problem
from ..problems.recipes import LIVELY
from ..problems.space import Space
from ._vocabulary import same_unless_identical
from .registry import Finding, clause
from .subject import Subject


def separate_inputs(candidate: Candidate) -> str:
    """Why inputs cannot be made one object, or ""."""
    declared = candidate.declaration
    if declared.layout in PACKED:
        return f"its inputs lie in one tensor anyway ({declared.layout})"
    return "" if declared.inputs == "separate" else "key and value are one input anyway"


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
    applies=(separate_inputs,),
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
    if query is key:  # sequences whose offsets differ lie in no one tensor
        copies = with_equal_sequences(copies)
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
