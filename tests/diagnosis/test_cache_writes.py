"""What calls write into caches of keys and values, where they write something else."""

from __future__ import annotations

import pytest

from candidates.broken import MISTAKES
from candidates.paged_attention import paged_written
from conformance import Candidate
from conformance.clauses.subject import Subject
from conformance.diagnosis.battery import plain_problem
from conformance.diagnosis.cache_writes import explain_writes


def explained(candidate: Candidate) -> list[str]:
    subject = Subject(candidate, "float32")
    return [str(entry["text"]) for entry in explain_writes(subject, plain_problem(subject))]


@pytest.mark.parametrize(
    ("mistake", "text"),
    [
        (
            "WrittenOneSlotLate",
            "the new keys and values are written as if the length of each item is one more",
        ),
        (
            "NewKeysNotWritten",
            (
                "the caches of keys and values hold what they held before in the slots of the new "
                "tokens"
            ),
        ),
        (
            "RestOfThePageCleared",
            "the caches of values hold zeros in the slots behind the new tokens in their page",
        ),
        (
            "SlotMinusOneWritten",
            "the caches of keys and values hold new tokens in the last slot",
        ),
        (
            "SharedPageWritten",
            "the caches of keys hold other numbers in the first slots of pages",
        ),
    ],
)
def test_what_a_call_writes_elsewhere_is_said(mistake: str, text: str) -> None:
    """Misread lengths are told from slots that are not written, cleared, or written besides."""
    (candidate,) = [one.candidate for one in MISTAKES if one.name == mistake]
    assert isinstance(candidate, Candidate)
    assert explained(candidate) == [text]


def test_right_caches_are_not_explained() -> None:
    """A core that writes where it should gets no entry."""
    assert explained(paged_written) == []
