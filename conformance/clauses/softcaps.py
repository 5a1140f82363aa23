"""softcap.*: the scaled scores are squeezed into (-c, c) by c * tanh(scores / c)."""

from __future__ import annotations

from ..declare.declaration import SEQUENCES
from ..problems.inputs import Inputs
from ..problems.problem import Problem
from ..problems.recipes import LIVELY
from ..problems.space import EVERY_OPTION, Space
from .judging import matches_golden, narrow_range, same_answer
from .leaks import hidden_keys, unaffected
from .registry import Finding, clause, declares, requires
from .subject import Subject

SOURCE = "Gemma Team 2024 (Gemma 2), section 2: logit soft-capping"
CAPS = (1.5, 0.5, 5.0, 1.5, 30.0)
SMALL_CAPS = (1.5, 0.5, 3.0)
# Caps too large to change an ordinary score.
HUGE, HUGE_IN_HALF = 1e3, 64.0
# The largest logit, where all scores are far above the cap: e^x has no such power in float32.
FAR_ABOVE, FAR_ABOVE_IN_HALF = 2e3, 2e2


offers_softcap = declares("softcap")


_hides_keys = requires(
    lambda c: (
        set(c.declaration.masks) - {SEQUENCES}  # keys behind an end are not even handed over
        or c.declaration.causal
        or "window" in c.declaration.features
    ),
    "no key can be hidden",
)


_caps_first = requires(
    lambda c: not c.declaration.semantics.caps("mask"),
    "it declares that the cap comes after the mask, which leaves hidden keys a weight",
)


def _capped(subject: Subject, problem: Problem, cap: float) -> Inputs:
    return subject.inputs(problem.replace(softcap=cap))


@clause(
    "softcap.golden",
    sentence="A softcap c turns each scaled score s into c * tanh(s / c).",
    source=f"{SOURCE}; ONNX Attention-23, attribute softcap",
    space=EVERY_OPTION.replace(least=(("key_length", 2),), share=0.5),
    needs_golden=True,
    counterfactual="no softcap",
    applies=(offers_softcap,),
)
def softcap_golden(subject: Subject, problem: Problem) -> Finding:
    """Small and large caps, with all other options, against the golden."""
    inputs = _capped(subject, problem, CAPS[problem.seed % len(CAPS)])
    wording = f"with a softcap of {inputs.softcap:g} the answer is wrong"
    return matches_golden(subject, inputs, wording, counterfactual=inputs.replace(softcap=None))


@clause(
    "softcap.before-mask",
    sentence="The cap comes before the mask: hidden keys stay hidden, however small the cap.",
    source="onnx#7865: capped after the mask, minus infinity becomes -c and keys leak",
    space=Space(
        mask="offered",
        causal="offered",
        square="always",
        values=LIVELY,
        patterns=("random", "dense", "padding", "sparse"),
        least=(("key_length", 2),),
        share=0.5,
    ),
    counterfactual="every key seen",
    applies=(offers_softcap, _hides_keys, _caps_first),
)
def softcap_before_mask(subject: Subject, problem: Problem) -> Finding:
    """Junk in keys that mask, flag or window hide, under a small cap."""
    masked = problem.mask is not None and problem.mask.form != SEQUENCES
    window = None if masked or problem.causal else (0, 0)
    capped = problem.replace(softcap=SMALL_CAPS[problem.seed % len(SMALL_CAPS)], window=window)
    inputs = subject.inputs(capped)
    free = inputs.without_mask().replace(causal=False, window=None)
    hidden = hidden_keys(subject, problem, inputs)
    return unaffected(subject, problem, inputs, hidden, counterfactual=free)


@clause(
    "softcap.large",
    sentence=(
        "A cap far above all scores changes nothing, and scores far above the cap end at it, "
        "without overflow."
    ),
    source="by definition: c tanh(s / c) -> s for large c, c sign(s) for large s; tanh by exp: NaN",
    space=Space(mask="maybe", values=LIVELY, least=(("key_length", 3),), share=0.5),
    counterfactual="tanh(s / c) not multiplied by c; no cap where scores are far above it",
    applies=(offers_softcap,),
)
def softcap_large(subject: Subject, problem: Problem) -> Finding:
    """A huge cap, and in turn enlarged queries under a small one, against the golden."""
    narrow = narrow_range(subject)
    scalable = subject.candidate.golden_known and subject.declaration.inputs != "self"
    if problem.seed % 2 == 0 or not scalable:
        return _huge(subject, problem, HUGE_IN_HALF if narrow else HUGE)
    target = FAR_ABOVE_IN_HALF if narrow else FAR_ABOVE
    plain = _capped(subject, problem, SMALL_CAPS[problem.seed % len(SMALL_CAPS)])
    far = _enlarged(subject, plain, target)
    wording = f"scores that reach {target:g} do not end at the softcap of {plain.softcap:g}"
    return matches_golden(subject, far, wording, counterfactual=far.replace(softcap=None))


def _huge(subject: Subject, problem: Problem, cap: float) -> Finding:
    """Compare with the golden or, without one, with the candidate's answer without a cap."""
    plain = subject.inputs(problem.replace(softcap=None))
    inputs = plain.replace(softcap=cap)
    wording = f"a softcap of {cap:g}, far above all scores, changes the answer"
    if not subject.candidate.golden_known:
        return same_answer(subject, plain, inputs, wording)
    # Without the factor c, c * tanh(s / c) would be nearly zero, and the weights equal.
    return matches_golden(subject, inputs, wording, counterfactual=inputs.replace(scale=0.0))


def _enlarged(subject: Subject, inputs: Inputs, target: float) -> Inputs:
    """Scale the queries so that the largest score is near ``target``."""
    largest = float(subject.golden(inputs).core.scores.abs().max())
    factor = target / largest if largest else 1.0
    return inputs.with_tokens(query=(inputs.query.double() * factor).to(inputs.query.dtype))


@clause(
    "softcap.after-scale",
    sentence="The scores are scaled first and capped then.",
    source=f"{SOURCE}; ONNX Attention-23: the cap acts on the scaled product",
    space=Space(
        extras="scale",
        values=(*LIVELY, "decisive"),
        least=(("key_length", 2),),
        preferred=(("head_size", 4),),
        share=0.5,
    ),
    needs_golden=True,
    counterfactual="the dot products capped, and scaled then",
    applies=(offers_softcap,),
)
def softcap_after_scale(subject: Subject, problem: Problem) -> Finding:
    """A small cap, with the default scale and with given scales, against the golden."""
    cap = SMALL_CAPS[problem.seed % len(SMALL_CAPS)]
    inputs = _capped(subject, problem, cap)
    used = subject.golden(inputs).core.scale
    # scale * c tanh(p / c) is the scaled score under a cap of scale * c.
    other = inputs.replace(softcap=cap * abs(used)) if used else inputs
    wording = f"a softcap of {cap:g} does not act on scores that are scaled by {used:.6g}"
    return matches_golden(subject, inputs, wording, counterfactual=other)
