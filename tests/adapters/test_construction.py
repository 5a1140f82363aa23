"""Classes are constructed by the words of their parameters' names, or with what they read."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import conformance
from conformance.adapters.construction import LONGEST, Sizes, instance_of, materialised
from conformance.errors import ConstructionError


class Attention(nn.Module):
    """Attention of some sizes, with a triangle that is stored."""

    def __init__(self, width: int, heads: int, length: int = 8) -> None:
        super().__init__()
        self.num_heads = heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.register_buffer("later", torch.ones(length, length, dtype=torch.bool).triu(1))

    def forward(self, x: Tensor) -> Tensor:
        """Of tokens."""
        count = x.shape[1]
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        logits = q @ k.mT / q.shape[-1] ** 0.5
        logits = logits.masked_fill(self.later[:count, :count], -torch.inf)
        answer: Tensor = self.proj((logits.softmax(-1) @ v).transpose(1, 2).flatten(2))
        return answer


class Configured(Attention):
    """Reads its sizes of an object; one of them may be absent."""

    def __init__(self, config: Any) -> None:
        assert config.n_embd % config.n_head == 0
        super().__init__(config.n_embd, config.n_head, config.block_size)
        self.drop = nn.Dropout(config.resid_pdrop)
        self.flash = getattr(config, "flash_of_some_kind", "absent")


class Sized:
    """Settings with the sizes of a large model."""

    def __init__(self, dim: int = 768, n_heads: int = 16, n_layers: int = 12) -> None:
        self.dim, self.n_heads, self.n_layers = dim, n_heads, n_layers


class Decoder(nn.Module):
    """A model of ids whose settings may be left out."""

    def __init__(self, params: Sized | None = None, depth: int = 12) -> None:
        super().__init__()
        own = params or Sized()
        self.table = nn.Embedding(10, own.dim)
        self.layers = nn.ModuleList(Attention(own.dim, own.n_heads) for _ in range(depth))

    def forward(self, ids: Tensor) -> Tensor:
        """Of ids."""
        x: Tensor = self.table(ids)
        for layer in self.layers:
            x = x + layer(x)
        return x


class FromDict(Attention):
    """Reads its sizes of a dict."""

    def __init__(self, cfg: dict[str, int]) -> None:
        super().__init__(cfg["emb_dim"], cfg["n_heads"], cfg["context_length"])


class Worded(Attention):
    """Reads settings within settings by words that say sizes, a list, and a word that it knows."""

    def __init__(self, config: Any) -> None:
        part = config["model"]["attention"]
        assert part["norm"] in {"before", "after"}
        super().__init__(config["dims"][0], part["heads"], {"short": 16, "long": 32}[part["kind"]])


class Within(Attention):
    """Reads sizes of a dict in an object, and is told what nobody can guess."""

    def __init__(self, config: Any, vis: Any) -> None:
        heads, _ = config.attention["num_heads"], config.attention["p"]
        assert not config.strange
        super().__init__(config.hidden_size, heads)
        self.vis = vis


class OfPictures(Attention):
    """Takes the two sides of a picture."""

    def __init__(self, inp: int, image_size: tuple[int, int]) -> None:
        height, width = image_size
        super().__init__(inp, 3, height * width)


class OfLayer(Attention):
    """Reads its sizes of an object, and is told which layer it is."""

    def __init__(self, config: Any, layer_idx: int) -> None:
        super().__init__(config.hidden_size, config.num_attention_heads)
        self.layer_idx = layer_idx


@dataclass
class Settings:
    """Settings with large defaults, of which none may be a boolean."""

    n_embd: int = 4096
    n_head: int = 32
    rope: dict[str, float] | None = None

    def __post_init__(self) -> None:
        self.scale = float((self.n_embd // self.n_head) ** -0.5)


class Annotated(Attention):
    """Reads settings of the class that its annotation names."""

    def __init__(self, config: Settings, block_idx: int) -> None:
        super().__init__(config.n_embd, config.n_head)
        self.scale, self.block_idx = config.scale, block_idx
        assert config.rope is None


class LargeWidth(Attention):
    """A width of 512 and 8 heads, where nobody says otherwise."""

    def __init__(self, d_model: int = 512, num_heads: int = 8) -> None:
        super().__init__(d_model, num_heads)


class Unspoken(Attention):
    """A parameter whose name says no size."""

    def __init__(self, thing: int, heads: int) -> None:
        super().__init__(thing, heads)


class LargeHeads(Attention):
    """Heads of 64 channels, where nobody says otherwise."""

    def __init__(self, dim: int, heads: int = 2, dim_head: int = 64) -> None:
        super().__init__(heads * dim_head, heads)
        self.wider, self.narrower = (
            nn.Linear(dim, heads * dim_head),
            nn.Linear(heads * dim_head, dim),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Of tokens that are projected first."""
        answer: Tensor = self.narrower(super().forward(self.wider(x)))
        return answer


def test_defaults_of_large_models_are_made_small() -> None:
    """Sizes, those of settings that may be left out, too, and layers; the model answers ids."""
    built, how = instance_of(Decoder, None)
    assert isinstance(built, Decoder)
    assert built.table.weight.shape[1] < Sized().dim
    assert len(built.layers) == 2
    assert "depth=2" in how


class Keyworded:
    """Settings that take any keyword."""

    def __init__(self, dim: int = 768, **more: int) -> None:
        self.dim, self.num_heads = dim, more.get("num_heads", 16)


class OfKeyworded(Attention):
    """Its heads would be too small for the width alone."""

    def __init__(self, config: Keyworded) -> None:
        super().__init__(config.dim, config.num_heads)
        self.config = config


def test_settings_that_take_any_keyword_have_their_defaults_as_fields() -> None:
    """A width without its number of heads would make heads of another size."""
    built, _ = instance_of(OfKeyworded, None)
    assert isinstance(built, OfKeyworded)
    assert built.config.dim // built.config.num_heads == 8


@pytest.mark.parametrize(
    ("kind", "shown"),
    [
        (Configured, "Configured(config=SimpleNamespace(n_embd=24, n_head=3, block_size=1280"),
        (FromDict, "FromDict(cfg={'emb_dim': 24, 'n_heads': 3, 'context_length': 1280})"),
        (LargeHeads, "LargeHeads(dim=24, dim_head=8)"),
        (OfLayer, "OfLayer(config=SimpleNamespace(hidden_size=24, num_attention_heads=3), layer"),
        (
            Within,
            "Within(config=SimpleNamespace(attention={'num_heads': 3, 'p': 0.1}, strange=False,",
        ),
        (
            Worded,
            "Worded(config={'model': {'attention': {'norm': 'after', 'heads': 3, 'kind': 'long'}},",
        ),
        (OfPictures, "OfPictures(inp=24, image_size=(4, 4))"),
        (Annotated, "Annotated(config=Settings(n_embd=24, n_head=3), block_idx=0)"),
        (Unspoken, "Unspoken(thing=24, heads=3)"),
    ],
)
def test_classes_are_constructed(kind: type[nn.Module], shown: str) -> None:
    """How it was constructed is said as Python, and the module then answers."""
    built, how = instance_of(kind, None)
    assert how.startswith(f"constructed as {shown}")
    assert built(torch.randn(1, 4, 24)).shape == (1, 4, 24)
    assert getattr(built, "flash", "absent") == "absent"


def test_a_width_that_is_large_by_default_is_made_small() -> None:
    """It has no more places for a mistake than a small one, and takes long."""
    built, how = instance_of(LargeWidth, None)
    assert how == "constructed as LargeWidth(d_model=96)"
    assert built(torch.randn(1, 4, 96)).shape == (1, 4, 96)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("embedding_dims", 24),
        ("spacial_dim", 24),
        ("nb_head", 3),
        ("n_local_heads", 3),
        ("dim_per_head", 8),
        ("head_width", 8),
        ("total_key_depth", 24),
        ("decoder_depth", 1),
        ("max_position_embeddings", LONGEST),
        ("resid_pdrop", 0.1),
        ("qkv_bias", True),
        ("layer_norm_eps", 1e-6),
        ("rope_theta", 10000.0),
    ],
)
def test_names_say_sizes_by_their_words(name: str, value: float) -> None:
    """Whatever stands around the word that counts."""
    assert Sizes(None, [name]).value(name) == value


def test_heads_that_are_shared_are_fewer() -> None:
    """Where a class must be told of them, three query heads share each."""
    for name in ("num_kv_groups", "n_kv_heads", "num_key_value_heads"):
        sizes = Sizes(None, ["n_heads", name])
        assert (sizes.value("n_heads"), sizes.value(name)) == (6, 2)


class Grouped(Attention):
    """Its width has to be divisible by the groups of a norm."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__(channels, heads)
        self.norm = nn.GroupNorm(32, channels)


def test_a_width_is_divisible_by_what_a_refusal_names() -> None:
    """The smallest multiple of the usual width."""
    _, how = instance_of(Grouped, None)
    assert how == "constructed as Grouped(channels=96, heads=3)"


class Lazy(Attention):
    """Its projections learn their widths from the first call."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width, heads)
        self.qkv, self.proj = nn.LazyLinear(3 * width), nn.LazyLinear(width)


def test_lazy_parameters_get_their_sizes() -> None:
    """By a first call with tokens of the usual width; an instance stays as it was."""
    built, _ = instance_of(Lazy, None)
    assert built(torch.randn(1, 4, 24)).shape == (1, 4, 24)
    own = Lazy(24, 3)
    assert materialised(own) is not own
    assert nn.parameter.is_lazy(own.qkv.weight)


num_heads = 2


class HeadsOfItsFile(Attention):
    """Reads a name of its file in place of what it was given."""

    def forward(self, x: Tensor) -> Tensor:
        """Of tokens."""
        size = self.proj.in_features // self.num_heads
        q, k, v = self.qkv(x).reshape(*x.shape[:2], num_heads, 3 * size).chunk(3, -1)
        weights = (q.transpose(1, 2) @ k.transpose(1, 2).mT / size**0.5).softmax(-1)
        answer: Tensor = self.proj((weights @ v.transpose(1, 2)).transpose(1, 2).flatten(2))
        return answer


class InPairs(Attention):
    """Turns pairs of channels of eight heads, unless told otherwise, as FLUX does."""

    def __init__(self, dim: int, num_heads: int = 8) -> None:
        super().__init__(dim, num_heads)

    def forward(self, x: Tensor) -> Tensor:
        """Of tokens."""
        x.unflatten(-1, (self.num_heads, -1, 2))  # raises for odd sizes of heads
        return super().forward(x)


def test_a_width_has_heads_of_a_usual_size_by_default() -> None:
    """Eight heads of 24 channels have three each, which make no pairs."""
    _, said = instance_of(InPairs, None)
    assert said == "constructed as InPairs(dim=64)"


class CutFromAll(Attention):
    """Cuts a size into heads that its name says to be that of one."""

    def __init__(self, d_model: int, d_key: int, n_head: int) -> None:
        super().__init__(d_model, n_head)
        self.size = d_key // n_head

    def forward(self, x: Tensor) -> Tensor:
        """Of tokens."""
        x.unflatten(-1, (self.num_heads, self.size))  # raises for other sizes
        return super().forward(x)


def test_the_size_of_a_head_may_be_that_of_all() -> None:
    """Where no call is answered with a head's, the name gets the width of all heads."""
    _, said = instance_of(CutFromAll, None)
    assert said == "constructed as CutFromAll(d_model=24, d_key=24, n_head=3)"


class OfWhatIsNotThere(Attention):
    """Needs a package after it has read its settings."""

    def __init__(self, nx: int, config: Any) -> None:
        super().__init__(nx, config.n_head)
        importlib.import_module("no_such_package")


def test_what_lacks_is_told_first() -> None:
    """Settings that are taken are no reason for the refusal, where a package is."""
    with pytest.raises(ConstructionError, match="No module named 'no_such_package'"):
        instance_of(OfWhatIsNotThere, None)


def test_heads_that_a_file_names_are_tried() -> None:
    """Notebooks define the number beside the class, and their forward reads it by mistake."""
    built, how = instance_of(HeadsOfItsFile, None)
    assert how == "constructed as HeadsOfItsFile(width=16, heads=2)"
    assert built(torch.randn(1, 4, 16)).shape == (1, 4, 16)


class Chosen:
    """Settings that anybody can make, whose switch is on by default."""

    def __init__(self, width: int = 512, heads: int = 8, *, causal: bool = True) -> None:
        self.width, self.heads, self.causal = width, heads, causal


class OfChoice(Attention):
    """Reads its sizes of an object of a class that its annotation names."""

    def __init__(self, config: Chosen) -> None:
        super().__init__(config.width, config.heads, 1280)
        self.causal = config.causal


class Misread(Attention):
    """Reads other names than the class that its annotation names has."""

    def __init__(self, config: Chosen) -> None:
        super().__init__(config.n_embd, config.n_head)  # type: ignore[attr-defined]  # it has none


def test_settings_that_an_annotated_class_lacks_are_those_that_are_read() -> None:
    """Where the class that an annotation names is no good."""
    assert "n_embd=24" in instance_of(Misread, None)[1]


def test_settings_of_an_annotated_class_are_its_own_but_for_sizes() -> None:
    """A switch is as the class has it by default, and large sizes are small."""
    built, how = instance_of(OfChoice, None)
    assert isinstance(built, OfChoice)
    assert (built.causal, built.qkv.in_features) == (True, 24)
    assert how == "constructed as OfChoice(config=Chosen(width=24, heads=3))"


class OfSwitches(Attention):
    """One of two switches is demanded, and a call reads a setting of its own."""

    def __init__(
        self,
        args: Any,
        width: int,
        heads: int,
        own: bool = False,  # noqa: FBT001, FBT002 (as fairseq writes it)
        other: bool = False,  # noqa: FBT001, FBT002 (the same)
    ) -> None:
        assert own ^ other
        super().__init__(width, heads)
        self.args, self.scaled = args, args.rescale

    def forward(self, x: Tensor) -> Tensor:
        """Of tokens."""
        return 2.0 * super().forward(x) if self.args.doubled else super().forward(x)


def test_switches_that_are_demanded_and_settings_that_a_call_reads() -> None:
    """The first switch is on, and what is read alone is off."""
    _, how = instance_of(OfSwitches, None)
    settings = "SimpleNamespace(rescale=False, doubled=False)"
    assert how == f"constructed as OfSwitches(args={settings}, width=24, heads=3, own=True)"


class Around(nn.Module):
    """A residual sum around an attention that is handed over."""

    def __init__(self, width: int, attention: nn.Module) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(width), attention

    def forward(self, x: Tensor) -> Tensor:
        """Of tokens."""
        answer: Tensor = x + self.attention(self.norm(x))
        return answer


def test_a_part_that_a_constructor_takes_is_made_of_its_file() -> None:
    """By the classes beside it: which of them fits, a call shows."""
    built, how = instance_of(Around, None)
    assert isinstance(built, Around)
    assert isinstance(built.attention, Attention)
    assert how == "constructed as Around(width=24, attention=Attention(…))"


class Worded(nn.Module):
    """Takes one of two words."""

    def __init__(self, width: int, style: str) -> None:
        super().__init__()
        if style not in {"plain", "wide"}:
            raise ValueError(style)
        self.style = style
        self.linear = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Of tokens."""
        answer: Tensor = self.linear(x)
        return answer


def test_a_text_is_one_that_the_constructor_compares_it_with() -> None:
    """Its source says which texts it knows."""
    assert instance_of(Worded, None)[0].style in {"plain", "wide"}


class Stored(Worded):
    """Keeps the word, and compares what it kept."""

    def __init__(self, width: int, style: str) -> None:
        nn.Module.__init__(self)
        self.style = style
        if self.style not in ["plain", "wide"]:
            raise ValueError(style)
        self.linear = nn.Linear(width, width)


def test_a_text_may_be_compared_where_it_is_kept() -> None:
    """An attribute is named after the parameter."""
    assert instance_of(Stored, None)[0].style == "plain"


class OfProjections(nn.Module):
    """Is handed its projections; keys and values have fewer heads."""

    def __init__(
        self,
        num_heads: int,
        num_kv_heads: int,
        q_proj: nn.Module,
        k_proj: nn.Module,
        v_proj: nn.Module,
        *,
        output_proj: nn.Module,
        cache: Attention | None = None,
    ) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads, self.cache = num_heads, num_kv_heads, cache
        self.q_proj, self.k_proj, self.v_proj = q_proj, k_proj, v_proj
        self.output_proj = output_proj

    def forward(self, x: Tensor) -> Tensor:
        """Of tokens."""
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        q = q.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        k, v = (one.unflatten(-1, (self.num_kv_heads, -1)).transpose(1, 2) for one in (k, v))
        merged = nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        answer: Tensor = self.output_proj(merged.transpose(1, 2).flatten(2))
        return answer


def test_projections_that_a_constructor_takes_are_made() -> None:
    """By their roles; an optional part, such as a cache, is left out."""
    built, how = instance_of(OfProjections, None)
    assert isinstance(built, OfProjections)
    assert (built.k_proj.out_features, built.output_proj.out_features) == (16, 48)
    assert built.cache is None
    assert "k_proj=torch.nn.Linear(48, 16)" in how


def test_a_class_without_a_way_is_told() -> None:
    """The sentence names the parameter."""

    class Closed(nn.Module):
        def __init__(self, riddle: Any) -> None:
            raise ValueError(riddle)

    with pytest.raises(ConstructionError, match="needs riddle to be constructed"):
        instance_of(Closed, None)


def test_a_class_is_built_for_longer_sequences_than_any_clause_asks() -> None:
    """A triangle of 1024 places failed a right module where 1025 tokens were asked."""
    assert LONGEST > 1025
    made = conformance.module(Configured)
    assert made.declaration.max_length is None
    assert conformance.module(Attention(24, 3)).declaration.max_length == 8


class Window(Attention):
    """A learned bias for a window of sixteen tokens, which are all that it takes."""

    def __init__(self) -> None:
        super().__init__(24, 3, 16)
        self.bias_table = nn.Parameter(torch.zeros(3, 16, 16))

    def forward(self, x: Tensor) -> Tensor:
        """Of sixteen tokens."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        logits = q @ k.mT / q.shape[-1] ** 0.5 + self.bias_table
        answer: Tensor = self.proj((logits.softmax(-1) @ v).transpose(1, 2).flatten(2))
        return answer


def test_the_only_length_is_found() -> None:
    """It is pinned, and said."""
    made = conformance.module(Window())
    assert made.declaration.pins.sizes["query_length"] == (16,)
    assert "it takes 16 tokens alone" in made.declaration.assumptions
    assert made.warnings == ()


class LazyOnDevice(nn.Module):
    """Layers whose sizes follow from the first call, and a place for tensors of its own."""

    def __init__(self, width: int, num_heads: int, device: str) -> None:
        super().__init__()
        self.num_heads, self.scale = num_heads, torch.ones(1).to(device)
        self.qkv, self.proj = nn.LazyLinear(3 * width), nn.LazyLinear(width)

    def forward(self, x: Tensor) -> Tensor:
        """Of tokens."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        weights = (q @ k.mT / q.shape[-1] ** 0.5 * self.scale).softmax(-1)
        answer: Tensor = self.proj((weights @ v).transpose(1, 2).flatten(2))
        return answer


def test_layers_whose_sizes_a_call_shows() -> None:
    """A lazy class has the weights that a call gives it, in float32, and is declared so."""
    built, _ = instance_of(LazyOnDevice, None)
    shapes = {name: (list(one.shape), one.dtype) for name, one in built.named_parameters()}
    assert shapes["qkv.weight"] == ([72, 24], torch.float32)
    assert conformance.module(LazyOnDevice).declaration.kind == "layer"


class OfFixedWidth(Attention):
    """Its tokens are as wide as its file says; its parameters speak of its heads alone."""

    def __init__(self, num_heads: int, head_size: int) -> None:
        super().__init__(64, num_heads)
        self.proj = nn.Linear(num_heads * head_size, 64)


def test_a_width_from_elsewhere_is_cut_into_heads() -> None:
    """Sizes with which no call is answered give way to those of the width that is there."""
    built, how = instance_of(OfFixedWidth, None)
    assert how == "constructed as OfFixedWidth(num_heads=4, head_size=16)"
    assert built(torch.ones(2, 5, 64)).shape == (2, 5, 64)


class ByKeywords(Attention):
    """Reads its sizes of whatever keywords it gets."""

    def __init__(self, **cfg: Any) -> None:
        super().__init__(cfg["dim"], cfg["n_heads"])


class Handing(Attention):
    """Hands its keywords on to a constructor that names them."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)


class Asking(Attention):
    """Calls a method of its settings."""

    def __init__(self, config: Any) -> None:
        super().__init__(config.hidden_size, config.get_heads())


class WithAText(Attention):
    """Needs a keyword whose name says no size, and that is no number."""

    def __init__(self, **cfg: Any) -> None:
        super().__init__(cfg["dim"] + len(cfg["frobs"]), cfg["n_heads"])


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        (ByKeywords, "ByKeywords(dim=24, n_heads=3)"),
        (Handing, "Handing(width=24, heads=3)"),
        (Asking, "Asking(config=SimpleNamespace(hidden_size=24, get_heads=lambda *_, **__: 3))"),
    ],
)
def test_keywords_and_methods_are_given_as_what_lacks_them_says(
    kind: type[Attention], how: str
) -> None:
    """What a constructor raises names the keywords of ``**cfg``, and that a setting is called."""
    built, said = instance_of(kind, None)
    assert said == f"constructed as {how}"
    assert built.num_heads == 3


def test_a_keyword_that_nobody_can_guess_is_named() -> None:
    """The refusal names it, and so do the lines to paste that are made of the call."""
    with pytest.raises(ConstructionError, match="needs frobs to be constructed") as raised:
        instance_of(WithAText, None)
    assert raised.value.guessed == ("frobs",)
    assert "dim=24" in raised.value.call
    assert "frobs=" in raised.value.call
