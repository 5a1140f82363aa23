"""window.*: keys beyond the window before and after a query's own place are hidden from it."""

from __future__ import annotations

import torch

from ..problems.inputs import Inputs
from ..problems.materialise import generator_for
from ..problems.problem import Problem
from ..problems.recipes import LIVELY
from ..problems.space import EVERY_OPTION, Space
from .judging import (
    Counterfactual,
    all_of,
    as_alone,
    matches_golden,
    same_answer,
    sees_by_place,
    stands_alone,
)
from .long_sequences import some_rows_match
from .registry import Finding, clause, declares
from .subject import Subject

Window = tuple[int, int]
SOURCE = "Beltagy et al. 2020 (Longformer), section 3.1; FlashAttention, window_size"
UNLIMITED = -1
# The limited sides, in turn.
SIDES = ((True, True), (True, False), (False, True), (True, True))
# Widths around the edges of tiles, for long sequences.
WIDTHS = (0, 1, 7, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129)


offers_window = declares("window")


def window_for(problem: Problem) -> Window:
    """The window of a problem: sides in turn, widths from none to most of the keys."""
    generator = generator_for(problem, 18)
    most = max(problem.geometry.key_length - 1, 1)
    left, right = torch.randint(most, (len(("left", "right")),), generator=generator).tolist()
    return _limited(problem, left, right)


def _limited(problem: Problem, left: int, right: int) -> Window:
    """The given widths for the limited sides of the problem, chosen by its seed."""
    sides = SIDES[problem.seed % len(SIDES)]
    return (left if sides[0] else UNLIMITED, right if sides[1] else UNLIMITED)


def _windowed(subject: Subject, problem: Problem, window: Window) -> Inputs:
    return subject.inputs(problem.replace(window=window))


def _rows_stand_alone(
    subject: Subject, problem: Problem, inputs: Inputs, wording: str, other: Counterfactual
) -> Finding:
    """Compare a random row, and the first or last row in turn, with their queries alone."""
    length = problem.geometry.query_length
    drawn = int(torch.randint(length, (1,), generator=generator_for(problem, 19)))
    rows = dict.fromkeys((drawn, 0 if problem.seed % 2 else length - 1))
    return all_of([as_alone(subject, inputs, row, wording, counterfactual=other) for row in rows])


@clause(
    "window.golden",
    sentence=(
        "A window (left, right) shows each query that many keys before and after its own place, "
        "-1 all of them on that side."
    ),
    source=SOURCE,
    space=EVERY_OPTION.replace(
        least=(("key_length", 2),), preferred=(("key_length", 4),), share=0.5
    ),
    needs_golden=True,
    counterfactual="no window",
    applies=(offers_window,),
)
def window_golden(subject: Subject, problem: Problem) -> Finding:
    """Windows of every kind, with all other options, against the golden."""
    inputs = _windowed(subject, problem, window_for(problem))
    wording = f"with the window {inputs.window} the answer is wrong"
    return matches_golden(subject, inputs, wording, counterfactual=inputs.replace(window=None))


@clause(
    "window.edge",
    sentence=(
        "A window of n keys on a side shows n of them beside the query's own, no more and no fewer."
    ),
    source="transformers#39408, vllm#3385: off by one, or the own key counted",
    space=Space(
        values=LIVELY, least=(("key_length", 3),), preferred=(("query_length", 3),), share=0.5
    ),
    counterfactual="a side one key wider, or one narrower",
    applies=(offers_window, stands_alone),
)
def window_edge(subject: Subject, problem: Problem) -> Finding:
    """Rows against their queries alone with the keys of their windows."""
    inputs = _windowed(subject, problem, window_for(problem))
    others = _neighbours(inputs.window)
    other = inputs.replace(window=others[problem.seed // len(SIDES) % len(others)])
    wording = f"the window {inputs.window} shows other keys"
    return _rows_stand_alone(subject, problem, inputs, wording, other)


def _neighbours(window: Window | None) -> list[Window]:
    """The windows with one side one key wider or narrower."""
    left, right = window or (UNLIMITED, UNLIMITED)
    windows = [(left + 1, right), (left - 1, right)] if left >= 0 else []
    windows += [(left, right + 1), (left, right - 1)] if right >= 0 else []
    return [pair for pair in windows if window is not None and _as_limited(pair, window)]


def _as_limited(window: Window, other: Window) -> bool:
    """Whether both limit the same sides: a width of 0 has no narrower window."""
    return [side < 0 for side in window] == [side < 0 for side in other]


@clause(
    "window.unlimited",
    sentence=(
        "A window of -1 on both sides, or as wide as the sequence, equals none; so does one side."
    ),
    source="FlashAttention: window_size=(-1, -1) is no window; -1 read as a width of one",
    space=Space(
        mask="maybe",
        causal="maybe",
        values=LIVELY,
        least=(("key_length", 4),),
        preferred=(("query_length", 3),),
        share=0.5,
    ),
    counterfactual="a limit of one key instead",
    applies=(offers_window, sees_by_place),
)
def window_unlimited(subject: Subject, problem: Problem) -> Finding:
    """No limit, written in two ways, with or without a limit on the other side."""
    window, same, narrow = _unlimited(problem)
    description = "no window" if same is None else f"the window {same}"
    inputs = subject.inputs(problem.replace(window=same))
    return same_answer(
        subject,
        inputs,
        _windowed(subject, problem, window),
        f"the window {window} and {description} give different answers",
        counterfactual=inputs.replace(window=narrow),
    )


def _unlimited(problem: Problem) -> tuple[Window, Window | None, Window]:
    """A window, its equal (None: no window), and the window of a misread limit."""
    sizes = problem.geometry
    wide = max(sizes.query_length, sizes.key_length)
    width = problem.seed % sizes.key_length
    cases: tuple[tuple[Window, Window | None, Window], ...] = (
        ((UNLIMITED, UNLIMITED), None, (1, 1)),
        ((wide, wide), None, (1, 1)),
        ((width, UNLIMITED), (width, wide), (width, 1)),
        ((UNLIMITED, width), (wide, width), (1, width)),
        ((UNLIMITED, UNLIMITED), None, (0, 0)),
    )
    return cases[problem.seed % len(cases)]


@clause(
    "window.causal",
    sentence="Window, causal flag and mask act together: a key is seen only where all admit it.",
    source="pytorch#187801: two restrictions given, one lost",
    space=Space(
        causal="always",
        mask="maybe",
        finite_bias="maybe",
        values=LIVELY,
        patterns=("random", "dense", "padding"),
        least=(("key_length", 4),),
        preferred=(("query_length", 4),),
        share=0.5,
    ),
    counterfactual="one of them lost",
    applies=(offers_window, stands_alone),
)
def window_causal(subject: Subject, problem: Problem) -> Finding:
    """Rows against their queries alone, with the part of the mask for the keys that are left."""
    inputs = _windowed(subject, problem, window_for(problem))
    lost = [inputs.replace(window=None)]
    lost += [] if inputs.always_causal else [inputs.replace(causal=False)]
    lost += [inputs.without_mask()] if inputs.masked else []
    other = lost[problem.seed % len(lost)]
    wording = f"the causal flag and the window {inputs.window} together show other keys"
    return _rows_stand_alone(subject, problem, inputs, wording, other)


@clause(
    "window.alignment",
    sentence=(
        "Where there are more or fewer keys than queries, windows are placed by the declared "
        "causal alignment: by the last query and key, or by the first of both."
    ),
    source="FlashAttention 2.1: the bottom right corner; flash-attention#282, mlx#2835",
    space=Space(
        square="never",
        values=LIVELY,
        least=(("key_length", 3),),
        preferred=(("query_length", 2),),
        share=0.5,
    ),
    counterfactual="the other alignment",
    applies=(offers_window, stands_alone),
)
def window_alignment(subject: Subject, problem: Problem) -> Finding:
    """Rows against their queries alone, for unequal lengths."""
    inputs = _windowed(subject, problem, window_for(problem))
    point = subject.declaration.semantics
    aligned = point.causal_alignment
    other = point.replace(
        causal_alignment="top-left" if aligned == "bottom-right" else "bottom-right"
    )
    wording = f"the window {inputs.window} is not {aligned} aligned"
    return _rows_stand_alone(subject, problem, inputs, wording, other)


@clause(
    "window.any-length",
    sentence="Windows of any width are right in sequences of any length: at and past tile edges.",
    source="windowed kernels skip whole tiles of keys; pytorch#109517, #127055",
    space=Space(
        mask="maybe",
        causal="maybe",
        values=("normal", "dominant-key"),
        patterns=("random", "padding", "left-padding"),
        preferred=(("key_length", 24), ("query_length", 24)),
        share=0.1,
        edges="lengths",
    ),
    needs_golden=True,
    counterfactual="no window",
    applies=(offers_window,),
    subtle=True,
)
def window_any_length(subject: Subject, problem: Problem) -> Finding:
    """Long sequences and widths around the edges of tiles; some rows are judged."""
    turn, count = problem.seed, len(WIDTHS)
    window = _limited(problem, WIDTHS[turn % count], WIDTHS[turn // count % count])
    inputs = _windowed(subject, problem, window)
    wording = f"among {inputs.geometry.key_length} keys the window {inputs.window} is wrong"
    return some_rows_match(
        subject, problem, inputs, wording, counterfactual=inputs.replace(window=None)
    )
