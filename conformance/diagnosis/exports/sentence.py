"""Who is to blame, in a sentence for a person."""

from __future__ import annotations

from .stages import SPOKEN
from .steps import AT_HIGHEST, AT_LOWEST, PROGRAM, SOURCE
from .trail import Trail


def sentence(trail: Trail, number: int, stage: str, level: str) -> str:
    """What a person reads: the step, the stage in it, and what to make of it."""
    this = trail.outcomes[number]
    told = _step_told(trail, number, level)
    if this.text:
        return f"{told} ({this.text})"
    inside = f"; inside the graph, {SPOKEN[stage]} are the first to be wrong" if stage else ""
    return told + inside.replace("projection are", "projection is")


def _step_told(trail: Trail, number: int, level: str) -> str:
    names = [one.step.name for one in trail.outcomes]
    step, later = names[number], [names[at] for at in trail.departures if at > number]
    gives = "gives no answer" if trail.outcomes[number].output is None else "is wrong"
    if step == SOURCE:
        again = f", and the answer changes again in the {later[0]}" if later else ""
        return f"the source itself {gives}{again or ': the export is faithful'}"
    if step == PROGRAM:
        return "torch.export is to blame: the source is right, the exported program departs"
    if step == AT_HIGHEST:
        return (
            f"the graph is right until the runtime optimises it: it departs at the level {level!r}"
        )
    if step != AT_LOWEST:
        return f"the provider is to blame: the {step} departs from the graph on the CPU"
    if SOURCE in names or PROGRAM in names:
        verb = "gives no answer" if trail.outcomes[number].output is None else "departs"
        before = names[number - 1]
        return (
            f"the export is to blame: the {before} is right, the graph {verb} at the lowest level"
        )
    return (
        f"the graph {gives} with nothing optimised; name its module (--source) to see whether that "
        "is wrong, too"
    )
