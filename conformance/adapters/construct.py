"""Instances of a user's class, and copies of a user's module in the dtype that is judged."""

from __future__ import annotations

import copy
import inspect
from typing import Any, Final

import torch
from torch import nn

from ..base.texts import raised_text
from ..errors import ConstructionError, DeclarationError
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


WIDTH: Final = 24
HEADS: Final = 3
HEAD_SIZE: Final = WIDTH // HEADS
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
_VALUES: Final[dict[str, Any]] = {
    **dict.fromkeys(_WIDTH_NAMES, WIDTH),
    **dict.fromkeys(_HEAD_SIZE_NAMES, HEAD_SIZE),
    **dict.fromkeys((*HEAD_NAMES, *KV_HEAD_NAMES), HEADS),
    **dict.fromkeys(_LENGTH_NAMES, LONGEST),
    **dict.fromkeys(_DROPOUT_NAMES, 0.0),
    **dict.fromkeys(_BIAS_NAMES, True),
}
_POSITIONAL_OR_NAMED: Final = (
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.KEYWORD_ONLY,
)


def instance_of(kind: type[nn.Module], num_heads: int | None) -> tuple[nn.Module, str]:
    """An instance, and how it was constructed; ConstructionError where that cannot be done."""
    required = [
        parameter.name
        for parameter in inspect.signature(kind).parameters.values()
        if parameter.default is inspect.Parameter.empty and parameter.kind in _POSITIONAL_OR_NAMED
    ]
    unknown = [name for name in required if name.lower() not in _VALUES]
    if unknown:
        named = ", ".join(unknown)
        why = f"{kind.__name__} needs {named} to be constructed, and those names say no size"
        raise ConstructionError(why)
    arguments = {name: _value(name.lower(), num_heads) for name in required}
    text = f"{kind.__name__}({', '.join(f'{name}={value}' for name, value in arguments.items())})"
    try:
        return kind(**arguments), f"constructed as {text}"
    except Exception as error:  # a user's constructor may raise anything
        why = f"{text} {raised_text(error)}"
        raise ConstructionError(why) from error


def _value(name: str, num_heads: int | None) -> Any:
    if num_heads is not None and name in HEAD_NAMES:
        return num_heads
    if num_heads is not None and name in KV_HEAD_NAMES:
        return num_heads
    if num_heads is not None and name in _WIDTH_NAMES:
        return num_heads * HEAD_SIZE
    return _VALUES[name]
