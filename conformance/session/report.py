"""The record of a run: one JSON document of schema 1, verdicts, and causes of failures.

Failures are grouped by cause: a mistake failing many clauses is reported once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Self, cast

from ..base.mistake import NO_MISTAKE, UNKNOWN
from ..base.printable_text import few
from ..base.profile import NO_GRAPH_OPTIONS, GraphOptions
from ..base.record import SCHEMA, TOOL, CandidateEntry, CauseEntry, ClauseEntry, Record
from ..base.results import (
    INVERTED,
    NOT_FINITE,
    ONE_THREAD,
    SITE,
    ClauseResult,
    elements_shown,
    plain,
)
from ..running.workers.messages import Loaded, Ready, RunOptions, package_version, project_url
from ..targets.target_strings import split_site
from .expectations import Stale

OF_THREADS: Final = "state.threads"
_NONE: Final[Mapping[str, Any]] = {}
# Fields of a diagnosis about a single failure.
_OF_FAILURES: Final = ("facts", "common", "example", "picture", "line", "parts", "alone")
# Names of causes without a mistake's name, by the kind of their violations.
_TOGETHER: Final = {
    "raised": "exception",
    "finite": "not-finite",
    "shape": "wrong-shape",
    "dtype": "wrong-dtype",
    "type": "wrong-type",
    "mutated": "inputs-changed",
    "crashed": "crash",
    "hung": "no-answer",
    SITE: "one-attention",
    INVERTED: "attention-mask-inverted",
}
_OF_NON_FINITE_INPUTS: Final = "mask.no-leak-nonfinite"
# Fixes for clauses whose failures no catalogued mistake explains.
_FIXES_OF_CLAUSES: Final = {
    "gradients.empty-row-finite": (
        "let nothing that is not finite be computed for a row without keys, such as 0 / 0: where() "
        "and nan_to_num() mend the answer, and not the gradient"
    ),
    "out.written": "write every element of the buffer, whatever is in it: copy_() and not add_()",
    "state.dropout": (
        "drop each weight by itself, drawn anew for each call, and divide those that are kept by "
        "1 - p: torch.nn.functional.dropout does that"
    ),
}
# Fixes where an answer came in place of an exception.
_FIXES_OF_REFUSALS: Final = {
    "mask.causal-and-mask": (
        "raise where a mask is given beside the causal flag, or declare what it computes then, "
        "with another causal_combination than 'refused'"
    ),
    "mixed.inputs": "compare dtypes before they are used, and raise where they differ",
}
_OTHER_REFUSAL: Final = (
    "compare sizes and dtypes before they are used, and raise where they do not fit; some "
    "kernels, such as torch's fused attention on CPUs, do not compare keys with values"
)
# Fixes by words in the sentence of the violation.
_FIXES_OF_TEXTS: Final = {
    "on the same device": (
        "make masks, positions and constants where the inputs are: device=query.device; those of a "
        "module are buffers (register_buffer), which move with it"
    ),
    "works the wrong way round": "let 1 in attention_mask be a token to attend to: "
    "add (1 - attention_mask) * torch.finfo(dtype).min to the scores, and subtract it nowhere",
    "the mask does not reach": "hand the mask to each attention whose keys it is of",
    "the output is on the device": "return the answer on the device of the query",
    "broke its device": "find the kernel that reads or writes where it must not: "
    "CUDA_LAUNCH_BLOCKING=1 makes its own call raise, and compute-sanitizer names it",
}


def causes_of(clauses: Iterable[ClauseEntry]) -> list[CauseEntry]:
    """Return the causes behind a candidate's failed clauses, the most frequent first.

    A failure has one cause, except where two mistakes are made together:
        1. Failures whose diagnoses share a name have one cause. Among several possible names the
        fewest causes explaining all failures are taken. A failure explained by another failure's
        mistake (``explained_by``), although without a name in its own diagnosis, has the mistake as
        its cause, too. Mistakes made together are separate causes, of the failures made by one
        mistake alone: a failure made by every mistake of the combination has all these causes. An
        accepted mistake (an expected failure) is no cause of failures with another cause.
        2. Failures without a known mistake are one cause, ``unknown-mistake``, together with
        failures of clauses comparing the wrong answers.
        3. Failures of visibly one kind are one cause: exceptions of one line, answers that are not
        finite, or of a wrong shape, dtype or type, inputs changed by a call, a crash, no answer in
        time, and failures blaming one attention, or masks, of a model. Where a diagnosis knows
        facts about them, rule 2 applies.
        4. A remaining failure is a separate cause, named after the clause.

    A clause that failed in several dtypes or on several devices is listed once.
    """
    every = list(clauses)
    failed = [clause for clause in every if clause["status"] == "failed"]
    unnamed = [clause for clause in failed if not _names(clause)]
    known = _Known.of(every)
    causes = list(_named_causes([clause for clause in failed if _names(clause)], known))
    causes += list(map(_unnamed, _alike(unnamed)))
    return sorted(causes, key=lambda cause: (cause["level"] != "MUST", -len(cause["clauses"])))


def _names(clause: ClauseEntry) -> set[str]:
    entries = clause.get("diagnosis") or ()
    names = {str(entry["name"]) for entry in entries if entry["name"] != UNKNOWN}
    explained = clause.get("explained_by")
    return {str(explained)} if explained and explained != UNKNOWN else names


@dataclass(frozen=True, kw_only=True)
class _Known:
    """Facts from a candidate's diagnoses: entries by name, combinations, accepted mistakes.

    ``parts``: the names of mistakes made together, by their combined name.
    """

    texts: Mapping[str, Mapping[str, Any]]
    parts: Mapping[str, Sequence[str]]
    accepted: frozenset[str]

    @classmethod
    def of(cls, clauses: Sequence[ClauseEntry]) -> Self:
        entries = list(_entries(clauses))
        together = [entry for entry in entries if entry.get("parts")]
        own: dict[str, dict[str, Any]] = {}
        for entry in together:
            for part in entry["parts"]:
                before = own.get(str(part["name"]), {})
                own[str(part["name"])] = {"confidence": entry.get("confidence"), **before, **part}
        known = cls(
            texts={**own, **{str(entry["name"]): entry for entry in entries}},
            parts={
                str(one["name"]): [str(part["name"]) for part in one["parts"]] for one in together
            },
            accepted=frozenset(),
        )
        expected = [clause for clause in clauses if clause["status"] == "expected-failure"]
        made = [known.made(clause, name) for clause in expected for name in _names(clause)]
        return replace(known, accepted=frozenset(each[0] for each in made if len(each) == 1))

    def made(self, clause: ClauseEntry, name: str) -> list[str]:
        """Return a name's mistakes that make a clause fail; all if none makes it fail alone."""
        entries = (entry for entry in _entries([clause]) if entry["name"] == name)
        parts = next(entries, _NONE).get("parts") or ()
        alone = [str(part["name"]) for part in parts if part["alone"]]
        return alone or list(self.parts.get(name, [name]))


def _named_causes(left: Sequence[ClauseEntry], known: _Known) -> Iterator[CauseEntry]:
    """Yield the mistakes behind named failures, with the failures of each mistake."""
    groups = list(_groups(left))
    own: dict[str, list[ClauseEntry]] = {}
    names: dict[str, str] = {}
    for name, clauses in groups:
        for clause in clauses:
            for part in known.made(clause, name):
                own.setdefault(part, []).append(clause)
                names.setdefault(part, name)
        for part in known.parts.get(name, ()):  # also mend a mistake that a partner always hides
            if part not in own:
                own[part], names[part] = list(clauses), name
    times = Counter(id(clause) for clauses in own.values() for clause in clauses)
    for part in [part for part in own if part in known.accepted]:
        own[part] = [clause for clause in own[part] if times[id(clause)] == 1]
    for part, clauses in own.items():
        if clauses:
            shown = [clause for clause in clauses if times[id(clause)] == 1] or clauses
            yield _named(part, clauses, shown, names[part], known)


def _groups(left: Sequence[ClauseEntry]) -> Iterator[tuple[str, list[ClauseEntry]]]:
    """Yield names explaining every failure, greedily: the name of most remaining failures first.

    Among equals the name a diagnosis lists first: the plainest.
    """
    while left:
        said = (str(entry["name"]) for entry in _entries(left))
        every = (*said, *(name for clause in left for name in sorted(_names(clause))))
        names = dict.fromkeys(name for name in every if name != UNKNOWN)
        own = {name: [clause for clause in left if name in _names(clause)] for name in names}
        best = max(names, key=lambda name: _weight(own[name], name))
        yield best, own[best]
        left = [clause for clause in left if best not in _names(clause)]


def _weight(clauses: Sequence[ClauseEntry], name: str) -> tuple[int, int, float]:
    """Return a name's explanatory weight: MUST clauses, all clauses, and confidence."""
    sure = sum(_confidence(entry) for entry in _entries(clauses) if entry["name"] == name)
    return sum(_level(clause) == "MUST" for clause in clauses), len(clauses), sure


def _entries(clauses: Iterable[ClauseEntry]) -> Iterator[Mapping[str, Any]]:
    for clause in clauses:
        yield from clause.get("diagnosis") or ()


def _confidence(entry: Mapping[str, Any]) -> float:
    return float(entry.get("confidence") or 0.0)


def _named(
    name: str,
    own: Sequence[ClauseEntry],
    shown: Sequence[ClauseEntry],
    together: str,
    known: _Known,
) -> CauseEntry:
    """Make a known mistake's cause, with alternatives that explain all of its failures.

    ``together`` is its diagnosed name, if it was made in combination.
    """
    entries = [entry for entry in _entries(own) if entry["name"] == name]
    text = known.texts.get(name, {"name": name})
    best = max(entries, key=_confidence, default=text)
    diagnosed = [_names(clause) for clause in own if not clause.get("explained_by")]
    shared = set.intersection(*diagnosed) if diagnosed else set()
    others = dict.fromkeys(
        other
        for entry in _entries(own)
        if entry["name"] in shared and entry["name"] != together
        for other in _instead(name, str(entry["name"]), together, known)
    )
    lines = (entry["line"] for entry in [best, *entries, text] if entry.get("line"))
    return _cause(
        name,
        best,
        own,
        others=[known.texts[other] for other in others if other in known.texts],
        line=next(lines, None),
        shown=smallest(shown),
    )


def _instead(name: str, other: str, together: str, known: _Known) -> list[str]:
    """Return the mistake in another explanation that replaces a mistake of this explanation."""
    mine, theirs = (set(known.parts.get(each, [each])) for each in (together, other))
    if name in theirs:
        return []
    said = theirs - mine
    return list(said) if mine - theirs == {name} and len(said) == 1 else [other]


def _alike(unnamed: Sequence[ClauseEntry]) -> Iterable[list[ClauseEntry]]:
    """Group failures without a name by cause."""
    studied = {_kind_of_cause(clause) for clause in unnamed if clause.get("diagnosis")}
    groups: dict[tuple[str, str], list[ClauseEntry]] = {}
    for clause in unnamed:
        kind = _kind_of_cause(clause)
        told = clause.get("diagnosis") or clause.get("explained_by") == UNKNOWN
        key = (UNKNOWN, "") if told or kind in studied else kind
        groups.setdefault(key, []).append(clause)
    return groups.values()


def _kind_of_cause(clause: ClauseEntry) -> tuple[str, str]:
    """Return the key shared by unnamed failures of one cause."""
    violation = clause.get("violation") or _NONE
    for fact in (INVERTED, SITE):
        if fact in (measured := violation.get("measured") or _NONE):
            return fact, str(measured[fact])
    kind, message = str(violation.get("kind")), str(violation.get("message"))
    if kind == "raised":
        return kind, message.rpartition(" (")[2]
    if clause["id"] == _OF_NON_FINITE_INPUTS:  # its inputs explain non-finite answers
        return "clause", clause["id"]
    if kind in ("shape", "dtype"):  # "the output has shape …"
        return kind, message.partition(f" {kind} ")[0]
    return (kind, "") if kind in _TOGETHER else ("clause", clause["id"])


def _unnamed(own: Sequence[ClauseEntry]) -> CauseEntry:
    """Make a cause without a known mistake, with its known facts."""
    facts = _facts(own)
    if facts is not None:
        lines = [entry["line"] for entry in _entries(own) if entry.get("line")]
        alike = bool(lines) and all(line == lines[0] for line in lines)
        return _cause(UNKNOWN, facts, own, line=lines[0] if alike else None)
    violation = (shown := smallest(own)).get("violation") or _NONE
    text = str(violation.get("message") or shown.get("reason") or "")
    several = len({clause["id"] for clause in own}) > 1
    kind = _kind_of_cause(shown)[0]
    name = _TOGETHER.get(kind, shown["id"]) if several or kind == INVERTED else shown["id"]
    if violation.get("kind") == "not-raised":
        fix = _FIXES_OF_REFUSALS.get(name, _OTHER_REFUSAL)
    else:
        every = " ".join(str((one.get("violation") or _NONE).get("message")) for one in own)
        said = [fix for words, fix in _FIXES_OF_TEXTS.items() if words in every]
        fix = [*said, _FIXES_OF_CLAUSES.get(name) or _FIXES_OF_CLAUSES.get(shown["id"], "")][0]
    return _cause(name, {"text": text, "fix": fix, "confidence": 1.0}, own)


def _facts(own: Sequence[ClauseEntry]) -> Mapping[str, Any] | None:
    """Return the facts known of an unnamed mistake, and of the failure shown for it."""
    told = max(_entries(own), key=lambda entry: len(str(entry.get("text"))), default=None)
    common = next((entry["common"] for entry in _entries(own) if entry.get("common")), "")
    if told is None or not common:
        return told
    example = next((one["example"] for one in _entries([smallest(own)]) if one.get("example")), "")
    return {**told, "text": f"{NO_MISTAKE}: {'; '.join(filter(None, (common, example)))}"}


def _cause(
    name: str,
    entry: Mapping[str, Any],
    own: Sequence[ClauseEntry],
    others: Sequence[Mapping[str, Any]] = (),
    line: Any = None,
    shown: ClauseEntry | None = None,
) -> CauseEntry:
    shown = shown or smallest(own)
    cause: CauseEntry = {
        **_without_data(entry),  # type: ignore[typeddict-item]
        "name": name,
        "text": str(entry.get("text") or ""),
        "fix": str(entry.get("fix") or ""),
        "confidence": _confidence(entry),
        "level": min(map(_level, own), key=("MUST", "SHOULD", "MAY").index),
        "clauses": list(dict.fromkeys(clause["id"] for clause in own)),
        "failure": {key: shown.get(key, "") for key in ("id", "dtype", "device")},
        "counterexample": shown.get("counterexample"),
    }
    if line is not None:
        cause["line"] = line
    if others:
        cause["alternatives"] = [_without_data(other) for other in others]
    return cause


def _without_data(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry of a diagnosis without the parts kept at its failure."""
    return {key: value for key, value in entry.items() if key not in _OF_FAILURES}


def _level(clause: ClauseEntry) -> str:
    level = str(clause.get("level") or "MUST")
    return level if level in ("MUST", "SHOULD") else "MAY"


def smallest(clauses: Iterable[ClauseEntry]) -> ClauseEntry:
    """The failure that is easiest to read: of a MUST before others, then the smallest problem."""
    return min(clauses, key=lambda clause: (_level(clause) != "MUST", _size(clause)))


def _size(clause: ClauseEntry) -> tuple[bool, int, bool, int]:
    """Return a sort key: no numeric problem, number of calls, no answers to compare, elements."""
    data = clause.get("counterexample") or _NONE
    problem = data.get("problem") or _NONE
    finite = (clause.get("violation") or _NONE).get("got") not in NOT_FINITE
    elements = elements_shown(problem.get("geometry") or _NONE, finite=finite)
    return not (problem and elements), len(data.get("calls") or ()), "bound" not in data, elements


# Laws that hold whatever a candidate computes; the second set needs read axes and masks.
_LAWS: Final = frozenset(
    "state.repeatable state.no-memory state.answer-kept state.grad-mode state.inputs-unchanged "
    "state.answer-is-fresh state.call-order state.untampered state.unseen "
    "state.eval-deterministic state.threads gradients.inputs-unchanged gradients.interleaved "
    "gradients.accumulate model.heads-by-token model.leaves-no-trace".split()
)
_LAWS_OF_WHAT_WAS_READ: Final = frozenset(
    "equivariance.batch-independent mask.no-leak mask.causal model.batch-independence "
    "model.causality".split()
)

# An argument is no mask as it was read if it changes the answer where it keeps every key.
_OF_KEPT_KEYS: Final = "mask.all-keep"
_LAWS_OF_MASKS: Final = frozenset({"mask.no-leak", "mask.causal"})


def certain_results(loaded: Loaded, results: Sequence[ClauseResult]) -> list[ClauseResult]:
    """Return the results, without failures a wrong reading may explain (undeclared candidates).

    A failure is certain if the catalogue names the mistake, if the mistake was seen when reading
    the candidate, or if a broken law holds for any reading. Any other clause could not be tested:
    its comparison is with a guess.
    """
    reading = loaded.reading
    if reading is None or reading.mistakes:
        return list(results)
    named = {str(entry["name"]) for one in results for entry in one.diagnosis if _is_known(entry)}
    laws = _LAWS if reading.unread else _LAWS | _LAWS_OF_WHAT_WAS_READ
    if any(one.id == _OF_KEPT_KEYS and one.status == "failed" for one in results):
        laws -= _LAWS_OF_MASKS
    guessed = _OF_WHAT_WAS_UNREAD if reading.unread else _OF_WHAT_WAS_PROMISED

    def is_certain(result: ClauseResult) -> bool:
        names = {result.explained_by, *(str(entry["name"]) for entry in result.diagnosis)}
        kind = "" if result.violation is None else result.violation.kind
        return bool(names & named) or (result.id in laws and kind not in guessed)

    def as_certain(result: ClauseResult) -> ClauseResult:
        if result.status != "failed" or result.level != "MUST" or is_certain(result):
            return result
        if result.id in _OF_MEMORY and result.violation and result.violation.kind == "raised":
            return result.replace(status="not-applicable", reason=f"{_REFUSED}: {result.reason}")
        if result.violation and result.violation.kind == "not-raised":
            return result.replace(status="not-applicable", reason=f"{_ANSWERS}: {result.reason}")
        return result.replace(status="untestable", reason=f"{_GUESSED}: {result.reason}")

    return [as_certain(result) for result in results]


# Laws on tensors' memory, and on sharing between calls: code that raises there answers nothing
# wrongly. A module's cache for inference takes no two calls before a backward pass.
_OF_MEMORY: Final = frozenset(
    "shape.strided shape.expanded shape.bounds mask.strided gradients.strided "
    "gradients.interleaved gradients.accumulate".split()
)
# Signs of a wrong reading in the calls of any clause: a size was guessed, or an input. The
# surroundings of an attention, which were not read, may overflow where attention does not.
_OF_WHAT_WAS_PROMISED: Final = ("raised", "shape")
_OF_WHAT_WAS_UNREAD: Final = (*_OF_WHAT_WAS_PROMISED, "finite")
_REFUSED: Final = "it refuses what nobody said that it takes"
_ANSWERS: Final = "nobody said that it refuses sizes that do not fit each other"
_GUESSED: Final = "what is promised was guessed, and is not kept"


def _is_known(entry: Mapping[str, Any]) -> bool:
    return bool(entry.get("catalogued"))


_PROBLEMS: Final = {
    "stale": "stale expected failures",
    "expired": "expired expected failures",
    "different": "not the expected failures",
}
_RAN: Final = ("passed", "failed", "expected-failure", "unexpected-pass")


def verdict(
    loaded: Loaded,
    results: Sequence[ClauseResult],
    stale: Sequence[Stale] = (),
    *,
    interrupted: bool = False,
    missing: str = "",
) -> tuple[str, str]:
    """Return the verdict on a candidate and the reason in one sentence.

    ``missing`` names what was not run: then only a failure is certain.
    """
    results = certain_results(loaded, results)
    missing = missing or loaded.unjudged
    for outcome in (
        _error(results),
        _fails(results, stale),
        ("inconclusive", missing) if missing and not interrupted else None,
        _unread(loaded, results, interrupted=interrupted),
        _inconclusive(results, interrupted=interrupted),
    ):
        if outcome:
            return outcome
    word, reason = _green(loaded, results)
    unknown = what_was_unchecked(loaded, [result.id for result in results])
    unknown = unknown or missing_gradients(results)
    if unknown:
        return "inconclusive", f"{reason if word == 'inconclusive' else word}, but {unknown}"
    left = [parameter.name for parameter in loaded.unchecked]
    return word, f"{reason}; not checked: {', '.join(left)}" if left else reason


def _green(loaded: Loaded, results: Sequence[ClauseResult]) -> tuple[str, str]:
    """Return the verdict where no clause speaks against the candidate."""
    expected = [result.id for result in results if result.status == "expected-failure"]
    notes = []
    if expected:
        notes.append(f"expected failures: {_some(expected)}")
    elif loaded.deviations:
        notes.append(loaded.deviations_said)
    if loaded.mistaken:
        notes.append(f"it declares what only mistakes do: {', '.join(loaded.mistaken)}")
    known = set() if loaded.reading is None else {*loaded.reading.meant}
    if "qk_norm" in loaded.deviations:
        known.add("scale")
    rare = [who for name, who in _RARELY_MEANT.items() if name in {*loaded.deviations} - known]
    if loaded.reading is not None and rare:
        said = f"{loaded.deviations_said}: declare it if it is meant ({' and '.join(rare)} it)"
        if loaded.target:
            said += f", with the lines of 'conformance identify {split_site(loaded.target)[0]}'"
        return "inconclusive", said
    if loaded.gauge:
        return "conforms-up-to-gauge", "; ".join([loaded.gauge, *notes])
    if expected or loaded.deviations:
        return "conforms-with-deviations", "; ".join(notes)
    alone = any(ONE_THREAD in each.reason for each in results if each.id == OF_THREADS)
    where = f", asked on {ONE_THREAD} alone" if alone else ""
    return "conforms", f"every applicable MUST clause passed{where}"


# Choices in undeclared code that are mostly mistakes, with the known exceptions.
_RARELY_MEANT: Final = {"scale": "T5 means", "group_order": "x-transformers means"}
# Options that leave a verdict open if never given: their clauses, and how to have them tested.
_LEFT_OPEN: Final = {
    "mask": ("mask.", "declare what it means with masks="),
    "cache": ("cache.", "its cache stays empty; declare it with cache= or call="),
    "input": ("numerics.", "declare it with inputs= and call="),
}
# Further ones in undeclared code, whose flag is given once understood.
_LEFT_OPEN_UNDECLARED: Final = {"causal": ("mask.", "declare it with causal=")}


def what_was_unchecked(loaded: Loaded, slugs: Iterable[str]) -> str:
    """Return why parameters never given leave a verdict open, in words, or "".

    The parameters are masks, caches and further inputs. A run without clauses about them claims
    nothing about them.
    """
    families = {slug.partition(".")[0] + "." for slug in slugs}
    options = _LEFT_OPEN | ({} if loaded.reading is None else _LEFT_OPEN_UNDECLARED)
    open_ones = [
        parameter
        for parameter in loaded.unchecked
        if parameter.option in options
        and not parameter.accepted
        and not families.isdisjoint((options[parameter.option][0], "model."))
    ]
    if not open_ones:
        return ""
    names = [parameter.name for parameter in open_ones]
    how = " or ".join(dict.fromkeys(options[one.option][1] for one in open_ones))
    was = "was" if len(names) == 1 else "were"
    return (
        f"{' and '.join(f'`{name}`' for name in names)} {was} not checked: {how} ('conformance "
        f"identify{loaded.target and ' ' + loaded.target}' says what is known of it), or let it "
        f"stay so with unchecked=[{', '.join(map(repr, names))}] or --unchecked {','.join(names)}"
    )


def missing_gradients(results: Sequence[ClauseResult]) -> str:
    """Return why missing gradients, not excluded by the candidate, leave a verdict open, or "".

    The case: in a dtype on a device no gradient clause got any gradient. Gradients missing for an
    option alone are reported by its clause.
    """
    asked = [result for result in results if result.id.startswith("gradients.")]
    ran = {(result.dtype, result.device) for result in asked if result.status in _RAN}
    return next(
        (
            result.reason
            for result in asked
            if result.lacks_gradients and (result.dtype, result.device) not in ran
        ),
        "",
    )


def _error(results: Sequence[ClauseResult]) -> tuple[str, str] | None:
    broken = [result.id for result in results if result.status == "error"]
    return ("error", f"the harness failed in {_some(broken)}") if broken else None


def _fails(results: Sequence[ClauseResult], stale: Sequence[Stale]) -> tuple[str, str] | None:
    failed = [
        result.id for result in results if result.status == "failed" and result.level == "MUST"
    ]
    if failed:
        return "fails", f"MUST clauses failed: {_some(failed)}"
    passed = [result.id for result in results if result.status == "unexpected-pass"]
    if passed:
        return "fails", f"expected to fail but passed: {_some(passed)}"
    sentences = [_stale_sentence(problem, stale) for problem in _PROBLEMS]
    return ("fails", "; ".join(filter(None, sentences))) if stale else None


def _stale_sentence(problem: str, stale: Sequence[Stale]) -> str:
    clauses = [entry.expectation.clause for entry in stale if entry.problem == problem]
    return f"{_PROBLEMS[problem]}: {_some(clauses)}" if clauses else ""


def _inconclusive(results: Sequence[ClauseResult], *, interrupted: bool) -> tuple[str, str] | None:
    if interrupted:
        return "inconclusive", "the run was interrupted"
    untestable = [
        result.id for result in results if result.status == "untestable" and result.level == "MUST"
    ]
    if untestable:
        return "inconclusive", f"MUST clauses could not be tested: {_some(untestable)}"
    if not any(result.status in _RAN for result in results):
        reasons = {result.reason for result in results}
        why = f": {reasons.pop()}" if len(reasons) == 1 else ""
        return "inconclusive", f"no clause was run{why}"
    return None


def _unread(
    loaded: Loaded, results: Sequence[ClauseResult], *, interrupted: bool
) -> tuple[str, str] | None:
    """Return an inconclusive verdict if an undeclared candidate breaks promises we guessed."""
    guessed = [result.id for result in results if result.reason.startswith(_GUESSED)]
    if loaded.reading is None or not guessed or interrupted:
        return None
    unread = loaded.reading.unread or "on small inputs its answers are those that were read"
    identify = f"'conformance identify {loaded.target}'" if loaded.target else "identify"
    why = (
        f"it declares nothing, and {unread}; held against standard attention {_some(guessed)} "
        f"would fail, which may be meant: declare it ({identify} says what is known of it)"
    )
    return "inconclusive", "; ".join(filter(None, (why, missing_gradients(results))))


def _some(slugs: Iterable[str]) -> str:
    return few(list(dict.fromkeys(slugs)), 4)


def candidate_entry(
    loaded: Loaded,
    results: Sequence[ClauseResult],
    sentences: Mapping[str, str],
    stale: Sequence[Stale] = (),
    *,
    interrupted: bool = False,
    missing: str = "",
    warnings: Sequence[str] = (),
    graph_options: GraphOptions = NO_GRAPH_OPTIONS,
) -> CandidateEntry:
    """Return the entry of one candidate; ``warnings`` contradict the declaration.

    ``graph_options`` enter the entry of a graph, and of what a definition declares, for a replay to
    open it again.
    """
    has_options = loaded.kind == "graph" or loaded.site or graph_options.definition is not None
    results = certain_results(loaded, results)
    word, reason = verdict(loaded, results, stale, interrupted=interrupted, missing=missing)
    clauses = cast(
        "list[ClauseEntry]",
        [{**result.as_json(), "requirement": sentences.get(result.id, "")} for result in results],
    )
    entry = {
        "target": loaded.target,
        "name": loaded.name,
        "kind": loaded.kind,
        **({"location": loaded.location} if loaded.location is not None else {}),
        "declaration": loaded.declaration,
        **({"site": loaded.site} if loaded.site is not None else {}),
        **({"sites": list(loaded.sites)} if loaded.sites else {}),
        **({} if loaded.reading is None else {"reading": asdict(loaded.reading)}),
        **({"beside": graph_options.record_options()} if has_options else {}),
        "verdict": word,
        "verdict_reason": reason,
        "warnings": list(warnings),
        "unchecked": [asdict(parameter) for parameter in loaded.unchecked],
        "counts": dict(Counter(result.status for result in results)),
        "seconds": round(sum(result.seconds for result in results), 4),
        **_coverage(results),
        "causes": causes_of(clauses),
        "clauses": clauses,
    }
    return cast("CandidateEntry", entry)


def joined_causes(entries: Iterable[CandidateEntry]) -> list[CandidateEntry]:
    """Return the candidates' entries, with common causes of a model and its attention joined.

    A failure a whole model blames on one attention has the attention's cause when judged alone.
    """
    listed = list(entries)
    for model in listed:
        alone = [one for one in listed if one["target"].rpartition("#")[0] == model["target"]]
        for number, cause in enumerate(model["causes"]):
            index = _blamed_site(model, cause)
            found = [
                other
                for one in alone
                if "site" in one and index in (one["site"]["index"], *one["site"]["same_as"])
                for other in one["causes"]
                if other["level"] == "MUST"
            ]
            if len(found) == 1:
                own = ("level", "clauses", "failure", "counterexample")
                kept = {name: value for name, value in cause.items() if name in own}
                model["causes"][number] = cast("CauseEntry", {**found[0], **kept})
    return listed


def _blamed_site(model: CandidateEntry, cause: CauseEntry) -> int | None:
    """Return the attention of a whole model blamed by all failures of a cause, else None."""
    failed = [one for one in model["clauses"] if one["status"] == "failed"]
    own = [one.get("violation") or _NONE for one in failed if one["id"] in cause["clauses"]]
    blamed = {(violation.get("measured") or _NONE).get(SITE) for violation in own}
    return blamed.pop() if len(blamed) == 1 else None


def _coverage(results: Sequence[ClauseResult]) -> dict[str, Any]:
    """Return the combinations of parameters covered by the clauses about combinations."""
    coverages = [result.coverage for result in results if result.coverage]
    if not coverages:
        return {}
    impossible = Counter[str]()
    for coverage in coverages:
        for entry in coverage["impossible"]:
            impossible[str(entry["reason"])] += int(entry["combinations"])
    return {
        "coverage": {
            "strength": max(int(coverage["strength"]) for coverage in coverages),
            "combinations": sum(int(coverage["combinations"]) for coverage in coverages),
            "covered": sum(int(coverage["covered"]) for coverage in coverages),
            "impossible": [
                {"reason": reason, "combinations": count}
                for reason, count in impossible.most_common()
            ],
        }
    }


def build_report(
    ready: Ready,
    options: RunOptions,
    candidates: Sequence[CandidateEntry],
    *,
    stale: Sequence[Stale] = (),
    seconds: float = 0.0,
    started: str = "",
    interrupted: bool = False,
    more: Mapping[str, Any] | None = None,
) -> Record:
    """The whole record, as data that JSON can hold; ``started`` is a time in ISO 8601.

    ``more`` are further keys: see :mod:`conformance.session.checking`.
    """
    environment = dict(ready.environment)
    if options.devices:
        environment["device"] = ", ".join(options.devices)
    record: Record = plain(
        {
            "schema": SCHEMA,
            "tool": _tool(ready.specification),
            "environment": environment,
            "profile": options.profile,
            "seed": options.seed,
            **({"started": started} if started else {}),
            "seconds": round(seconds, 4),
            "interrupted": interrupted,
            **(more or {}),
            "stale_expectations": [entry.as_json() for entry in stale],
            "clauses": _clauses(ready, candidates),
            "candidates": joined_causes(candidates),
        }
    )
    return record


def _tool(specification: str) -> dict[str, str]:
    documentation = project_url(TOOL, "Documentation")
    return {
        "name": TOOL,
        "version": package_version(TOOL),
        "specification": specification,
        **({"documentation": documentation} if documentation else {}),
    }


def _clauses(ready: Ready, candidates: Sequence[CandidateEntry]) -> dict[str, dict[str, str]]:
    slugs = {clause["id"] for candidate in candidates for clause in candidate["clauses"]}
    return {slug: facts for slug, facts in ready.clauses.items() if slug in slugs}
