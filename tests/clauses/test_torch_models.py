"""model.* on torch modules: right ones pass, wrong ones fail what they break, with their layer."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from whole_models import not_passed, results

import conformance
from candidates.exports import by_tracing
from candidates.models import BROKEN, MODELS
from candidates.models.transformer import Encoder, Mistake, Shape
from candidates.models.wrong_models import RIGHT, WRONG
from conformance import UsageError
from conformance.clauses.whole_models import model_of
from conformance.declare.candidate import Candidate
from conformance.models.candidates import model_of_file
from conformance.models.torch_model import with_source

# A consequence of a mistake of others, and of rows of minus infinity: it is a SHOULD.
FINITE = "model.empty-item-finite"
IN_PLACE = "model.sites-in-place"
SOURCE = "model.matches-source"
# The clauses that pass at least: pictures have no padding, no mask and one size.
FEWEST = {"vision": 3}
# What a runtime alone makes wrong is no mistake of the module.
OF_MODULES = [name for name, one in WRONG.items() if one.clause != "model.optimisation-levels"]
RIGHT_ONES = {**MODELS, "with positions": RIGHT}


@functools.cache
def wrong(name: str) -> dict[str, str]:
    """What a wrong module does not pass; remembered."""
    return not_passed(
        results(conformance.model(WRONG[name].source.module, name=name)[0], "model.*")
    )


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", RIGHT_ONES)
def test_right_modules_conform(name: str) -> None:
    """As their exports do, without any export."""
    whole, *cores = conformance.model(RIGHT_ONES[name].module, name=name)
    found = results(whole, "model.*")
    assert whole.kind == "model"
    assert cores
    assert set(not_passed(found)) == ({FINITE} if name == "encoder-written" else set())
    assert sum(result.status == "passed" for result in found) >= FEWEST.get(name, 7)


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", OF_MODULES)
def test_a_wrong_module_fails_what_it_breaks(name: str) -> None:
    """Its own clause, those that it must show in as well, and no other."""
    broken = WRONG[name]
    assert set(wrong(name)) - {FINITE} == {broken.clause, *broken.also}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", [name for name, one in WRONG.items() if one.site is not None])
def test_the_layer_to_blame_is_named(name: str) -> None:
    """By the path of its module."""
    broken = WRONG[name]
    where = f"attention #{broken.site} (own.tower.layers.{broken.site}.attention)"
    assert where in wrong(name)[broken.clause]


@pytest.mark.parametrize("name", [name for name, one in BROKEN.items() if one.wrong == (1,)])
def test_a_wrong_attention_of_a_module_is_seen_in_its_place(name: str) -> None:
    """On the module's own activations, by its path; alone it fails, too."""
    module = BROKEN[name].source.module
    whole, _, second = conformance.model(module, name=name)
    found = not_passed(results(whole, IN_PLACE))
    path = next(path for path, _ in module.named_modules() if path.endswith("layers.1.attention"))
    assert f"in the model attention #1 ({path})" in found[IN_PLACE]
    assert not_passed(results(second, "numerics.golden"))


@pytest.mark.parametrize("scale", [None, 1.0])
def test_attentions_in_bfloat16_are_held_in_their_places(scale: float | None) -> None:
    """Within the bound of that format: a right model passes, another scale of a layer does not."""
    torch.manual_seed(0)
    whole, *_ = conformance.model(Encoder(Shape(), [Mistake(), Mistake(scale=scale)]).bfloat16())
    (found,) = results(whole, IN_PLACE)
    assert found.status == ("passed" if scale is None else "failed")
    assert scale is None or "attention #1 (tower.layers.1.attention)" in found.reason


@pytest.mark.parametrize("batch_first", [True, False])
def test_torchs_own_layer_is_a_model_that_conforms(
    batch_first: bool,  # noqa: FBT001 (a parameter)
) -> None:
    """In both orders of its axes; its fast path answers as what is recorded does.

    But for items of nothing but padding, which the fast path answers with NaN: a SHOULD.
    """
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=batch_first)
    whole, core = conformance.model(layer, name="layer")
    assert set(not_passed(results(whole, "model.*"))) == ({FINITE} if batch_first else set())
    assert not_passed(results(core, "numerics.golden")) == {}


def _exported(folder: Path) -> list[tuple[int | None, Candidate]]:
    path = by_tracing(MODELS["encoder"], folder / "encoder.onnx")
    made = model_of_file(path, None)
    return [(None if one.kind == "model" else number - 1, one) for number, one in enumerate(made)]


def test_an_export_is_held_against_its_module(tmp_path: Path) -> None:
    """The module that it was exported from matches; one with another layer is blamed there."""
    made = _exported(tmp_path)
    source = MODELS["encoder"].module
    (_, same), *_ = with_source(made, source, "source")
    assert {result.status for result in results(same, SOURCE)} == {"passed"}
    other = Encoder(Shape()).eval()
    other.load_state_dict(source.state_dict())
    with torch.no_grad():
        other.get_parameter("tower.layers.1.attention.value.weight").mul_(1.5)
    (_, changed), *_ = with_source(made, other, "source")
    said = not_passed(results(changed, SOURCE))[SOURCE]
    assert "the first that leaves its bound is attention #1" in said


def test_a_source_that_is_none_is_refused(tmp_path: Path) -> None:
    """What is no module, and a module that takes other inputs."""
    made = _exported(tmp_path)
    for source, sentence in (
        (len, "name a torch.nn.Module"),
        (nn.Linear(3, 3), "cannot be called"),
    ):
        with pytest.raises(UsageError, match=sentence):
            with_source(made, source, "source")


@pytest.mark.parametrize(
    ("what", "how", "sentence"),
    [
        (nn.Linear(3, 3), {}, "holds no attention"),
        (lambda: 3, {}, "give a file, a torch.nn.Module or its builder"),
        ("model.onnx", {"inputs": {"x": "features"}}, "inputs, cache and name are for modules"),
        (Encoder(Shape()), {"inputs": {"x": "tokens"}}, "which the forward of Encoder lacks"),
    ],
)
def test_what_is_no_model_is_refused(what: object, how: dict[str, object], sentence: str) -> None:
    """In one sentence."""
    with pytest.raises(UsageError, match=sentence):
        conformance.model(what, **how)  # type: ignore[arg-type]  # as a user may


def test_a_mask_of_the_other_sign_is_named() -> None:
    """Where a model is answered rightly once 1 hides in its mask, and 0 does not.

    The encoder's mask is right: it is judged as if it were documented the other way round.
    """
    whole, *_ = conformance.model(MODELS["encoder"].module, name="m")
    right = model_of(whole)
    inputs = tuple(replace(e, hides=e.role == "mask") for e in right.inputs)
    names = tuple(e.name for e in inputs if e.role == "mask")
    judged = replace(whole, function=replace(right, inputs=inputs, inverted=names))
    said = not_passed(results(judged, "model.padding-contents"))["model.padding-contents"]
    assert "works the wrong way round" in said
    believed = replace(whole, function=replace(right, inverted=names))
    assert not not_passed(results(believed, "model.padding-contents"))
