from __future__ import annotations

import copy
import threading
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from attention_modules import (
    HEADS,
    WIDTH,
    Around,
    Cloned,
    Fused,
    HeadList,
    Memory,
    Named,
    Nameless,
    OneHead,
    RawParameters,
    SequenceFirst,
    Transposed,
    WideHeads,
)
from refusals import refused
from torch import Tensor, nn
from torch.nn.utils import prune
from wrapped import BASE, assumed, drawn_inputs, drawn_weights, is_golden

import conformance
from conformance import DeclarationError, Geometry
from conformance.base.profile import PROFILES
from conformance.running.runner import CandidateRun

SPELLINGS = [
    "q_proj k_proj v_proj out_proj",
    "W_q W_k W_v W_o",
    "W_q W_k W_v W",
    "wq wk wv wo",
    "w_qs w_ks w_vs fc",
    "linear_q linear_k linear_v linear_o",
    "query key value dense",
    "q_linear k_linear v_linear out",
    "to_q to_k to_v to_out",
    "toqueries tokeys tovalues unifyheads",
    "queries keys values fc_out",
    "query_projection key_projection value_projection out_projection",
    "WQ WK WV WO",
    "fc_q fc_k fc_v proj",
]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_names_of_projections(spelling: str) -> None:
    """The four Linears are found under each common spelling of their names."""
    q, k, v, o = spelling.split()
    candidate = conformance.module(Named((q, k, v, o)))
    assert is_golden(candidate)
    assert assumed(candidate, f"query: {q}.weight")
    assert assumed(candidate, f"output: {o}.weight")


@pytest.mark.parametrize(
    ("module", "inputs"),
    [
        pytest.param(Fused("blocks"), "self", id="fused-blocks"),
        pytest.param(Fused("grouped"), "self", id="fused-by-head"),
        pytest.param(Fused("hdk"), "self", id="fused-hdk"),
        pytest.param(Fused("dkh"), "self", id="fused-dkh"),
        pytest.param(Transposed(), "self", id="conv1d"),
        pytest.param(Memory(), "memory", id="fused-kv"),
        pytest.param(HeadList(), "self", id="a-module-a-head"),
        pytest.param(OneHead(), "self", id="no-output-projection"),
        pytest.param(RawParameters(), "separate", id="bare-parameters"),
        pytest.param(SequenceFirst(), "separate", id="tokens-before-batch"),
        pytest.param(Around(), "self", id="around-torch"),
        pytest.param(Cloned(), "separate", id="list-of-four"),
        pytest.param(Nameless(), "separate", id="nameless"),
    ],
)
def test_module_answers_as_the_golden(module: nn.Module, inputs: str) -> None:
    """With a problem's weights loaded, each way to write the layer gives the golden answer."""
    candidate = conformance.module(module)
    assert candidate.declaration.inputs == inputs
    assert is_golden(candidate)


def test_nameless_roles_are_found_by_agreement() -> None:
    """Linears a, b, c, d get the roles under which the module is golden, and heads their number."""
    candidate = conformance.module(Nameless())
    notes = candidate.declaration.assumptions[:5]
    assert notes == (
        "query: c.weight",
        "key: a.weight",
        "value: d.weight",
        "output: b.weight",
        "3 heads: with these it agrees with the golden reference",
    )


def test_fewer_key_value_heads() -> None:
    """Key rows that make fewer heads declare grouped heads, and pin their number."""
    module = Named(("q_proj", "k_proj", "v_proj", "o_proj"), kv_heads=1)
    candidate = conformance.module(module)
    assert "gqa" in candidate.declaration.features
    assert candidate.declaration.pins.sizes["num_kv_heads"] == (1,)
    assert is_golden(candidate)


def test_absent_biases_are_declared() -> None:
    """Projections without a bias are declared so, and problems then draw none."""
    semantics = conformance.module(Memory()).declaration.semantics
    assert not semantics.query_bias
    assert not semantics.key_bias
    assert not semantics.value_bias
    assert semantics.output_bias


def test_biases_that_are_not_given_are_zero() -> None:
    """A module with biases gets zeros for those that a problem leaves out."""
    candidate = conformance.module(Named(("q", "k", "v", "o")))
    geometry = candidate.declaration.pins.apply(BASE)
    bare = drawn_weights(
        geometry,
        candidate.declaration.semantics.replace(
            query_bias=False, key_bias=False, value_bias=False, output_bias=False
        ),
    )
    forward = candidate(geometry, bare)
    assert all(
        not parameter.any() for name, parameter in forward.named_parameters() if "bias" in name
    )


def test_widths_and_heads_are_pinned() -> None:
    """An instance pins every width and head size to those of its matrices."""
    sizes = conformance.module(Memory()).declaration.pins.sizes
    assert {name: pin[0] for name, pin in sizes.items()} == {
        "num_heads": HEADS,
        "num_kv_heads": HEADS,
        "head_size": 4,
        "value_head_size": 4,
        "query_size": WIDTH,
        "key_size": 8,
        "value_size": 8,
        "output_size": WIDTH,
    }


def test_instance_is_not_changed() -> None:
    """Neither the search nor a problem's weights touch the user's instance or its mode."""
    module = Around().train()
    before = copy.deepcopy(module.state_dict())
    assert is_golden(conformance.module(module))
    assert module.training
    assert module.state_dict().keys() == before.keys()
    assert all(torch.equal(module.state_dict()[name], tensor) for name, tensor in before.items())
    assert not module._forward_hooks


def test_forward_is_a_module_with_stable_names() -> None:
    """What the builder makes has the user's parameter names, and every problem the same ones."""
    candidate = conformance.module(Named(("q", "k", "v", "o")))
    geometry = candidate.declaration.pins.apply(BASE)
    weights = drawn_weights(geometry, candidate.declaration.semantics)
    first, second = (candidate(geometry, weights) for _ in range(2))
    assert list(first.state_dict())[:2] == ["module.q.weight", "module.q.bias"]
    assert first is not second
    assert first.state_dict().keys() == second.state_dict().keys()


def test_dropout_stays_as_it_is() -> None:
    """A module in training mode with dropout is judged in eval mode, where it is golden."""
    module = Memory().train()
    assert is_golden(conformance.module(module))


@pytest.mark.parametrize("kind", [Named, Fused, nn.ReLU])
def test_class_that_cannot_be_constructed_or_understood(kind: type[nn.Module]) -> None:
    """A class without usable sizes or projections is refused with what to pass."""
    with pytest.raises(DeclarationError, match=r"pass (an instance|a function)"):
        conformance.module(kind)


def test_class_without_arguments() -> None:
    """A class that needs no arguments is constructed so, and the declaration says it."""
    candidate = conformance.module(Nameless)
    assert assumed(candidate, "constructed as Nameless()")
    assert candidate.name == "Nameless"
    assert is_golden(candidate)


def test_class_with_sizes_by_name() -> None:
    """A class is constructed from parameters that sound like sizes."""
    candidate = conformance.module(WideHeads)
    assert assumed(
        candidate, "constructed as WideHeads(token_size=24, qk_size=8, v_size=8, head_num=3)"
    )
    assert is_golden(candidate, dtype="float32")


class Groups(nn.Module):
    """Heads in groups, which share keys and values."""

    def __init__(self, hidden_size: int, num_heads: int, num_kv_heads: int) -> None:
        super().__init__()
        size = hidden_size // num_heads
        self.counts = num_heads, num_kv_heads, num_kv_heads
        self.q_proj, self.k_proj, self.v_proj = (
            nn.Linear(hidden_size, count * size) for count in self.counts
        )
        self.o_proj = nn.Linear(hidden_size, hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        """Self-attention."""
        projections = zip((self.q_proj, self.k_proj, self.v_proj), self.counts, strict=True)
        q, k, v = (linear(x).unflatten(-1, (n, -1)).transpose(1, 2) for linear, n in projections)
        heads = nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        projected: Tensor = self.o_proj(heads.transpose(1, 2).flatten(2))
        return projected


@pytest.mark.parametrize(
    ("heads", "shown"),
    [
        (None, "hidden_size=48, num_heads=6, num_kv_heads=2"),
        (8, "hidden_size=64, num_heads=8, num_kv_heads=2"),
        (1, "hidden_size=8, num_heads=1, num_kv_heads=1"),
    ],
)
def test_class_that_is_told_its_key_value_heads(heads: int | None, shown: str) -> None:
    """It gets fewer than heads, where it can: else the way it shares them would not be judged."""
    candidate = conformance.module(Groups, num_heads=heads)
    assert assumed(candidate, f"constructed as Groups({shown})")
    assert is_golden(candidate)


def wide_heads(geometry: Geometry) -> WideHeads:
    return WideHeads(
        geometry.query_size, geometry.head_size, geometry.value_head_size, geometry.num_heads
    )


@pytest.mark.parametrize("heads", [1, 2, 5])
def test_constructor_draws_every_size(heads: int) -> None:
    """With ``construct=`` each geometry gets a module of its own sizes."""
    candidate = conformance.module(
        WideHeads, construct=wide_heads, geometry={"output_size": "query_size"}
    )
    base = BASE.replace(
        num_heads=heads,
        num_kv_heads=heads,
        head_size=3,
        value_head_size=5,
        query_size=10,
        key_size=10,
        value_size=10,
        output_size=10,
    )
    assert is_golden(candidate, base, dtype="float32")


def test_constructor_that_ignores_sizes() -> None:
    """A class that cannot have the drawn sizes is refused with the name of ``geometry=``."""
    with pytest.raises(DeclarationError, match=r"^W\.weight holds \[10, 18\].*geometry="):
        conformance.module(WideHeads, construct=wide_heads)


def test_mask_by_another_name() -> None:
    """``call={"keep": "mask"}`` declares the mask and passes it under the module's name."""
    candidate = conformance.module(Cloned(), call={"keep": "mask"})
    assert candidate.declaration.masks == ("keep",)
    geometry = candidate.declaration.pins.apply(BASE)
    weights = drawn_weights(geometry, candidate.declaration.semantics)
    forward = candidate(geometry, weights).eval()
    query, key, value = drawn_inputs(geometry, "separate")
    keep = torch.ones(1, 1, 1, 7, dtype=torch.bool)
    keep[..., 4:] = False
    output = forward(query, key, value, keep=keep)
    assert torch.equal(
        output, forward(query, key.index_fill(1, torch.arange(4, 7), 9.0), value, keep=keep)
    )
    assert not torch.equal(output, forward(query, key, value))


def test_call_as_a_function() -> None:
    """``call=`` may be a function, here one that brings arguments into the module's order."""

    def swapped(module: nn.Module, query: Tensor, key: Tensor, value: Tensor) -> Any:
        return module(value, key, query, None)

    assert is_golden(conformance.module(RawParameters(), call=swapped))


def test_inputs_by_keyword_alone() -> None:
    """Query, key and value that are taken by keyword only are found by their names."""

    class ByKeyword(Named):
        def forward(self, *, value: Tensor, query: Tensor, key: Tensor) -> Tensor:
            """The same under keywords."""
            return super().forward(query, key, value)

    assert is_golden(conformance.module(ByKeyword(("q", "k", "v", "o"))))


def test_roles_told_by_the_user() -> None:
    """``projections=`` and ``num_heads=`` say what a module without names and agreement cannot."""
    roles = {"q": "c", "k": "a", "v": "d", "o": "b"}
    candidate = conformance.module(Nameless(1.5), projections=roles, num_heads=HEADS)
    assert assumed(candidate, "query: c.weight")
    assert not is_golden(candidate)


def test_wrong_scale_is_not_hidden() -> None:
    """A named module with a wrong scale is wrapped all the same, and is seen not to be golden."""

    class Slightly(Named):
        def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return super().forward(query * (1 + 1e-9), key, value)

    assert not is_golden(conformance.module(Slightly(("q", "k", "v", "o"))))


def test_no_mask_is_said() -> None:
    """Without a declared mask the declaration says that the module's own is left alone."""
    candidate = conformance.module(Cloned())
    assert assumed(
        candidate,
        "no mask declared (its mask is left alone): mask clauses are not applicable",
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_answer_has_the_dtype_of_the_weights(dtype: torch.dtype) -> None:
    """The copy moves to the dtype of a problem's weights."""
    candidate = conformance.module(Named(("q", "k", "v", "o")).double())
    geometry = candidate.declaration.pins.apply(BASE)
    weights = drawn_weights(geometry, candidate.declaration.semantics)
    own = {name: tensor for name, tensor in vars(weights).items() if tensor is not None}
    moved = type(weights)(**{name: tensor.to(dtype) for name, tensor in own.items()})
    forward = candidate(geometry, moved)
    tokens = (entry.to(dtype) for entry in drawn_inputs(geometry, "separate"))
    assert forward(*tokens).dtype == dtype


def uncopiable() -> nn.Module:
    module = Named(("q", "k", "v", "o"))
    module.lock = threading.Lock()  # type: ignore[assignment]  # Python refuses to copy it
    return module


def scripted() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # people still have such modules
        return torch.jit.script(nn.Linear(2, 2))


def test_refusals_name_what_to_pass() -> None:
    """Each thing that cannot be wrapped is refused in one sentence."""
    with refused("conformance.module takes a torch.nn.Module class or instance, not 3"):
        conformance.module(3)  # type: ignore[arg-type]
    with refused("num_heads is 0: give a positive integer"):
        conformance.module(Nameless(), num_heads=0)
    with refused("call renames 'kep', which is not declared; did you mean 'keep'?"):
        conformance.module(Cloned(), call={"kep": "mask"})
    with refused("conformance.module got an unknown argument 'mask'; did you mean 'masks'?"):
        conformance.module(Nameless(), mask="keep")
    with refused(
        "Cloned.forward has no parameter 'keep' (it has query, key, value, mask), but 'keep' is "
        "declared: pass call={'keep': '…'} with the name it has there"
    ):
        conformance.module(Cloned(), masks=["keep"])
    with refused(
        "the names in Nameless (a, b, c, d) do not say which projection is which, and no "
        "assignment with 3 heads agrees with the golden reference: say which is which, as in "
        "projections={'q': "
        "'a', 'k': 'b', 'v': 'c', 'o': 'd'}, or declare it with conformance.fixed_layer "
        "(conformance.check(module) judges the attention in it alone, where it finds one)"
    ):
        of_heads = {"num_heads": HEADS, "num_kv_heads": HEADS}
        conformance.module(Nameless(1.5), inputs="separate", **of_heads)
    with pytest.raises(DeclarationError, match=r"^Named cannot be copied .*: pass its class and"):
        conformance.module(uncopiable())
    with refused("scripted is scripted: give the module it was scripted from, or use fixed_layer"):
        conformance.module(scripted(), name="scripted")
    with refused(
        "TransformerEncoderLayer is more than an attention: conformance.model judges it as a "
        "whole, and conformance.module one of its attentions, such as .self_attn of a layer"
    ):
        conformance.module(nn.TransformerEncoderLayer(8, 2, 16))


class LowRank(nn.Module):
    """Keys and values are made from one small matrix, queries from a small one of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads = HEADS
        self.q_down, self.kv_down = (nn.Linear(WIDTH, 5, bias=False) for _ in range(2))
        self.q_up, self.k_up, self.v_up = (nn.Linear(5, WIDTH) for _ in range(3))
        self.out_proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens ``[B, L, E]``."""
        kv = self.kv_down(x)
        tokens = self.q_up(self.q_down(x)), self.k_up(kv), self.v_up(kv)
        q, k, v = (one.unflatten(-1, (HEADS, -1)).transpose(1, 2) for one in tokens)
        mixed = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v
        joined: Tensor = self.out_proj(mixed.transpose(1, 2).flatten(2))
        return joined


def test_products_of_low_rank_are_projections() -> None:
    """A module keeps them as its own weights, in formats in which both roundings are allowed."""
    candidate = conformance.module(LowRank(), dtypes=["float32", "float64"])
    assert is_golden(candidate)
    assert assumed(candidate, "key: k_up.weight @ kv_down.weight")
    assert conformance.check(candidate, profile="smoke", only=["numerics.golden"]).conforms
    with pytest.raises(DeclarationError, match=r"promise dtypes=\['float32', 'float64'\]$"):
        conformance.module(LowRank(), dtypes=["bfloat16"])


def test_one_matrix_for_two_projections_is_kept() -> None:
    """No other weights can be loaded into it."""
    module = Named(("q", "k", "v", "o"))
    module.k.weight = module.q.weight
    candidate = conformance.module(module)
    assert assumed(candidate, "q.weight and k.weight are one tensor: it keeps its own weights")
    assert conformance.check(candidate, profile="smoke", only=["numerics.golden"]).conforms


@pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated:FutureWarning")
@pytest.mark.parametrize(
    "compute",
    [
        nn.utils.parametrizations.weight_norm,
        nn.utils.weight_norm,
        nn.utils.spectral_norm,
        partial(prune.l1_unstructured, name="weight", amount=0.3),
    ],
)
def test_weights_that_are_computed_are_loaded(compute: Callable[[nn.Module], Any]) -> None:
    """A copy has them as parameters; the instance goes on to compute them."""
    module = Named(("q", "k", "v", "o")).eval()
    for part in (module.q, module.k, module.v, module.o):
        compute(part)
    tokens = torch.randn(2, 3, WIDTH)
    before, names = module(tokens, tokens, tokens), [name for name, _ in module.named_parameters()]
    candidate = conformance.module(module, num_heads=HEADS)
    assert is_golden(candidate)
    assert assumed(candidate, "weights that it computes from other parameters are judged as its")
    assert torch.equal(module(tokens, tokens, tokens), before)
    assert [name for name, _ in module.named_parameters()] == names


class Gained(nn.Module):
    """Tokens times a gain that lies beside the projection, as norms that are written by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(WIDTH))

    def forward(self, tokens: Tensor) -> Tensor:
        """Scaled."""
        return tokens * self.gamma


def test_the_gain_of_a_norm_is_no_bias() -> None:
    """A vector called gamma in the projection's own sequence is left out, and the rest is read."""
    module = Fused("blocks")
    module.qkv = nn.Sequential(Gained(), module.qkv)
    candidate = conformance.module(module)
    assert is_golden(candidate)
    assert not assumed(candidate, "gamma")


@pytest.mark.nightly
def test_heads_that_nothing_says() -> None:
    """A named module that is never golden and does not say its heads needs ``num_heads=``."""
    roles = {"q": "c", "k": "a", "v": "d", "o": "b"}
    with refused(
        "Nameless does not say how many heads it has, and with no number of them does it agree "
        "with the golden reference: pass num_heads="
    ):
        conformance.module(Nameless(1.5), projections=roles)


def test_number_of_heads_that_does_not_divide() -> None:
    """A number of heads that the matrices cannot have is refused with their shapes."""
    with pytest.raises(DeclarationError, match=r"q \[12, 12\].*cannot be multi-head .* 5 heads"):
        conformance.module(Named(("q", "k", "v", "o")), num_heads=5)
    with pytest.raises(DeclarationError, match=r"q \[12, 12\].*cannot be multi-head .* 3 heads"):
        conformance.module(Named(("q", "k", "v", "o")), num_kv_heads=2)


def test_attribute_that_is_no_number_of_heads() -> None:
    """An integer that only sounds like the heads gives way to the number that is golden."""
    module = Nameless()
    module.h = 5
    assert assumed(conformance.module(module), "3 heads: with these it agrees")


def test_raising_module_is_wrapped() -> None:
    """A module that raises is the run's to judge: it is wrapped, and the declaration says so."""

    class Raising(Named):
        def forward(self, *_inputs: Tensor) -> Tensor:
            msg = "no kernel"
            raise RuntimeError(msg)

    candidate = conformance.module(Raising(("q", "k", "v", "o")), inputs="separate")
    assert assumed(candidate, "a trial call raised RuntimeError: no kernel")


class WithoutOutput(nn.Module):
    """Heads merged and returned as they are, with rotary positions kept as complex numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads = HEADS
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.register_buffer("turn", torch.polar(torch.ones(1), torch.full((1,), 0.5)))
        self.register_buffer("zero", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        """The merged heads of one input."""
        projected = (part(x) for part in (self.query, self.key, self.value))
        query, key, value = (heads.unflatten(-1, (self.num_heads, -1)) for heads in projected)
        query, key = self._turned(query).transpose(1, 2), self._turned(key).transpose(1, 2)
        scores = query @ key.mT / query.shape[-1] ** 0.5 + self.zero
        return (scores.softmax(-1) @ value.transpose(1, 2)).transpose(1, 2).flatten(2)

    def _turned(self, heads: Tensor) -> Tensor:
        """Query and key turned alike: their products stay."""
        pairs = torch.view_as_complex(heads.double().unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * self.turn).flatten(-2).to(heads.dtype)


def test_module_without_an_output_is_put_in_each_dtype() -> None:
    """Own weights, buffers beside them, and complex ones that stay complex: right in each dtype."""
    dtypes = ["float32", "float16", "bfloat16"]
    candidate = conformance.module(WithoutOutput(), dtypes=dtypes)
    assert assumed(candidate, "no output projection")
    slugs = ("numerics.golden", "shape.dtype", "shape.output")
    run = CandidateRun(candidate, profile=PROFILES["quick"], only=slugs)
    results = [run.run(planned) for planned in run.planned()]
    assert [(result.dtype, result.status) for result in results] == [
        (dtype, "passed") for dtype in dtypes for _ in slugs
    ]


class PairOfTables(nn.Module):
    """One projection for all; what its pair of tables is, it keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(4, 4) for _ in range(4))
        self.seen: list[Any] = []

    def forward(self, x: Tensor, position_embeddings: tuple[Tensor, Tensor]) -> Tensor:
        """Attend with one head."""
        self.seen.append(position_embeddings)
        cos, sin = position_embeddings

        def turn(heads: Tensor) -> Tensor:
            one, two = heads.chunk(2, dim=-1)
            return heads * cos + torch.cat((-two, one), dim=-1) * sin

        weights = (turn(self.q_proj(x)) @ turn(self.k_proj(x)).mT / 2.0).softmax(dim=-1)
        return self.o_proj(weights @ self.v_proj(x))


def test_a_pair_of_tables_is_one_parameter() -> None:
    """Keywords of the same name are handed over as a tuple, in the order of their names."""
    layer = conformance.module(
        PairOfTables(),
        inputs="self",
        num_heads=1,
        semantics=conformance.Semantics(rotary="halves"),
        rotary_tables="cos-sin",
        keywords={"cos": "position_embeddings", "sin": "position_embeddings"},
    )
    report = conformance.check(layer, profile="quick", only=["position.tables"])
    assert report.candidates[0].verdict.startswith("conforms")
