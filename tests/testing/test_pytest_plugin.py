from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from workspaces import KERNEL, UNSCALED

# Runs inside this process forget what they were the first to import: not the code under test.
import conformance.testing.pytest_nodes
from conformance.base.profile import PROFILES

pytest_plugins = ["pytester"]

SUITE = """
import conformance
test_attention = conformance.suite({target}, profile="quick", only={only})
"""


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pytest runs of these tests share their processors with others."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def suite(target: str = "'attn.py:my_kernel'", only: str = "['shape.output']") -> str:
    """A user's test file."""
    return SUITE.format(target=target, only=only)


def test_startup_imports_nothing_heavy() -> None:
    """A pytest run that has nothing to do with attention loads no torch, hypothesis or onnx."""
    code = (
        "import sys, pytest; pytest.main(['--version', '-p', 'no:hypothesispytest']); "
        "import conformance.pytest_plugin; "
        "heavy = {'torch', 'hypothesis', 'onnx', 'numpy', 'rich'} & set(sys.modules); "
        "sys.exit(','.join(heavy) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-Ic", code], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_mask_that_nobody_declared_is_a_failing_test(pytester: pytest.Pytester) -> None:
    """It is a test of its own, which ``unchecked`` and the option take away."""
    kernel = KERNEL.replace(
        "my_kernel(query, key, value)", "my_kernel(query, key, value, attn_mask=None)"
    )
    pytester.makepyfile(attn=kernel, test_it=suite(only="['mask.golden', 'shape.output']"))
    pytester.makepyfile(
        test_left=suite(only="['mask.golden', 'shape.output']").replace(
            "only=", "unchecked=['attn_mask'], only="
        )
    )
    result = pytester.runpytest("-p", "no:cacheprovider", "-rf")
    assert result.parseoutcomes() == {"passed": 2, "failed": 1}
    result.stdout.fnmatch_lines(["*`attn_mask` was not checked*"])
    result = pytester.runpytest("--conformance-unchecked", "attn_*,pad*", "test_it.py")
    assert result.parseoutcomes() == {"passed": 1}


def test_gradients_that_nobody_excluded_are_one_failing_test(pytester: pytest.Pytester) -> None:
    """Whose answer carries none gets one test that fails, where others are skipped."""
    kernel = KERNEL.replace("return ", "with torch.no_grad():\n        return ")
    assert "no_grad" in kernel
    chosen = "['gradients.golden', 'gradients.alone', 'shape.output']"
    pytester.makepyfile(attn=kernel, test_it=suite(only=chosen))
    result = pytester.runpytest("-p", "no:cacheprovider", "-rf")
    assert result.parseoutcomes() == {"passed": 1, "failed": 1, "skipped": 1}
    result.stdout.fnmatch_lines(["*its answer carries no gradient: say without=[[]*"])


def test_candidates_from_the_command_line(pytester: pytest.Pytester) -> None:
    """``--pyargs conformance --candidate`` runs one test a clause and candidate."""
    pytester.makepyfile(attn=KERNEL + UNSCALED)
    result = pytester.runpytest_subprocess(
        "--pyargs", "conformance", "--candidate", "attn.py", "-v", "-rsxf",
        "-k", "shape.output or shape.weights or numerics.golden", "--junitxml", "junit.xml",
        "--conformance-profile", "quick",
    )  # fmt: skip
    assert result.parseoutcomes() == {"passed": 3, "skipped": 4, "failed": 1, "deselected": ANY}
    result.stdout.fnmatch_lines(
        [
            "suites.py::shape.output[[]my_kernel] PASSED*",
            "suites.py::numerics.golden[[]unscaled] FAILED*",
            "_* unscaled: numerics.golden _*",
            "scale-missing: numerics.golden [[]MUST, float32 on cpu] failed",
            "  requires: *",
            "  found: *",
            "  on: batch *",
            "SKIPPED * not applicable: it does not return weights",
        ]
    )
    result.stdout.no_fnmatch_line("*Traceback*")
    result.stdout.no_fnmatch_line("*Failed: *")
    tests = _properties(pytester.path / "junit.xml")
    assert max(int(facts["conformance_examples"]) for facts in tests) >= PROFILES["quick"].examples
    assert any(facts["conformance_status"] == "not-applicable" for facts in tests)
    (failed,) = (facts for facts in tests if facts["conformance_status"] == "failed")
    expected = {
        "candidate": "unscaled",
        "clause": "numerics.golden",
        "level": "MUST",
        "dtype": "float32",
        "device": "cpu",
        "violation": "value",
        "diagnosis": "scale-missing",
    }
    assert (
        expected.items()
        <= {name.removeprefix("conformance_"): value for name, value in failed.items()}.items()
    )
    assert float(failed["conformance_margin"]) > 1
    assert failed["conformance_requirement"].endswith(".")


def _properties(path: Path) -> list[dict[str, str]]:
    """What pytest's JUnit XML holds of each test."""
    return [
        {str(element.get("name")): str(element.get("value")) for element in case.iter("property")}
        for case in ET.parse(path).iter("testcase")  # noqa: S314 (our own)
    ]


class _Any:
    """Equal to everything."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = object.__hash__


ANY = _Any()


def test_no_candidate_is_a_usage_error(pytester: pytest.Pytester) -> None:
    """Without a candidate nothing would be checked: pytest's usage error, in one sentence."""
    result = pytester.runpytest_subprocess("--pyargs", "conformance")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: pytest --pyargs conformance needs --candidate TARGET*"])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--candidate", "nope.py"], "there is no file or folder nope.py"),
        (
            ["--candidate", "attn.py", "--conformance-profile", "fast"],
            "there is no profile 'fast'*",
        ),
        (
            ["--candidate", "attn.py", "--conformance-seed", "x"],
            "the seed is 'x': give a whole*",
        ),
        (["--candidate", "attn.py", "--conformance-dtype", "f4"], "there is no dtype 'f4'*"),
        (
            ["--candidate", "attn.py", "--conformance-expected-failures", "known.toml"],
            "the expected failure 'mask.causal' (x) is stale: the clause is not applicable*",
        ),
    ],
)
def test_bad_input_is_one_sentence(
    pytester: pytest.Pytester, arguments: list[str], sentence: str
) -> None:
    """What cannot be collected is a collection error of one line."""
    pytester.makepyfile(attn=KERNEL)
    pytester.makefile(".toml", known='[[expected]]\nclause = "mask.causal"\nreason = "x"\n')
    result = pytester.runpytest_inprocess("--pyargs", "conformance", *arguments)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines([sentence])
    result.stdout.no_fnmatch_line("*Traceback*")


def test_suite_in_a_users_file(pytester: pytest.Pytester) -> None:
    """A suite is one test a clause, under the user's file and name."""
    pytester.makepyfile(attn=KERNEL, test_mine=suite(only="['shape.output', 'shape.weights']"))
    result = pytester.runpytest_inprocess("-v")
    assert result.parseoutcomes() == {"passed": 1, "skipped": 1}
    result.stdout.fnmatch_lines(
        [
            "test_mine.py::test_attention[[]my_kernel-shape.output] PASSED*",
            "test_mine.py::test_attention[[]my_kernel-shape.weights] SKIPPED*",
        ]
    )
    result.stdout.no_fnmatch_line("*suites.py*")


def test_clauses_that_do_not_apply_are_left_out(pytester: pytest.Pytester) -> None:
    """Only ``-v`` collects them; where none applies, the skips say why nothing was checked."""
    only = "['shape.output', 'shape.weights']"
    pytester.makepyfile(attn=KERNEL, test_a=suite(only=only), test_b=suite(only="'shape.weights'"))
    result = pytester.runpytest_inprocess("-rs")
    assert result.parseoutcomes() == {"passed": 1, "skipped": 1}
    result.stdout.fnmatch_lines(["SKIPPED * not applicable: it does not return weights"])
    assert pytester.runpytest_inprocess("-v").parseoutcomes() == {"passed": 1, "skipped": 2}


def test_suite_of_a_candidate_object(pytester: pytest.Pytester) -> None:
    """A suite takes candidates as objects, and lists of them, too."""
    pytester.makepyfile(
        attn=KERNEL + UNSCALED,
        test_mine="import attn\n" + suite("[attn.my_kernel, attn.unscaled]"),
    )
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    assert result.parseoutcomes() == {"passed": 2}


def test_suite_under_xdist(pytester: pytest.Pytester) -> None:
    """Ids are the same in every process, so that tests spread over two."""
    pytester.makepyfile(attn=KERNEL, test_mine=suite(only="['shape.output', 'shape.dtype']"))
    result = pytester.runpytest_subprocess("-n", "2", "-v")
    assert result.parseoutcomes() == {"passed": 2}


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("arguments", "passed"),
    [
        (
            (
                *("--pyargs", "conformance", "test_mine.py", "--candidate", "candidates/attn.py"),
                *("-k", "shape.output or own", "--conformance-profile", "quick"),
            ),
            3,
        ),
        ((), 2),
    ],
)
def test_users_own_packages_stay_theirs(
    pytester: pytest.Pytester, arguments: tuple[str, ...], passed: int
) -> None:
    """A repository with packages ``reference`` and ``candidates`` keeps importing its own."""
    pytester.mkpydir("reference").joinpath("__init__.py").write_text(
        "MINE = True\n", encoding="utf-8"
    )
    folder = pytester.mkpydir("candidates")
    folder.joinpath("attn.py").write_text(KERNEL, encoding="utf-8")
    pytester.makepyfile(
        test_mine=suite("'candidates.attn:my_kernel'")
        + f"""
import candidates, reference

def test_own():
    assert reference.MINE
    assert candidates.__file__.startswith({str(pytester.path)!r})
    import conformance
    assert conformance.Semantics.__module__ != "reference.semantics"
"""
    )
    outcomes = pytester.runpytest_subprocess(*arguments).parseoutcomes()
    assert outcomes["passed"] == passed
    assert not outcomes.keys() - {"passed", "deselected"}


def test_parametrize_leaves_the_body_to_the_user(pytester: pytest.Pytester) -> None:
    """The decorated test calls ``clause()`` itself, next to its own fixtures and assertions."""
    pytester.makepyfile(
        attn=KERNEL,
        test_mine="""
import pytest
import conformance
import attn

@pytest.fixture
def before():
    return []

@conformance.parametrize([attn.my_kernel], only="shape.output", profile="quick")
def test_called(before, clause):
    assert (clause.id, clause.level, clause.candidate) == ("shape.output", "MUST", "my_kernel")
    clause()

@conformance.parametrize(attn.my_kernel, only="shape.output", profile="quick")
def test_checked(clause):
    assert clause.check().status == "passed"

@conformance.parametrize(attn.my_kernel, only="shape.output", profile="quick")
def test_forgotten(clause):
    pass

@conformance.parametrize(attn.my_kernel, only="shape.output", profile="quick")
class TestNot:
    pass
""",
    )
    result = pytester.runpytest_inprocess("-v")
    assert result.parseoutcomes() == {"passed": 2, "failed": 1}
    result.stdout.fnmatch_lines(["the test never called clause(): my_kernel-shape.output was not*"])


def test_parametrize_without_the_argument(pytester: pytest.Pytester) -> None:
    """A decorated test without an argument ``clause`` is refused."""
    pytester.makepyfile(
        attn=KERNEL,
        test_mine="""
import conformance

@conformance.parametrize("attn.py")
def test_nothing():
    pass
""",
    )
    result = pytester.runpytest_inprocess()
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["test_nothing is parametrized by clauses: give it an argument*"])


def test_statuses_become_outcomes(pytester: pytest.Pytester) -> None:
    """Expected and SHOULD failures are xfails; an unexpected pass and an error fail."""
    pytester.makepyfile(
        attn=KERNEL,
        test_mine="""
import conformance
from conformance.testing.cases import ClauseCase
from conformance.base.results import ClauseResult, Violation

WRONG = Violation(kind="value", message="off by 1")

def result(status, level="MUST", violation=None, reason="why"):
    def run(case):
        return ClauseResult(id="shape.output", family="shape", level=level, status=status,
                            violation=violation, reason=reason)
    return run

RESULTS = {
    "failed": result("failed", violation=WRONG),
    "should": result("failed", "SHOULD", WRONG),
    "untestable": result("untestable"),
    "error": result("error"),
    "known": result("failed", violation=WRONG),
    "passes": result("passed"),
}

def made(name, **options):
    @conformance.parametrize("attn.py", only="shape.output", **options)
    def test(clause, monkeypatch):
        monkeypatch.setattr(ClauseCase, "_run", RESULTS[name])
        clause()
    return test

test_failed = made("failed")
test_should = made("should")
test_untestable = made("untestable")
test_error = made("error")
test_known = made("known", expected_failures={"shape.output": "known"})
test_passes = made("passes", expected_failures={"shape.output": "known"})
""",
    )
    result = pytester.runpytest_inprocess("-rxfE")
    result.stdout.fnmatch_lines(
        [
            "XFAIL *test_should* - SHOULD failed: off by 1 (why)",
            "XFAIL *test_known* - expected failure: known",
        ]
    )
    result.stdout.no_fnmatch_line("*Failed: shape.output*")  # it would stand before the cause
    assert result.parseoutcomes() == {"xfailed": 2, "failed": 3, "errors": 1}
    strict = pytester.runpytest_inprocess("--runxfail")
    assert strict.parseoutcomes() == {"failed": 5, "errors": 1}


def test_precedence_of_choices(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Command line, environment, the suite's own argument, ini, in this order."""
    pytester.makeini("[pytest]\nconformance_seed = 1\n")
    pytester.makepyfile(
        attn=KERNEL,
        test_mine="""
import conformance

def seeds(clause):
    return clause._plan.run.seed

@conformance.parametrize("attn.py", only="shape.output")
def test_ini(clause):
    clause()
    print("ini", seeds(clause))

@conformance.parametrize("attn.py", only="shape.output", seed=2)
def test_own(clause):
    clause()
    print("own", seeds(clause))
""",
    )
    plain = pytester.runpytest_inprocess("-s")
    plain.stdout.fnmatch_lines(["*ini 1", "*own 2"])
    monkeypatch.setenv("CONFORMANCE_SEED", "3")
    from_environment = pytester.runpytest_inprocess("-s")
    from_environment.stdout.fnmatch_lines(["*ini 3", "*own 3"])
    command_line = pytester.runpytest_inprocess("-s", "--conformance-seed", "4")
    command_line.stdout.fnmatch_lines(["*ini 4", "*own 4"])


def test_public_functions_are_not_hidden_by_modules() -> None:
    """Whatever is imported in whatever order, the public names are functions and classes."""
    package = Path(conformance.__file__).parent
    submodules = {path.stem for path in package.iterdir()}
    assert not submodules & set(conformance.__all__)
