"""The attentions of a model as candidates, and what a check says of them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from command_line import FEW, record
from little_graphs import node, plus_one, saved
from onnx import TensorProto, helper
from whole_models import PLAIN, of_ids, token_graph

import conformance
from candidates.exports import EXPORTS, by_tracing
from candidates.models import BROKEN, MODELS
from candidates.models.transformer import Encoder, Mistake, Shape
from conformance.__main__ import run
from conformance.base.profile import NO_GRAPH_OPTIONS, GraphOptions
from conformance.base.record import read_record
from conformance.declare.candidate import Candidate
from conformance.errors import UsageError
from conformance.identification.opening import resolve_one
from conformance.models.candidates import describe_sites, model_candidates, promised_semantics
from conformance.models.sites import Sites, find_sites
from conformance.models.whole_model import WholeModel
from conformance.running.workers.messages import RunOptions
from conformance.running.workers.pool import WorkerPool
from conformance.session.checking import check

pytestmark = pytest.mark.usefixtures("warm_workers")


def sites_of_model(
    path: Path, sites: Sites, number: int | None, options: GraphOptions = NO_GRAPH_OPTIONS
) -> dict[int, Candidate]:
    """The attentions among the candidates of a model."""
    made = model_candidates(path, sites, number, options)
    return {index: candidate for index, candidate in made if index is not None}


@pytest.fixture
def encoder(export_of: Callable[..., Path]) -> Sites:
    return find_sites(export_of("encoder"))


def test_each_distinct_attention_is_a_core(export_of: Callable[..., Path]) -> None:
    """Named after the file and its first place; the site says which others are the same."""
    path = export_of("encoder-decoder")
    made = sites_of_model(path, find_sites(path), None)
    assert [candidate.name for candidate in made.values()] == [
        "encoder-decoder#0",
        "encoder-decoder#2",
    ]
    assert [candidate.kind for candidate in made.values()] == ["core", "core"]
    sites = [candidate.site for candidate in made.values()]
    assert [site and site["same_as"] for site in sites] == [[1, 3, 5], [4]]


def test_what_a_model_says_of_an_attention_is_described(export_of: Callable[..., Path]) -> None:
    """As the record's contract names it."""
    first = describe_sites(find_sites(export_of("decoder")))[0]
    assert first["scope"] == "tower.layers.0.attention"
    assert first["same_as"] == [1]
    assert (first["heads"], first["kv_heads"], first["head_size"]) == (4, 2, 4)
    assert (first["causal"], first["mask_inputs"]) == (True, ["attention_mask"])
    assert [(mask["role"], mask["axes"]) for mask in first["mask"]] == [("keep", "B1QK")]
    assert first["scale"] == pytest.approx(0.5, rel=1e-6)


def test_a_candidate_may_be_one_that_is_the_same_as_another(encoder: Sites) -> None:
    """Its number says which."""
    made = sites_of_model(encoder.graph.path, encoder, 1)
    assert [candidate.name for candidate in made.values()] == ["encoder#1"]


def test_a_model_without_its_weights_is_refused(
    tmp_path: Path, export_of: Callable[..., Path]
) -> None:
    """With the file that is missing; an attention alone needs none of them."""
    path = tmp_path / "model.onnx"
    traced = onnx.load(export_of("encoder"))
    onnx.save(traced, path, save_as_external_data=True, location="weights", size_threshold=64)
    (tmp_path / "weights").unlink()
    sites = find_sites(path)
    assert sites_of_model(path, sites, 1)[1].name == "model#1"
    with pytest.raises(UsageError, match=r"in 'weights', which is missing: copy .*model.onnx#0$"):
        model_candidates(path, sites, None)


SCALES: dict[str, tuple[list[float | None], list[dict[str, Any]]]] = {
    "standard": ([0.5, 0.5], [{}, {}]),
    "one differs": ([0.5, 1.0], [{}, {}]),
    "none is standard": ([1.0, 1.0], [{"scale": "none"}, {"scale": "none"}]),
    "another number": ([0.25, 0.25], [{"scale": 0.25}, {"scale": 0.25}]),
    "by layer": ([0.5, 0.25, 0.5 / 3], [{}, {"scale": 0.25}, {"scale": 0.5 / 3}]),
    "unknown": ([None, 0.5], [{}, {}]),
    "one differs from a number": ([1.0, 0.25, 0.25], [{"scale": 0.25}] * 3),
    "two differ": ([0.25, 1.0], [{"scale": 0.25}] * 2),
    "rounded": ([0.25, 0.25000001, 1.0], [{"scale": 0.25}] * 3),
}


@pytest.mark.parametrize("name", SCALES)
def test_the_scale_is_promised_that_the_model_means(name: str, encoder: Sites) -> None:
    """The standard's where any attention has it; else its own, as a deviation."""
    scales, expected = SCALES[name]
    sites = tuple(
        dataclasses.replace(encoder.sites[0], index=index, scale=scale)
        for index, scale in enumerate(scales)
    )
    assert [promised_semantics(sites, site) for site in sites] == expected


def test_the_cap_is_promised_that_most_attentions_have(encoder: Sites) -> None:
    """One without it, or with another, is meant to have it; no cap may be the rule as well."""
    (site, _) = encoder.sites[:2]

    def promised(*caps: float | None) -> list[Any]:
        sites = [dataclasses.replace(site, cap=cap) for cap in caps]
        mods = [promised_semantics(sites, own).get("score_mod") for own in sites]
        return [mod and mod.cap for mod in mods]

    assert promised(50.0, None, 50.0) == [50.0] * 3
    assert promised(50.0, 5.0) == [50.0] * 2
    assert promised(None, None, 50.0) == [None] * 3


def test_factors_above_an_attention_are_compared(encoder: Sites) -> None:
    """With its own one they make the scale; what another layer multiplies above is missed."""

    def promised(*scales: tuple[float, float]) -> list[Any]:
        sites = [
            dataclasses.replace(encoder.sites[0], scale=own, scaled_above=above)
            for own, above in scales
        ]
        return [promised_semantics(sites, site).get("scale") for site in sites]

    assert promised((1.0, 0.5), (0.5, 1.0)) == ["none", None]
    assert promised((1.0, 0.5), (1.0, 1.0), (1.0, 0.5)) == ["none", None, "none"]
    assert promised((1.0, 0.25), (1.0, 0.25), (1.0, 0.125)) == ["none", "none", 2.0]


def test_a_file_that_no_session_opens_is_refused(tmp_path: Path) -> None:
    """Whatever could be taken out of it: here a sum of tokens with numbers of another format."""
    made = token_graph([node("Sin", "ids", "unused"), *PLAIN])
    path = saved(of_ids(made), tmp_path / "model.onnx")
    sites = find_sites(path)
    for number in (None, 0):
        with pytest.raises(UsageError, match=r"model.onnx cannot be opened: .*Sin"):
            model_candidates(path, sites, number)


def test_a_model_of_whose_attentions_none_is_judged_is_not_green(tmp_path: Path) -> None:
    """The model answers, and its clauses pass: the only attention is none that can be cut out."""
    middle = [node("Sin", "scores", "bent"), node("Softmax", "bent", "weights", axis=-1)]
    path = saved(of_ids(token_graph(middle)), tmp_path / "model.onnx")
    ((_, whole),) = model_candidates(path, find_sites(path), None)
    said = "the Sin node Sin bent between its products is none of attention"
    assert whole.unjudged == f"its only attention is not judged (Softmax weights: {said})"


def test_stored_numbers_that_no_answer_needs_leave_a_verdict_open(
    export_of: Callable[..., Path], tmp_path: Path
) -> None:
    """They stay behind where a node's input, such as sinks or a bias, was taken off."""
    model = onnx.load(export_of("encoder"))
    model.graph.initializer.append(helper.make_tensor("sinks", TensorProto.FLOAT, [4], [0.0] * 4))
    path = tmp_path / "encoder.onnx"
    onnx.save(model, path)
    (_, whole), *_ = model_candidates(path, find_sites(path), None)
    assert "no answer is computed from the stored sinks" in whole.unjudged


def test_scales_of_the_width_of_all_heads_leave_a_verdict_open(tmp_path: Path) -> None:
    """In every layer: no sibling has another."""
    wide = Mistake(scale=Shape().width ** -0.5)
    source = dataclasses.replace(MODELS["encoder"], module=Encoder(Shape(), [wide, wide]).eval())
    path = by_tracing(source, tmp_path / "encoder.onnx")
    (_, whole), *_ = model_candidates(path, find_sites(path), None)
    assert "attention #1 divides its scores by the root of the width of all heads" in whole.unjudged


@pytest.mark.parametrize("name", ["attention_mask", "mask"])
def test_a_mask_of_tokenizers_hides_where_it_is_0(
    name: str, export_of: Callable[..., Path], tmp_path: Path
) -> None:
    """Integers of tokenizers are judged by their meaning; other masks may mean what they do."""
    model = onnx.load(export_of("encoder"))
    for each in model.graph.node:
        own = [name if read == "attention_mask" else read for read in each.input]
        each.input[:] = ["turned" if read == name else read for read in own]
    (port,) = (port for port in model.graph.input if port.name == "attention_mask")
    port.name = name
    one = helper.make_tensor("one", TensorProto.INT64, [], [1])
    model.graph.initializer.append(one)
    model.graph.node.insert(0, node("Sub", f"one {name}", "turned"))
    path = tmp_path / "encoder.onnx"
    onnx.save(model, path)
    (_, whole), *_ = model_candidates(path, find_sites(path), None)
    assert isinstance(whole.function, WholeModel)
    assert whole.function.inverted == ((name,) if name == "attention_mask" else ())


def test_options_for_one_attention_are_refused(encoder: Sites) -> None:
    """A state dict belongs to one attention, a source to the whole."""
    refused = ((None, GraphOptions(state_dict="w.pt")), (1, GraphOptions(source="m:f")))
    for number, options in refused:
        with pytest.raises(UsageError, match=r"whole model: --.* can be given"):
            sites_of_model(encoder.graph.path, encoder, number, options)


def test_a_number_that_is_not_there_is_refused(encoder: Sites) -> None:
    """The sentence says which are."""
    with pytest.raises(UsageError, match="no attention #2: its attentions are #0 to #1"):
        sites_of_model(encoder.graph.path, encoder, 2)


def test_a_model_that_cannot_be_judged_says_why(tmp_path: Path) -> None:
    """In one sentence with the reason for each attention."""
    middle = [node("Mul", "scores bias", "capped"), node("Softmax", "capped", "weights", axis=-1)]
    path = saved(token_graph(middle), tmp_path / "model.onnx")
    with pytest.raises(UsageError, match=r"no attention that can be judged alone \(.*tensor bias"):
        sites_of_model(path, find_sites(path), None)


def test_roles_in_the_declaration_of_a_model_are_refused(tmp_path: Path, encoder: Sites) -> None:
    """Those of attention are for a graph of one."""
    declared = tmp_path / "model.conformance.toml"
    declared.write_text('[inputs.x]\nrole = "query"\n', encoding="utf-8")
    options = GraphOptions(declaration=str(declared))
    with pytest.raises(UsageError, match=r"'x' the role 'query', but .*: give one of tokens, mask"):
        sites_of_model(encoder.graph.path, encoder, None, options)


def test_promises_for_a_model_are_those_of_all_its_attentions(
    tmp_path: Path, encoder: Sites
) -> None:
    """Such as a scale."""
    declared = tmp_path / "model.conformance.toml"
    declared.write_text("[semantics]\nscale = 0.25\n", encoding="utf-8")
    options = GraphOptions(declaration=str(declared))
    (candidate,) = sites_of_model(encoder.graph.path, encoder, None, options).values()
    assert candidate.declaration.semantics.scale == 0.25


def test_check_judges_the_attentions_of_a_model(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 0: the model, and one candidate for all that are the same, with its site."""
    by_tracing(MODELS["decoder"], folder / "decoder.onnx")
    assert run(["check", "decoder.onnx", *FEW, "--only", "model.*", "--json", "out.json"]) == 0
    out = capsys.readouterr().out
    line = " ".join(out.split())
    assert "decoder (model, decoder.onnx): conforms-up-to-gauge, no golden answer of" in line
    assert "decoder#0 conforms 2" in line
    assert "tower.layers.0.attention, 4 heads of 4 (2 key/value heads), keep mask of" in line
    whole, candidate = record(folder)["candidates"]
    assert (whole["kind"], whole["target"], whole["name"]) == ("model", "decoder.onnx", "decoder")
    assert (candidate["kind"], candidate["target"]) == ("core", "decoder.onnx#0")
    assert candidate["site"]["same_as"] == [1]
    assert candidate["beside"] == {"source": None, "state_dict": None, "declaration": None}
    assert read_record(folder / "out.json")["candidates"][1]["verdict"] == "conforms"


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", BROKEN)
def test_the_wrong_attention_fails_and_the_others_conform(name: str, folder: Path) -> None:
    """The first that is wrong is a candidate of its own, under its own number."""
    broken = BROKEN[name]
    by_tracing(broken.source, folder / "model.onnx")
    arguments = ["--profile", "quick", "--only", broken.clause, "--only", "numerics.golden"]
    assert run(["check", "model.onnx", *arguments, "--json", "out.json"]) == 1
    verdicts = {
        entry["site"]["index"]: (entry["verdict"], failed(entry))
        for entry in record(folder)["candidates"]
        if "site" in entry
    }
    wrong = {index for index, (verdict, _) in verdicts.items() if verdict == "fails"}
    assert wrong == set(broken.wrong)
    assert all(broken.clause in verdicts[index][1] for index in wrong)
    others = {verdict for index, (verdict, _) in verdicts.items() if index not in wrong}
    assert others == {"conforms"}


def failed(entry: Any) -> set[str]:
    return {clause["id"] for clause in entry["clauses"] if clause["status"] == "failed"}


def test_what_cannot_be_judged_is_a_warning(folder: Path) -> None:
    """Where one attention is judged and another is not, the record says so."""
    made = token_graph()
    again = [
        node("MatMul", "answer matrix_q", "wide"),
        node("Reshape", "wide apart", "cut"),
        node("Transpose", "cut", "second", perm=[0, 2, 1, 3]),
        node("Transpose", "cut", "third", perm=[0, 2, 3, 1]),
        node("MatMul", "second third", "more"),
        node("Mul", "more bias", "capped"),
        node("Softmax", "capped", "most", axis=-1),
        node("MatMul", "most second", "last"),
    ]
    made.graph.node.extend(again)
    made.graph.output.append(helper.make_tensor_value_info("last", TensorProto.FLOAT, None))
    saved(made, folder / "model.onnx")
    run(["check", "model.onnx", *FEW, "--json", "out.json"])
    (candidate,) = json.loads((folder / "out.json").read_text(encoding="utf-8"))["candidates"]
    assert candidate["name"] == "model#0"
    attention, whole = candidate["warnings"]
    assert attention.startswith("not judged: Softmax most: the Mul node")
    assert whole.startswith("the model as a whole is not judged: nothing says what its input allow")


def test_a_number_that_a_model_does_not_have_is_bad_input(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2 and one sentence."""
    by_tracing(MODELS["encoder"], folder / "model.onnx")
    assert run(["check", "model.onnx#5", *FEW]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_file_with_one_attention_has_a_number_0_alone(tmp_path: Path) -> None:
    """It is judged as such, under its own name."""
    (export,) = [each for each in EXPORTS if each.name == "token_attention_traced_18"]
    path = export.make(tmp_path)
    (candidate,) = resolve_one(f"{path}#0")
    assert (candidate.name, candidate.shown_kind) == (path.stem, "graph")
    with pytest.raises(UsageError, match="is one attention, #0: there is no #3"):
        resolve_one(f"{path}#3")


def test_a_model_is_declared_in_python(export_of: Callable[..., Path], tmp_path: Path) -> None:
    """The model first, then each distinct attention; what is none is refused in one sentence."""
    made = conformance.model(export_of("encoder-decoder"))
    assert [one.name for one in made] == [
        "encoder-decoder",
        "encoder-decoder#0",
        "encoder-decoder#2",
    ]
    assert [one.kind for one in made] == ["model", "core", "core"]
    with pytest.raises(UsageError, match="there is no file"):
        conformance.model(tmp_path / "missing.onnx")
    saved(plus_one(), tmp_path / "plus.onnx")
    with pytest.raises(UsageError, match=r"plus\.onnx is no whole model: conformance.graph is for"):
        conformance.model(tmp_path / "plus.onnx")


def test_the_limits_of_a_run_reach_the_model(export_of: Callable[..., Path]) -> None:
    """A third of the seconds of ``--timeout`` for each call, and the memory of ``--max-memory``."""
    path = str(export_of("encoder"))
    given: list[RunOptions] = []

    def noted(options: RunOptions, **_pool: Any) -> WorkerPool:
        given.append(options)
        raise KeyboardInterrupt

    check(RunOptions(targets=(path,), max_memory=16 << 30), timeout=90.0, make_pool=noted)
    whole = resolve_one(path, given[0].graph_options)[0]
    assert whole.kind == "model"
    limits = whole.function.engine.process.limits  # type: ignore[attr-defined]  # it is a model
    assert (limits.wall_seconds, limits.memory) == (30.0, 16 << 30)
