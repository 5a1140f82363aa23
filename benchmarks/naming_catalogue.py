"""What mistakes of the catalogue are called where each is acted out, in any of its ways.

Its own name is right. Another one is as right where what it says, acted out as well, answers as the
candidate does on problems that the diagnosis has not seen; else somebody has to judge it.
"""

from __future__ import annotations

import random
import time
from typing import Any, Final

import torch
from naming_pairs import unseen_answers

from conformance.base.mistake import UNKNOWN
from conformance.base.profile import PROFILES
from conformance.clauses.subject import Subject
from conformance.diagnosis import Diagnostician
from conformance.diagnosis.mistakes import MISTAKES
from conformance.diagnosis.statement_search import explains
from conformance.running.runner import CandidateRun
from conformance.tools.teeth.jobs import SHIPPED, candidate_of

# Layouts of sequences are acted out by broken candidates of their own.
ACTED: Final = [one for one in MISTAKES if one.needs not in ("packed", "sequences")]


def drawn(count: int, seed: int) -> list[int]:
    """The numbers of some entries, in the order of the catalogue."""
    draw = random.Random(seed)  # noqa: S311 (no secret is drawn)
    return sorted(draw.sample(range(len(ACTED)), min(count, len(ACTED))))


def diagnosed_entry(number: int) -> dict[str, Any]:
    """The names of an entry where its own clause fails, and what becomes of them."""
    torch.set_num_threads(1)
    mistake = ACTED[number]
    candidate = candidate_of(mistake, SHIPPED)
    start = time.process_time()
    run = CandidateRun(candidate, profile=PROFILES["quick"], only=(mistake.primary,))
    said = [one for planned in run.planned() for one in run.run(planned).diagnosis]
    entry: dict[str, Any] = {
        "made": mistake.name,
        "truth": mistake.sentence,
        "names": [one["name"] for one in said],
        "texts": [one["text"] for one in said],
        "seconds": round(time.process_time() - start, 2),
    }
    named = {name for name in entry["names"] if name != UNKNOWN}
    if not named:
        return {**entry, "outcome": "unknown" if said else "not diagnosed"}
    if named == {mistake.name}:
        return {**entry, "outcome": "right"}
    others = named - {mistake.name}
    diagnostician = Diagnostician(Subject(candidate, run.planned()[0].dtype))
    unseen = unseen_answers(diagnostician.subject, diagnostician.observed)
    as_right = {
        str(one.entry["name"])
        for one in diagnostician.explanations
        if one.made and all(explains(diagnostician.subject, one.made, each) for each in unseen)
    }
    return {**entry, "outcome": "as right" if others <= as_right else "to be judged"}
