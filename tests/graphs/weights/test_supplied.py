"""A graph's weights compared with a state dict or a source: by value, by name, and what differs."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path

import attention_layers as layers
import pytest
import torch
from attention_layers import Layer, weights_of
from torch import Tensor
from weight_graphs import differing, export, find

import conformance
from conformance.errors import UsageError
from conformance.graphs.opened import GraphProjections
from conformance.graphs.sidecar import GraphDeclaration
from conformance.graphs.weights.projecting import UNKNOWN

STANDARD = 1 / 2
State = Mapping[str, Tensor]


@pytest.fixture(scope="module")
def module() -> Layer:
    """A layer of three heads of four."""
    torch.manual_seed(7)
    return Layer().eval()


@pytest.fixture(scope="module")
def path(module: Layer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its export."""
    return export(tmp_path_factory.mktemp("graph") / "m.onnx", module, tokens())


def tokens() -> tuple[Tensor, ...]:
    """Query, key and value."""
    return torch.randn(2, 4, 12), torch.randn(2, 5, 12), torch.randn(2, 5, 12)


def fused(state: State) -> State:
    """The names and the storage of nn.MultiheadAttention."""
    return {
        "in_proj_weight": torch.cat([state[f"{name}.weight"] for name in "qkv"]),
        "in_proj_bias": torch.cat([state[f"{name}.bias"] for name in "qkv"]),
        "out_proj.weight": state["o.weight"],
        "out_proj.bias": state["o.bias"],
    }


def larger(state: State) -> State:
    """A model of two such layers and an embedding, the graph's being the second."""
    other = {f"enc.0.attn.{name}": torch.randn_like(value) for name, value in state.items()}
    own = {f"enc.1.attn.{name}": value for name, value in state.items()}
    return {**other, **own, "embedding": torch.randn(50, 12), "steps": torch.tensor(3.0)}


KEPT = {
    "as it is": dict,
    "fused": fused,
    "transposed": lambda state: {
        name: value.mT.contiguous() if value.ndim == 2 else value for name, value in state.items()
    },
    "of a larger model": larger,
    "in double precision": lambda state: {name: value.double() for name, value in state.items()},
    "without telling names": lambda state: {f"p{i}": v for i, v in enumerate(state.values())},
    "in shares": lambda state: {name: value[:, None] for name, value in state.items()},
}


@pytest.mark.parametrize("kept", KEPT)
def test_a_state_dict_is_matched_by_value(kept: str, module: Layer, path: Path) -> None:
    """However it is stored, the raw weights are its own and the scale is verified by them."""
    projections = find(path, state_dict=KEPT[kept](module.state_dict()))
    assert differing(projections, module) == []
    assert (projections.how, projections.scale, projections.gauge) == ("state dict", STANDARD, "")
    assert len(projections.assumptions) == 1


def test_a_state_dict_tells_a_missing_scale(tmp_path: Path) -> None:
    """What is a gauge without it is a scale of one with it."""
    module = Layer(layers.unscaled)
    path = export(tmp_path / "m.onnx", module, tokens())
    projections = find(path, state_dict=module.state_dict())
    assert (projections.scale, projections.gauge) == (1.0, "")


def test_a_scale_folded_into_the_weights_is_verified(tmp_path: Path) -> None:
    """Weights of the graph are the raw ones times the scale: together the standard's."""
    raw = Layer()
    baked = copy.deepcopy(raw)
    baked.attend = layers.unscaled
    with torch.no_grad():
        baked.q.weight *= 0.3
        baked.q.bias *= 0.3
        baked.k.weight *= STANDARD / 0.3
        baked.k.bias *= STANDARD / 0.3
    path = export(tmp_path / "m.onnx", baked, tokens())
    assert find(path).gauge
    projections = find(path, state_dict=raw.state_dict())
    assert differing(projections, raw) == []
    assert (projections.scale, projections.gauge) == (STANDARD, "")


def test_a_half_precision_graph_of_a_float_state_dict(module: Layer, tmp_path: Path) -> None:
    """The weights are the state dict's as the graph rounded them."""
    half = copy.deepcopy(module).half()
    path = export(tmp_path / "m.onnx", half, [part.half() for part in tokens()])
    projections = find(path, state_dict=module.state_dict())
    assert differing(projections, half) == []
    assert projections.how == "state dict"


def test_a_changed_entry_is_noticed(module: Layer, path: Path) -> None:
    """The state dict's matrix is the right one, and the sentence names the projection."""
    state = copy.deepcopy(module.state_dict())
    state["o.weight"][3, 4] += 0.05
    projections = find(path, state_dict=state)
    assert torch.equal(projections.weights.o, state["o.weight"])
    assert torch.equal(projections.weights.q, state["q.weight"])
    assert any(
        "output projection differs from that of o.weight" in s for s in projections.assumptions
    )


def test_another_matrix_is_noticed_by_its_name(module: Layer, path: Path) -> None:
    """A matrix that is like none of the state dict's is taken by name, the others by value."""
    state = dict(larger(module.state_dict()))
    state["enc.1.attn.o.weight"] = torch.randn(12, 12)
    projections = find(path, state_dict=state)
    assert torch.equal(projections.weights.o, state["enc.1.attn.o.weight"])
    assert any("output projection differs" in sentence for sentence in projections.assumptions)


def test_a_bias_of_the_state_dict_that_the_graph_lost_is_noticed(tmp_path: Path) -> None:
    """The graph has no output bias, the state dict has: the answer is judged with it."""
    module = Layer()
    bare = copy.deepcopy(module)
    bare.o = torch.nn.Linear(12, 12, bias=False)
    bare.o.weight = module.o.weight
    path = export(tmp_path / "m.onnx", bare, tokens())
    projections = find(path, state_dict=module.state_dict())
    assert projections.weights.o_bias is not None
    assert torch.equal(projections.weights.o_bias, module.o.bias)
    assert any("output bias" in sentence for sentence in projections.assumptions)


def test_another_models_state_dict_is_refused(module: Layer, path: Path) -> None:
    """One sentence when neither values nor names are the graph's."""
    state = {f"p{i}": torch.randn_like(v) for i, v in enumerate(module.state_dict().values())}
    with pytest.raises(UsageError, match="holds nothing equal to the graph's query") as refused:
        find(path, state_dict=state)
    assert "\n" not in str(refused.value)


class Bent(Layer):
    """Queries that are no affine map of tokens, though nearly the identity before it."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attention with bent queries."""
        return super().forward(query + 0.05 * query.sin(), key, value)


def test_names_and_answers_serve_where_the_structure_does_not(tmp_path: Path) -> None:
    """Roles by the state dict's names, the number of heads by trying."""
    module = Bent()
    path = export(tmp_path / "m.onnx", module, tokens())
    assert find(path).weights is None
    projections = find(path, state_dict=fused(module.state_dict()))
    assert differing(projections, module) == []
    assert (projections.how, projections.num_heads) == ("state dict", 3)


def test_nothing_is_said_of_names_that_do_not_fit_the_answers(tmp_path: Path) -> None:
    """Weights of another model are not taken by their names alone."""
    path = export(tmp_path / "m.onnx", Bent(), tokens())
    with torch.no_grad():
        other = Layer()
        for parameter in other.parameters():
            torch.nn.init.normal_(parameter)
    projections = find(
        path, state_dict=other.state_dict(), declaration=GraphDeclaration(num_heads=3)
    )
    assert (projections.weights, projections.gauge) == (None, UNKNOWN)


def source_of(module: Layer, **changed: Tensor) -> GraphProjections:
    """What the adapter says of a module."""
    parts = {
        name: None if part is None else part.detach() for name, part in weights_of(module).items()
    }
    weights = conformance.ProjectionWeights(**{**parts, **changed})
    return GraphProjections(weights=weights, num_heads=3, num_kv_heads=3, how="source")


def test_a_source_wins(module: Layer, path: Path) -> None:
    """Its weights are taken, the graph's equal them, and the scale is verified."""
    projections = find(path, source=source_of(module), state_dict={"junk": torch.ones(2)})
    assert differing(projections, module) == []
    assert (projections.how, projections.scale, projections.gauge) == ("source", STANDARD, "")
    assert projections.assumptions == ()
    assert projections.stages.scores


def test_a_difference_from_the_source_is_named(module: Layer, path: Path) -> None:
    """The source's weights stay, and the sentence says which projection of the graph is another."""
    changed = module.v.weight.detach() + 0.1
    projections = find(path, source=source_of(module, v=changed))
    assert torch.equal(projections.weights.v, changed)
    assert [s for s in projections.assumptions if "value projection differs" in s]
    assert not [s for s in projections.assumptions if "query" in s]


def test_a_source_serves_where_the_structure_does_not(tmp_path: Path) -> None:
    """Without recovery the source's weights stand, and that the graph's were not read is said."""
    module = Bent()
    projections = find(export(tmp_path / "m.onnx", module, tokens()), source=source_of(module))
    assert projections.weights is not None
    assert any("own weights could not be read" in sentence for sentence in projections.assumptions)
