from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from bundled import EITHER_WAY, BrokenFile, failing, run_alone, write_candidate

from conformance.running.workers.messages import RunOptions
from conformance.running.workers.planning import plan_targets
from conformance.tools.bundles.job import bundle_job
from conformance.tools.bundles.showing import bundle_script, why_not_again

# Each: the file, the clause it breaks, what mends it (a text and its replacement).
MISTAKES: dict[str, BrokenFile] = {
    **EITHER_WAY,
    "value": (
        """
        @conformance.core(dtypes=["bfloat16"])
        def mine(query, key, value):
            scale = 1.0
            return (query @ key.mT * scale).softmax(-1) @ value
        """,
        "numerics.golden",
        ("scale = 1.0", "scale = query.shape[-1] ** -0.5"),
    ),
    "gradient": (
        """
        @conformance.core()
        def mine(query, key, value):
            query = query.detach() + 0.5 * (query - query.detach())
            return (query @ key.mT * query.shape[-1] ** -0.5).softmax(-1) @ value
        """,
        "gradients.golden",
        ("0.5 * (query", "1.0 * (query"),
    ),
    "layout": (
        """
        @conformance.core(layout="BSHD")
        def mine(query, key, value):
            query, key, value = (heads.transpose(1, 2) for heads in (query, key, value))
            scores = query @ key.mT * query.shape[-1] ** -1.5
            return (scores.softmax(-1) @ value).transpose(1, 2)
        """,
        "numerics.golden",
        ("** -1.5", "** -0.5"),
    ),
    "sequences": (
        """
        @conformance.core(layout="varlen")
        def mine(query, key, value, *, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k):
            answers = []
            for q, k in zip(cu_seqlens_q.diff().tolist(), cu_seqlens_k.diff().tolist()):
                at = sum(len(one) for one in answers), sum(keys for keys in used(answers))
                heads = [
                    tensor[start : start + size].transpose(0, 1)
                    for tensor, start, size in zip((query, key, value), (*at, at[1]), (q, k, k))
                ]
                scores = heads[0] @ heads[1].mT * query.shape[-1] ** -1.5
                answers.append(Answer((scores.softmax(-1) @ heads[2]).transpose(0, 1), k))
            return torch.cat([one.tensor for one in answers])


        class Answer:
            def __init__(self, tensor, keys):
                self.tensor, self.keys = tensor, keys

            def __len__(self):
                return len(self.tensor)


        def used(answers):
            return [one.keys for one in answers]
        """,
        "numerics.golden",
        ("** -1.5", "** -0.5"),
    ),
    "arrays": (
        """
        import numpy


        @conformance.core(arrays="numpy")
        def mine(query, key, value):
            scores = query @ key.swapaxes(-1, -2) * numpy.float32(1.0)
            scores = numpy.exp(scores - scores.max(-1, keepdims=True))
            return (scores / scores.sum(-1, keepdims=True)) @ value
        """,
        "numerics.golden",
        ("numpy.float32(1.0)", "numpy.float32(query.shape[-1] ** -0.5)"),
    ),
    "module": (
        """
        class Layer(torch.nn.Module):
            def __init__(self, embed_dim, num_heads):
                super().__init__()
                self.num_heads = num_heads
                for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
                    setattr(self, name, torch.nn.Linear(embed_dim, embed_dim))

            def forward(self, query, key, value):
                given = self.q_proj(query), self.k_proj(key), self.v_proj(value)
                heads = [x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for x in given]
                scores = heads[0] @ heads[1].mT * heads[0].shape[-1] ** -1.5
                merged = (scores.softmax(-1) @ heads[2]).transpose(1, 2).flatten(-2)
                return self.out_proj(merged), scores


        mine = conformance.module(Layer, name="mine", without=["gradients"])
        """,
        "numerics.golden",
        ("** -1.5", "** -0.5"),
    ),
    "buffer": (
        """
        @conformance.core(features=["out"])
        def mine(query, key, value, *, out=None):
            answer = (query @ key.mT * query.shape[-1] ** -0.5).softmax(-1) @ value
            if out is None:
                return answer
            out.copy_(2.0 * answer)
        """,
        "out.written",
        ("2.0 * answer", "answer"),
    ),
}


def bundled(target: str, slug: str, folder: Path) -> dict[str, Any]:
    """The failure of a candidate with its arrays in a folder, and its script."""
    folder.mkdir()
    entry = failing(target, slug)
    (failed,) = entry["clauses"]
    (plan,) = plan_targets(RunOptions(targets=(target,), profile="quick", only=(slug,)))
    argument = {name: failed[name] for name in ("dtype", "device", "violation")}
    problem = failed["counterexample"]["problem"]
    more = {"clause": slug, "problem": problem, "folder": str(folder)}
    answer = bundle_job(plan, {**argument, **more}, lambda _step, _name: None)
    assert answer["outcome"] == "fails"
    today = {name: answer[name] for name in ("violation", "counterexample")}
    clause: dict[str, Any] = {**failed, **today}
    assert not why_not_again(clause, target)
    (folder / "show.py").write_text(bundle_script(clause, target), encoding="utf-8")
    return clause


@pytest.fixture(scope="module")
def outcomes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[int, str]]:
    """What the scripts of the mistakes that tests are for give: broken, mended, and no file."""
    folder = tmp_path_factory.mktemp("bundles")
    scripts: dict[str, list[str]] = {}
    cases = [getattr(item, "callspec", None) for item in request.session.items]
    tried = {case.params.get("name") for case in cases if case} & set(MISTAKES) or {"value"}
    for name in sorted(tried):
        text, slug, (wrong, right) = MISTAKES[name]
        broken = write_candidate(folder / f"broken_{name}.py", text)
        mended = write_candidate(folder / f"mended_{name}.py", text.replace(wrong, right))
        clause = bundled(broken, slug, folder / name)
        json.dumps(clause, allow_nan=False)
        show = str(folder / name / "show.py")
        scripts |= {f"{name} broken": [show], f"{name} mended": [show, mended]}
    scripts["missing"] = [show, str(folder / "nowhere.py:mine")]
    return run_alone(folder, scripts)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", MISTAKES)
def test_script_of_a_bundle_shows_the_failure_alone(
    outcomes: dict[str, tuple[int, str]], name: str
) -> None:
    """It shows the record, and exits with 1 for the mistake and 0 for the mended candidate."""
    code, output = outcomes[f"{name} broken"]
    assert (code, "IT STILL FAILS" in output) == (1, True), output
    assert "recorded: " in output
    code, output = outcomes[f"{name} mended"]
    assert (code, "it does not fail any more" in output) == (0, True), output
    assert "recorded: " in output


def test_script_shows_the_record_without_the_candidate(
    outcomes: dict[str, tuple[int, str]],
) -> None:
    """A target that is not there leaves the record, and an exit status of its own."""
    code, output = outcomes["missing"]
    assert code == 2
    assert "nowhere.py:mine cannot be loaded here" in output
    assert "THE RECORD SHOWS THE FAILURE" in output
