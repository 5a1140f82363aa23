"""Trial calls: what a module answers on a small problem, with random matrices."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor, nn

from ..base.geometry import Geometry
from ..base.printable_text import raised_text
from ..errors import ConstructionError, DeclarationError
from ..tolerance import model
from .calling import Calling
from .filling import fillings
from .packing import HEAD_NAMES, KV_HEAD_NAMES

# The methods that users call, and libraries override. ``Module.to(dtype)`` would also make complex
# buffers (rotary positions kept as complex numbers) real, and lose their imaginary part.
_METHODS: Final = {
    torch.float16: "half",
    torch.bfloat16: "bfloat16",
    torch.float32: "float",
    torch.float64: "double",
}


def duplicate(module: nn.Module) -> nn.Module:
    """A deep copy; raises DeclarationError where the module cannot be copied."""
    try:
        return copy.deepcopy(module)
    except Exception as error:  # a module's own __deepcopy__ may raise anything
        msg = (
            f"{type(module).__name__} cannot be copied ({type(error).__name__}: {error}), and an "
            "instance is never changed: pass its class and construct="
        )
        raise DeclarationError(msg) from error


def put_in_dtype(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """The module itself, its floating-point parameters and buffers in a dtype.

    Complex and integer tensors stay as they are.
    """
    cast: nn.Module = getattr(module, _METHODS[dtype])()
    return cast


def is_in_dtype(module: nn.Module, dtype: torch.dtype) -> bool:
    """Whether every floating-point parameter and buffer has a dtype."""
    tensors = (*module.parameters(), *module.buffers())
    return all(tensor.dtype == dtype for tensor in tensors if tensor.is_floating_point())


# Sizes that all differ, so that a class which cannot have them is noticed at once.
PROBES: Final = (
    Geometry(
        batch=2,
        num_heads=3,
        num_kv_heads=3,
        query_length=5,
        key_length=7,
        head_size=4,
        value_head_size=6,
        query_size=10,
        key_size=14,
        value_size=11,
        output_size=9,
    ),
    Geometry(
        batch=1,
        num_heads=2,
        num_kv_heads=2,
        query_length=3,
        key_length=4,
        head_size=6,
        value_head_size=5,
        query_size=7,
        key_size=9,
        value_size=13,
        output_size=8,
    ),
)

WIDTH: Final = 24
HEADS: Final = 3
HEAD_SIZE: Final = WIDTH // HEADS
# Of heads that share keys and values: as many in a group as no other size is.
GROUPED_HEADS: Final = 6
# Longer than any sequence of the thorough profile.
LONGEST: Final = 1024

_WIDTH_NAMES: Final = (
    "embed_dim d_model dim model_dim hidden_size token_size embed_size n_embd "
    "emb_size emb_dim embedding_dim embedding_size hidden_dim num_hiddens n_hidden "
    "channels in_features in_dim dim_in input_dim input_size d_in out_features "
    "out_dim dim_out output_dim output_size d_out query_size query_dim key_dim "
    "key_size value_dim value_size context_dim kdim vdim n_feat n_state width size "
    "model_size d_embed embed emb d_hidden query_in_dim "
).split()
_HEAD_SIZE_NAMES: Final = (
    "head_dim head_size dim_head d_head d_k d_v d_q dim_k dim_v qk_size v_size d_key d_value d_kv "
    "attention_head_size dim_per_head qk_dim"
).split()
_LENGTH_NAMES: Final = (
    "max_len max_length max_seq_len max_seq_length block_size context_length seq_len ctx_len "
    "max_position_embeddings"
).split()
_DROPOUT_NAMES: Final = "dropout dropout_rate dropout_p drop attn_drop attn_dropout p pdrop".split()
_BIAS_NAMES: Final = "bias qkv_bias use_bias".split()
_POSITIONAL_OR_NAMED: Final = (
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.KEYWORD_ONLY,
)


def instance_of(kind: type[nn.Module], num_heads: int | None) -> tuple[nn.Module, str]:
    """An instance, and how it was constructed; ConstructionError where that cannot be done.

    One that has to be told how many heads keys and values have gets fewer than queries have.
    """
    required = [
        parameter.name
        for parameter in inspect.signature(kind).parameters.values()
        if parameter.default is inspect.Parameter.empty and parameter.kind in _POSITIONAL_OR_NAMED
    ]
    values = _values(num_heads, shared=any(name.lower() in KV_HEAD_NAMES for name in required))
    unknown = [name for name in required if name.lower() not in values]
    if unknown:
        named = ", ".join(unknown)
        why = f"{kind.__name__} needs {named} to be constructed, and those names say no size"
        raise ConstructionError(why)
    arguments = {name: values[name.lower()] for name in required}
    text = f"{kind.__name__}({', '.join(f'{name}={value}' for name, value in arguments.items())})"
    try:
        return kind(**arguments), f"constructed as {text}"
    except Exception as error:  # a user's constructor may raise anything
        why = f"{text} {raised_text(error)}"
        raise ConstructionError(why) from error


def _values(num_heads: int | None, *, shared: bool) -> dict[str, Any]:
    """What parameters of a constructor are given, by their names; ``shared`` heads in groups."""
    heads = num_heads or (GROUPED_HEADS if shared else HEADS)
    divisors = [count for count in range(1, heads) if heads % count == 0] or [1]
    return {
        **dict.fromkeys(_WIDTH_NAMES, heads * HEAD_SIZE),
        **dict.fromkeys(_HEAD_SIZE_NAMES, HEAD_SIZE),
        **dict.fromkeys(HEAD_NAMES, heads),
        **dict.fromkeys(KV_HEAD_NAMES, divisors[len(divisors) // 2]),
        **dict.fromkeys(_LENGTH_NAMES, LONGEST),
        **dict.fromkeys(_DROPOUT_NAMES, 0.0),
        **dict.fromkeys(_BIAS_NAMES, True),
    }


Inputs = tuple[Tensor, Tensor, Tensor]
_LENGTHS: Final = ((5, 7), (6, 6))
_BATCH: Final = 2
_DTYPES: Final = {torch.float64: ("float64", "float32"), torch.float32: ("float32",)}


@dataclass(frozen=True)
class TrialAnswer:
    """One answered trial: query, key and value, the output, and the dtypes to judge it by.

    A module may keep parts in float32 (a scale, a softmax): then its answers are judged by that.
    """

    inputs: Inputs
    output: Tensor
    dtypes: tuple[str, ...]


@dataclass
class Trial:
    """A module under trial: a copy in eval mode with drawn matrices, in float64 where it can be.

    ``names`` are the parameters to draw. ``failure`` holds the exception of the latest call that
    raised, ``returned`` the type of what the module itself returned.
    """

    module: nn.Module
    calling: Calling
    batched: bool
    names: Iterable[str]
    failure: Exception | None = None
    returned: type | None = None
    _answers: dict[tuple[int, ...], TrialAnswer | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.module = duplicate(self.module).eval()
        self.module.register_forward_hook(self._remember)
        generator = torch.Generator().manual_seed(0)
        parameters = dict(self.module.named_parameters(remove_duplicate=False))
        for name in self.names:
            parameter = parameters[name]
            drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            # Unit-sized answers: each output sums over one axis of the matrix.
            terms = parameter.shape[-1] if parameter.dim() > 1 else 1
            parameter.data.copy_(drawn / terms**0.5)

    @property
    def answered(self) -> bool:
        """Whether any call so far returned an answer."""
        return any(answer is not None for answer in self._answers.values())

    @property
    def plausible(self) -> bool:
        """Whether any call so far returned an answer with a row for each query."""
        return any(answer is not None and _has_rows(answer) for answer in self._answers.values())

    def settle(self, widths: Iterable[tuple[int, int, int]], head_sizes: Sequence[int]) -> None:
        """Fill what the module needs besides its tokens with the first values that it takes.

        Where masks are made, rows that are all the same show that one hides every key.
        """
        calling = self.calling
        if not (calling.wanted or calling.spare):
            return
        first: Calling | None = None
        for wanted in (calling.wanted, (*calling.wanted, *calling.spare)):
            for fills in fillings(wanted, head_sizes, guessed=calling.guessed):
                self.calling = dataclasses.replace(calling, fills=fills)
                made = any(source != "None" for _, source in fills)
                answer = next((one for one in map(self._fresh, widths) if one is not None), None)
                if answer is None:
                    continue
                if _has_rows(answer) and not (made and _says_nothing(answer)):
                    return
                first = first or self.calling
            if not calling.spare:
                break
        self.calling = first or calling

    def _fresh(self, widths: tuple[int, int, int]) -> TrialAnswer | None:
        """An answer that is not kept."""
        calls = (self._call(widths, sizes, torch.float32) for sizes in _LENGTHS)
        return next((answer for answer in calls if answer is not None), None)

    def answer(self, widths: tuple[int, int, int]) -> TrialAnswer | None:
        """The module's answer to inputs of these widths; None when it cannot take them."""
        if self.calling.inputs == "self" and len(set(widths)) > 1:
            return None
        if self.calling.inputs == "memory" and widths[1] != widths[2]:
            return None
        if widths not in self._answers:
            calls = (self._call(widths, sizes, dtype) for dtype in _DTYPES for sizes in _LENGTHS)
            self._answers[widths] = next((answer for answer in calls if answer is not None), None)
        return self._answers[widths]

    def longest(self, widths: tuple[int, int, int]) -> tuple[int, str] | None:
        """The most tokens it takes, where that is a size of one of its buffers, and that buffer.

        A causal mask that is stored, for one, ends there.
        """
        named = {size: name for name, own in self.module.named_buffers() for size in own.shape}
        for size in sorted(size for size in named if max(map(max, _LENGTHS)) <= size < LONGEST):
            if self._call(widths, (size + 1, size + 1), torch.float32) is None:
                taken = self._call(widths, (size, size), torch.float32)
                return None if taken is None else (size, named[size])
        return None

    def why_causal(self, widths: tuple[int, int, int]) -> str:
        """Why a module that attends to itself seems to be meant causal; empty if nothing says so.

        Its answers may be wrong otherwise: no answer changes with a later token, or it stores what
        hides later keys.
        """
        length, _ = _LENGTHS[-1]
        for dtype in _DTYPES:
            turned = (None, length - 1, length - 2)
            calls = [self._call(widths, _LENGTHS[-1], dtype, turned=at) for at in turned]
            outputs = [one.output.nan_to_num() for one in calls if one is not None]
            if len(outputs) < len(calls):
                continue  # it does not take this dtype
            plain, last, before = outputs
            shapes = {one.shape for one in outputs}
            if len(shapes) > 1 or plain.dim() != 3 or plain.shape[1] != length:  # noqa: PLR2004
                break
            # What mixes no tokens at all is not causal: each row would be of its own token.
            mixes = not _is_same(plain[:, -1], before[:, -1])
            if mixes and _is_same(plain[:, :-1], last[:, :-1]):
                return "no answer changes with a later token"
            break
        stored = (name for name, own in self.module.named_buffers() if _is_triangle(own))
        return next((f"its buffer {name} is a triangle" for name in stored), "")

    def is_causal_with(
        self, widths: tuple[int, int, int], num_heads: int, form: str, shape: str
    ) -> bool:
        """Whether a causal module is causal with a mask, too, which hides the last key.

        The earlier queries do not see that one anyway. A call that is refused says nothing against
        it.
        """
        queries, keys = lengths = _LENGTHS[-1]
        sizes = {"B": _BATCH, "H": num_heads, "Q": queries, "K": keys}
        seen = torch.ones([sizes.get(axis, 1) for axis in shape], dtype=torch.bool)
        seen[..., -1] = False
        mask = {
            "keep": seen,
            "drop": ~seen,
            "keep_int": seen.long(),
            "bias": torch.where(seen, 0.0, -torch.inf).double(),
        }[form]
        plain = self._call(widths, lengths, torch.float64)
        masked = self._call(widths, lengths, torch.float64, {form: mask})
        if plain is None or masked is None or plain.output.shape != masked.output.shape:
            return True
        return _is_same(plain.output[:, :-1], masked.output[:, :-1])

    def _remember(self, _module: nn.Module, _inputs: Any, returned: Any) -> None:
        self.returned = type(returned)

    def _call(
        self,
        widths: tuple[int, int, int],
        lengths: tuple[int, int],
        dtype: torch.dtype,
        options: Mapping[str, Tensor] | None = None,
        *,
        turned: int | None = None,
    ) -> TrialAnswer | None:
        """The answer to drawn tokens, of which one has the other sign where its index is given."""
        batch = _BATCH if self.batched else 1
        inputs = draw(widths, lengths, self.calling.inputs, batch, dtype)
        if turned is not None:
            for tokens in {id(tokens): tokens for tokens in inputs}.values():
                tokens[:, turned].neg_()
        used = inputs[: {"self": 1, "memory": 2}.get(self.calling.inputs, 3)]
        if not self.batched:
            used = tuple(tokens[0] for tokens in used)
        try:
            with torch.no_grad():
                output = self.calling(
                    put_in_dtype(self.module.cpu(), dtype), used, dict(options or {})
                )
        except Exception as error:  # noqa: BLE001 (the user's code may raise anything)
            self.failure = error
            return None
        if not isinstance(output, Tensor):
            return None
        output = output if self.batched else output.unsqueeze(0)
        return TrialAnswer(inputs, output, _DTYPES[dtype])


def _has_rows(answer: TrialAnswer) -> bool:
    """Whether an answer has a row for each query."""
    shape = answer.output.shape
    return len(shape) == len("BLE") and shape[:2] == answer.inputs[0].shape[:2]


def _says_nothing(answer: TrialAnswer) -> bool:
    """Whether all rows of each item are the same, or hold NaN."""
    output = answer.output
    return bool(output.isnan().any()) or _is_same(output, output[:, :1].expand_as(output))


def _is_same(one: Tensor, other: Tensor) -> bool:
    """Whether two answers are the same but for rounding."""
    return bool(((other - one).abs() <= model.SAME_READ * one.abs().max()).all())


def _is_triangle(buffer: Tensor) -> bool:
    """Whether a buffer tells later tokens from all others, as a stored causal mask does."""
    count = buffer.shape[-1] if buffer.dim() > 1 else 0
    if count < 2 or buffer.shape[-2] != count or buffer.numel() != count**2:  # noqa: PLR2004
        return False
    square = buffer.reshape(count, count)
    later = torch.ones(count, count, dtype=torch.bool).triu(1)
    expected = torch.where(later, square[0, -1], square[0, 0])
    return bool(square[0, -1] != square[0, 0]) and torch.equal(square, expected)


def draw(
    widths: tuple[int, int, int],
    lengths: tuple[int, int],
    inputs: str,
    batch: int,
    dtype: torch.dtype,
) -> Inputs:
    """Normal query, key and value; the same tensor where a module takes one for several."""
    generator = torch.Generator().manual_seed(1)
    query_length, key_length = lengths

    def tokens(length: int, width: int) -> Tensor:
        drawn = torch.randn(batch, length, width, generator=generator, dtype=torch.float64)
        return drawn.to(dtype)

    query = tokens(query_length, widths[0])
    if inputs == "self":
        return query, query, query
    key = tokens(key_length, widths[1])
    return query, key, key if inputs == "memory" else tokens(key_length, widths[2])
