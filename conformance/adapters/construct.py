"""Makes an instance of a class: without arguments, or from the names of its constructor's."""

from __future__ import annotations

import inspect
from typing import Any, Final

from torch import nn

from ..base.raised import raised_text
from ..errors import ConstructionError
from .heads import HEAD_NAMES, KV_HEAD_NAMES

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
