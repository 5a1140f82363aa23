"""Projections read out of exported graphs, bit by bit those of the module."""

from __future__ import annotations

import math
from pathlib import Path

import attention_layers as layers
import pytest
import torch
from attention_layers import Cubes, Fused, Layer, MemoryLayer, PerHead, SelfLayer, Transposed
from torch import Tensor, nn
from weight_graphs import Case, differing, export, find, tokens

from conformance.graphs.process import GraphProcess
from conformance.graphs.weights.projecting import FOLDED, UNKNOWN

ATTENDING = (
    layers.divided,
    layers.query_scaled,
    layers.both_scaled,
    layers.fused_kernel,
    layers.summed,
    layers.written_out,
    layers.normalised_late,
    layers.logarithmic,
    layers.guarded,
    layers.biased,
    layers.causal,
    layers.folded,
    layers.lower_precision,
)
SHAPES: dict[str, tuple[Case, tuple[int, ...], float]] = {
    "no biases": (lambda: Layer(bias=False), (12, 12, 12), 1 / 2),
    "no output projection": (lambda: Layer(output=False), (12, 12, 12), 1 / 2),
    "a width for each role": (lambda: Layer(widths=(10, 7, 9, 11)), (10, 7, 9), 1 / 2),
    "heads wider than tokens": (lambda: Layer(inner=48), (12, 12, 12), 1 / 4),
    "one key head for all": (lambda: Layer(kv_heads=1), (12, 12, 12), 1 / 2),
    "groups of heads": (lambda: Layer(heads=6, kv_heads=2), (12, 12, 12), 1 / math.sqrt(2)),
    "one head": (lambda: Layer(heads=1), (12, 12, 12), 1 / math.sqrt(12)),
    "heads of one feature": (lambda: Layer(heads=12), (12, 12, 12), 1.0),
    "self-attention": (SelfLayer, (12,), 1 / 2),
    "cross-attention": (MemoryLayer, (12, 12), 1 / 2),
}


@pytest.mark.parametrize("attend", ATTENDING, ids=lambda attend: attend.__name__)
def test_every_way_to_attend_is_seen_through(attend: layers.Attend, tmp_path: Path) -> None:
    """However the core is spelt, weights, heads and the standard scale are recovered."""
    module = Layer(attend)
    projections = find(export(tmp_path / "m.onnx", module, tokens(12, 12, 12)))
    assert differing(projections, module) == []
    assert (projections.how, projections.num_heads, projections.num_kv_heads) == ("graph", 3, 3)
    assert projections.scale == 1 / 2
    assert projections.gauge == ""
    assert projections.assumptions == ()


@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_of_layer_is_read(name: str, tmp_path: Path) -> None:
    """Widths, heads and missing parts are those of the module."""
    make, widths, scale = SHAPES[name]
    module = make()
    projections = find(export(tmp_path / "m.onnx", module, tokens(*widths)))
    assert differing(projections, module) == []
    assert (projections.num_heads, projections.num_kv_heads) == (module.heads, module.kv_heads)
    assert projections.scale == scale
    assert (projections.weights.o is None) == (name == "no output projection")


@pytest.mark.parametrize("axes", ["LBE", "LE"])
def test_every_order_of_axes_is_read(axes: str, tmp_path: Path) -> None:
    """Positions first, and a single item without a batch."""
    module = Layer(order=axes)
    inputs = [t.transpose(0, 1).contiguous() if axes == "LBE" else t[0] for t in tokens(12, 12, 12)]
    projections = find(export(tmp_path / "m.onnx", module, inputs, axes=axes), axes=axes)
    assert differing(projections, module) == []


@pytest.mark.parametrize("count", [1, 2])
def test_fixed_sizes_are_enough(count: int, tmp_path: Path) -> None:
    """A graph frozen at its traced sizes, even at one item, is read with these."""
    module = Layer()
    inputs = [part[:count] for part in tokens(12, 12, 12)]
    projections = find(export(tmp_path / "m.onnx", module, inputs, dynamic=False))
    assert differing(projections, module) == []


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_weights_keep_their_dtype(dtype: torch.dtype, tmp_path: Path) -> None:
    """A graph in another precision gives its own numbers."""
    module = Layer().to(dtype)
    projections = find(export(tmp_path / "m.onnx", module, tokens(12, 12, 12, dtype=dtype)))
    assert differing(projections, module) == []
    assert projections.weights.q.dtype is dtype
    assert projections.scale == 1 / 2


@pytest.mark.one_in(3)
@pytest.mark.parametrize("opset", [18, 20, 23])
def test_the_newer_exporter_is_read(opset: int, tmp_path: Path) -> None:
    """Its decompositions, and from opset 23 on the standard's own Attention node."""
    module = Layer(layers.fused_kernel)
    path = export(tmp_path / "m.onnx", module, tokens(12, 12, 12), opset=opset, dynamo=True)
    projections = find(path)
    assert differing(projections, module) == []
    assert (projections.scale, projections.gauge) == (1 / 2, "")


class Torchs(nn.Module):
    """torch's own module, its biases not zero."""

    def __init__(self, *, need_weights: bool, **options: int | bool) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(12, 3, **options)
        self.need_weights = need_weights
        for name, parameter in self.inner.named_parameters():
            if name.endswith("bias"):
                nn.init.normal_(parameter)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """The answer alone."""
        return self.inner(query, key, value, need_weights=self.need_weights)[0]


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("options", [{}, {"bias": False}, {"kdim": 7, "vdim": 9}], ids=str)
def test_torchs_own_module_is_read(
    need_weights: bool,  # noqa: FBT001 (a parameter)
    options: dict[str, int],
    tmp_path: Path,
) -> None:
    """nn.MultiheadAttention on both of its paths, fused and separate matrices."""
    module = Torchs(need_weights=need_weights, batch_first=True, **options)
    widths = (12, options.get("kdim", 12), options.get("vdim", 12))
    projections = find(export(tmp_path / "m.onnx", module, tokens(*widths)))
    assert differing(projections, module.inner) == []
    assert (projections.num_heads, projections.scale) == (3, 1 / 2)


@pytest.mark.parametrize("layout", ["blocks", "by head"])
def test_fused_rows_are_taken_apart(layout: str, tmp_path: Path) -> None:
    """One matrix for query, key and value, in blocks or head by head."""
    module = Fused(layout)
    projections = find(export(tmp_path / "m.onnx", module, tokens(12)))
    for part, name in enumerate("qkv"):
        rows = module.rows(module.qkv.weight.detach(), part)
        bias = module.rows(module.qkv.bias.detach(), part)
        assert torch.equal(getattr(projections.weights, name), rows)
        assert torch.equal(getattr(projections.weights, f"{name}_bias"), bias)
    assert projections.gauge == ""


def test_an_order_of_heads_in_a_fused_matrix_is_the_graphs_word(tmp_path: Path) -> None:
    """Rows that lie head inside feature are put in order, and the gauge says whose order it is."""
    module = Fused("heads inside")
    projections = find(export(tmp_path / "m.onnx", module, tokens(12)))
    assert torch.equal(projections.weights.q, module.rows(module.qkv.weight.detach(), 0))
    assert "the order of the query rows" in projections.gauge


def test_matrices_stored_the_other_way_round_are_read(tmp_path: Path) -> None:
    """``[in, out]``, query, key and value side by side."""
    module = Transposed()
    projections = find(export(tmp_path / "m.onnx", module, tokens(12)))
    assert torch.equal(projections.weights.k, module.c_attn.detach()[:, 12:24].T)
    assert torch.equal(projections.weights.v_bias, module.c_attn_bias.detach()[24:])
    assert torch.equal(projections.weights.o, module.c_proj.detach().T)


def test_kernels_of_three_axes_are_read(tmp_path: Path) -> None:
    """``[E, H, D]`` in, ``[H, D, E]`` out, contracted by Einsum."""
    module = Cubes()
    projections = find(export(tmp_path / "m.onnx", module, tokens(12, 12)))
    assert torch.equal(projections.weights.q, module.wq.detach().permute(1, 2, 0).reshape(12, 12))
    assert torch.equal(projections.weights.k_bias, module.bk.detach().flatten())
    assert torch.equal(projections.weights.o, module.wo.detach().permute(2, 0, 1).reshape(12, 12))
    assert projections.num_heads == 3


def test_a_softmax_for_each_head_is_one_attention(tmp_path: Path) -> None:
    """Heads that are computed one by one are put together in the order of their concatenation."""
    module = PerHead()
    projections = find(export(tmp_path / "m.onnx", module, tokens(12, 12, 12)))
    assert projections.num_heads == 3
    assert torch.equal(
        projections.weights.v, torch.cat([head.weight.detach() for head in module.v])
    )
    assert torch.equal(
        projections.weights.q_bias, torch.cat([head.bias.detach() for head in module.q])
    )
    assert torch.equal(projections.weights.o, module.o.weight.detach())


def test_a_missing_scale_is_a_gauge(tmp_path: Path) -> None:
    """Without a factor nobody can tell a folded scale from none: judged there, and said."""
    projections = find(export(tmp_path / "m.onnx", Layer(layers.unscaled), tokens(12, 12, 12)))
    assert (projections.scale, projections.gauge) == (1.0, FOLDED)


def test_a_wrong_scale_is_measured(tmp_path: Path) -> None:
    """An explicit factor is reported for what it is, without a gauge: the standard judges it."""
    projections = find(export(tmp_path / "m.onnx", Layer(layers.overscaled), tokens(12, 12, 12)))
    assert round(projections.scale, 5) == 1 / 4
    assert projections.gauge == ""


def by_length(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Divided by the root of the number of queries."""
    return (query @ key.transpose(-1, -2) * query.shape[-2] ** -0.5).softmax(-1) @ value


def double(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """A softmax of a softmax."""
    logits = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    return logits.softmax(-1).softmax(-1) @ value


def test_a_softmax_of_a_softmax_is_one_attention(tmp_path: Path) -> None:
    """The projections around it are read: what is wrong is between the products."""
    module = Layer(double)
    projections = find(export(tmp_path / "m.onnx", module, tokens(12, 12, 12)))
    assert differing(projections, module) == []
    assert projections.scale == 1 / 2


def test_a_scale_by_the_length_is_not_taken_for_the_standards(tmp_path: Path) -> None:
    """The sizes of the questions are no head sizes, so that their roots are not the scale."""
    projections = find(export(tmp_path / "m.onnx", Layer(by_length), tokens(12, 12, 12)))
    assert projections.scale != 1 / 2
    assert projections.gauge == ""


class Bent(Layer):
    """Queries that are no affine map of tokens."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attention with queries that were squashed."""
        return super().forward(query.tanh(), key, value)


class Twice(SelfLayer):
    """Two attentions, one behind the other."""

    def forward(self, x: Tensor) -> Tensor:
        """The layer applied to its own answer."""
        return super().forward(super().forward(x))


class Residual(SelfLayer):
    """A layer that adds its input."""

    def forward(self, x: Tensor) -> Tensor:
        """Attention and the tokens."""
        return x + super().forward(x)


@pytest.mark.parametrize(
    ("make", "count", "reason"),
    [
        (Bent, 3, "the query heads are no affine map of single tokens"),
        (Twice, 1, "2 attentions follow one another in the graph"),
        (Residual, 1, "the answer is no stored matrix times the heads side by side"),
    ],
    ids=["bent", "twice", "residual"],
)
def test_what_cannot_be_read_is_said(make: Case, count: int, reason: str, tmp_path: Path) -> None:
    """No weights rather than wrong ones: the gauge says what is not verified, and why."""
    projections = find(export(tmp_path / "m.onnx", make(), tokens(*[12] * count)))
    assert projections.weights is None
    assert (projections.how, projections.gauge) == ("none", UNKNOWN)
    assert UNKNOWN == "attention up to gauge; scale and head layout not verified"
    assert any(reason in sentence for sentence in projections.assumptions)


def test_stages_can_be_tapped(tmp_path: Path) -> None:
    """The names are tensors of the graph with the shapes of their stages."""
    path = export(tmp_path / "m.onnx", Layer(), tokens(12, 12, 12))
    stages = find(path).stages
    feeds = {
        name: part.numpy()
        for name, part in zip(("query", "key", "value"), tokens(12, 12, 12), strict=True)
    }
    with GraphProcess(path) as process:
        tapped = process.run(feeds, taps=(stages.query, stages.scores, stages.weights))
    assert tapped[stages.query].shape == (2, 3, 4, 4)
    assert tapped[stages.scores].shape == (2, 3, 4, 5)
    assert abs(tapped[stages.weights].sum(-1) - 1).max() < 1e-6


def test_a_graph_in_its_own_process_is_read(tmp_path: Path) -> None:
    """The same through the child process that judges graphs."""
    module = Layer(layers.both_scaled, kv_heads=1)
    path = export(tmp_path / "m.onnx", module, tokens(12, 12, 12))
    projections = find(path, process=GraphProcess)
    assert differing(projections, module) == []
    assert (projections.num_kv_heads, projections.scale) == (1, 1 / 2)
