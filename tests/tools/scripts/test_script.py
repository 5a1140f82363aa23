from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from bundled import EITHER_WAY, BrokenFile, failing, run_alone, write_candidate

from conformance.__main__ import run
from conformance.errors import UsageError
from conformance.tools.scripts.writing import script, why_not

pytestmark = pytest.mark.usefixtures("warm_workers")

# Each: the file, the clause it breaks, what mends it (a text and its replacement).
MISTAKES: dict[str, BrokenFile] = {
    **EITHER_WAY,
    "golden": (
        """
        @conformance.core()
        def mine(query, key, value):
            scale = 1.0
            return (query @ key.mT * scale).softmax(-1) @ value
        """,
        "numerics.scale",
        ("scale = 1.0", "scale = query.shape[-1] ** -0.5"),
    ),
    "no exception": (
        """
        @conformance.core()
        def mine(query, key, value):
            key = key[..., : value.shape[-2], :]
            return (query @ key.mT * query.shape[-1] ** -0.5).softmax(-1) @ value
        """,
        "shape.rejects-mismatch",
        ("key = key[..., : value.shape[-2], :]", "pass"),
    ),
    "shape": (
        """
        @conformance.core()
        def mine(query, key, value):
            query = query[..., :1, :]
            return (query @ key.mT * query.shape[-1] ** -0.5).softmax(-1) @ value
        """,
        "shape.output",
        ("query = query[..., :1, :]", "pass"),
    ),
    "dtype": (
        """
        @conformance.core()
        def mine(query, key, value):
            return ((query @ key.mT * query.shape[-1] ** -0.5).softmax(-1) @ value).double()
        """,
        "shape.dtype",
        (".double()", ".float()"),
    ),
    "edited input": (
        """
        @conformance.core()
        def mine(query, key, value):
            query *= query.shape[-1] ** -0.5
            query += 1e-3
            return ((query - 1e-3) @ key.mT).softmax(-1) @ value
        """,
        "state.inputs-unchanged",
        ("query *=", "query = query *"),
    ),
    "strides": (
        """
        @conformance.core()
        def mine(query, key, value):
            value = value.as_strided(value.shape, torch.empty(value.shape).stride(), 0)
            return (query @ key.mT * query.shape[-1] ** -0.5).softmax(-1) @ value
        """,
        "shape.strided",
        ("value = value.as_strided(value.shape, torch.empty(value.shape).stride(), 0)", "pass"),
    ),
    "layer": (
        """
        @conformance.layer(features=["gqa"], without=["gradients"])
        def mine(geometry, weights):
            def linear(x, matrix, bias):
                return x @ matrix.T + (0.0 if bias is None else bias)

            def split(x, heads):
                return x.unflatten(-1, (heads, -1)).transpose(1, 2)

            def forward(query, key, value):
                q = split(linear(query, weights.q, weights.q_bias), geometry.num_heads)
                k = split(linear(key, weights.k, weights.k_bias), geometry.num_kv_heads)
                v = split(linear(value, weights.v, weights.v_bias), geometry.num_kv_heads)
                group = geometry.num_heads // geometry.num_kv_heads
                k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
                heads = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v
                merged = heads.transpose(1, 2).flatten(-2)
                return linear(merged, weights.o, None)

            return forward
        """,
        "numerics.golden",
        ("weights.o, None", "weights.o, weights.o_bias"),
    ),
}

# Answered one sequence after another; as it is compared each has a row of its own.
SEQUENCES: BrokenFile = (
    """
    @conformance.core(layout="varlen")
    def mine(query, key, value, *, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k):
        ends = cu_seqlens_q[1:], cu_seqlens_k[1:]
        q, k = (
            torch.searchsorted(end, torch.arange(len(packed)), right=True)
            for end, packed in zip(ends, (query, key))
        )
        query, key, value = (packed.transpose(0, 1) for packed in (query, key, value))
        scores = query @ key.mT * query.shape[-1] ** -0.5
        scores = scores.masked_fill(q[:, None] < k, float("-inf"))
        return (scores.softmax(-1).nan_to_num(0.0) @ value).transpose(0, 1)
    """,
    "varlen.independent",
    ("q[:, None] < k", "q[:, None] != k"),
)


def broken_script(target: str, slug: str) -> str:
    """The script of the failure of a file's candidate."""
    (failed,) = failing(target, slug)["clauses"]
    return script(failed, target)


@pytest.fixture(scope="module")
def outcomes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[int, str]]:
    """What the scripts of the mistakes that tests are for give: broken files, and mended ones."""
    folder = tmp_path_factory.mktemp("scripts")
    cases = [getattr(item, "callspec", None) for item in request.session.items]
    tried = {case.params.get("name") for case in cases if case}
    for number, (name, (text, slug, (wrong, right))) in enumerate(MISTAKES.items()):
        if name not in tried:
            continue
        broken = write_candidate(folder / f"broken_{number}.py", text)
        mended = write_candidate(folder / f"mended_{number}.py", text.replace(wrong, right))
        shows = broken_script(broken, slug)
        broken, mended = (target.removesuffix(":mine") for target in (broken, mended))
        (folder / f"shows_broken_{number}.py").write_text(shows)
        (folder / f"shows_mended_{number}.py").write_text(
            shows.replace(broken.removesuffix(":mine"), mended.removesuffix(":mine"))
        )
    return run_alone(folder, {path.name: [path.name] for path in folder.glob("shows_*.py")})


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", MISTAKES)
def test_script_shows_the_failure_without_the_project(
    outcomes: dict[str, tuple[int, str]], name: str
) -> None:
    """It exits with 1 for the mistake, and with 0 once the candidate's file is mended."""
    number = list(MISTAKES).index(name)
    code, output = outcomes[f"shows_broken_{number}.py"]
    assert code == 1, output
    assert "IT STILL FAILS" in output
    code, output = outcomes[f"shows_mended_{number}.py"]
    assert code == 0, output
    assert "it does not fail any more" in output


@pytest.mark.parametrize("broken", [MISTAKES["golden"], SEQUENCES], ids=["heads", "sequences"])
def test_script_is_written_to_a_file(
    folder: Path, capsys: pytest.CaptureFixture[str], broken: BrokenFile
) -> None:
    """The command writes what fails, tells what it found, and exits with 1.

    What it writes runs alone, and no longer fails once the file is mended.
    """
    text, slug, change = broken
    write_candidate(folder / "attn.py", text)
    check = ["check", "attn.py:mine", "--profile", "quick", "--only", slug, "--json", "out.json"]
    assert run(check) == 1
    capsys.readouterr()
    assert run(["replay", f"out.json#{slug}", "--emit-script", "shows.py"]) == 1
    assert "still fails" in capsys.readouterr().out
    write_candidate(folder / "mended.py", text.replace(*change))
    shows = (folder / "shows.py").read_text()
    (folder / "mends.py").write_text(shows.replace("attn.py:mine", "mended.py:mine"))
    alone = run_alone(folder, {"shows": ["shows.py"], "mends": ["mends.py"]})
    assert (alone["shows"][0], "IT STILL FAILS" in alone["shows"][1]) == (1, True)
    assert alone["mends"][0] == 0, alone["mends"][1]


def test_script_goes_to_standard_output(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With - the script alone is written there, and what is printed goes to standard error."""
    text, slug, _ = MISTAKES["golden"]
    write_candidate(folder / "attn.py", text)
    only = ("--profile", "quick", "--only", slug)
    assert run(["check", "attn.py:mine", *only, "--json", "out.json"]) == 1
    capsys.readouterr()
    assert run(["replay", f"out.json#{slug}", "--emit-script", "-"]) == 1
    out, err = capsys.readouterr()
    compile(out, "shows.py", "exec")
    assert "seed" not in out
    assert "still fails" in err


def entry(**changes: Any) -> dict[str, Any]:
    """A failed clause as a report holds it."""
    tensor = {"shape": [1], "dtype": "float32", "values": [1.0]}
    counterexample = {
        "candidate": "mine",
        "calls": [{"arguments": {"query": tensor}, "keywords": {}, "output": tensor}],
        "expected": tensor,
        "got": tensor,
        "bound": tensor,
    }
    return {
        "id": "numerics.golden",
        "requirement": "It holds.",
        "violation": {"kind": "value", "message": "wrong", "expected": 1.0},
        "counterexample": counterexample,
        **changes,
    }


def with_counterexample(**changes: Any) -> dict[str, Any]:
    """A failed clause with another counterexample."""
    clause = entry()
    clause["counterexample"] = {**clause["counterexample"], **changes}
    return clause


@pytest.mark.parametrize(
    ("clause", "words"),
    [
        (entry(id="state.state-dict"), "does more with the module than calling it"),
        (with_counterexample(calls=[]), "no calls of the candidate"),
        (with_counterexample(access={"adapted": True}), "conformance.module"),
        (with_counterexample(access={"ranks": True}), "its ranks are started by the harness"),
        (entry(violation={"kind": "hung", "message": ""}), "a failure of kind hung"),
        (
            with_counterexample(
                calls=[
                    {"arguments": {"query": {"shape": [99], "dtype": "float32"}}, "keywords": {}}
                ]
            ),
            "more than 64 elements",
        ),
    ],
)
def test_what_calls_do_not_show_is_refused(clause: dict[str, Any], words: str) -> None:
    """One sentence says why there can be no script."""
    assert words in why_not(clause)
    with pytest.raises(UsageError, match="no script can be written for"):
        script(clause, "attn.py:mine")


def test_candidate_s_words_stay_text() -> None:
    """What a candidate raised cannot become code of the script."""
    message = 'raised X: """\nimport os\n"""'
    clause = entry(violation={"kind": "value", "message": message, "expected": 1.0})
    text = script(json.loads(json.dumps(clause)), "attn.py:mine")
    compile(text, "shows.py", "exec")
    assert "\nimport os" not in text


def test_one_script_shows_one_failure(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Several failures in one file are refused, and some of them named."""
    clauses = [
        {
            "id": slug,
            "status": "failed",
            "dtype": "float32",
            "device": "cpu",
            "counterexample": {"problem": {}},
        }
        for slug in ("mask.no-leak", "mask.golden")
    ]
    mine = {"name": "mine", "target": "a.py:b", "verdict": "fails", "clauses": clauses}
    data = {"schema": 1, "candidates": [mine]}
    (folder / "out.json").write_text(json.dumps(data))
    assert run(["replay", "out.json", "--emit-script", "shows.py"]) == 2
    assert "name one of mine/mask.no-leak, mine/mask.golden" in capsys.readouterr().err
