"""Operators registered with torch: by name, by calling object, and by recorded calls."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor
from torch._library.custom_ops import CustomOpDef
from torch._ops import OpOverload, OpOverloadPacket
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from ..errors import DeclarationError

# A call: the overload, with its arguments.
Called = tuple[OpOverload, tuple[Any, ...], dict[str, Any]]
_SEPARATOR: Final = "::"


def operator_of(function: Any) -> str:
    """The name ``ns::name`` of an operator object, "" for other objects."""
    packet = packet_of(function)
    return "" if packet is None else str(packet._qualified_op_name)  # noqa: SLF001 (it has no public name)


def packet_of(function: Any) -> OpOverloadPacket | None:
    """All overloads of an operator object; None for other objects."""
    if isinstance(function, CustomOpDef):
        function = function._opoverload  # noqa: SLF001 (what opcheck itself asks for)
    if isinstance(function, OpOverload):
        packet: OpOverloadPacket = function.overloadpacket
        return packet
    return function if isinstance(function, OpOverloadPacket) else None


def registered_operator(name: str) -> OpOverloadPacket:
    """All overloads of a registered operator; raises DeclarationError for an unknown name."""
    namespace, separator, own = name.partition(_SEPARATOR)
    if not separator or not namespace or not own:
        msg = f"operator is {name!r}: write its namespace and its name, such as 'mylib::attention'"
        raise DeclarationError(msg)
    try:
        result = getattr(getattr(torch.ops, namespace), own)
    except (AttributeError, RuntimeError, TypeError):  # torch's own for odd names
        result = None
    if not isinstance(result, OpOverloadPacket):  # aten::__class__ is found, and no operator
        msg = (
            f"operator is {name!r}, which is not registered: import what registers it (or load its "
            "library) before it is declared"
        )
        raise DeclarationError(msg)
    return result


def signature_of(function: Any) -> inspect.Signature | None:
    """The schema's signature of an operator with one overload; None for other objects."""
    packet = packet_of(function)
    if packet is None or len(packet.overloads()) != 1:
        return None
    schema = getattr(packet, packet.overloads()[0])._schema  # noqa: SLF001 (it has no public name)
    return inspect.Signature([_parameter(argument) for argument in schema.arguments])


def _parameter(argument: Any) -> inspect.Parameter:
    parameter = inspect.Parameter
    kind = parameter.KEYWORD_ONLY if argument.kwarg_only else parameter.POSITIONAL_OR_KEYWORD
    has_default = argument.has_default_value()
    default = argument.default_value if has_default else inspect.Parameter.empty
    return inspect.Parameter(argument.name, kind, default=default)


class PythonCalls(TorchFunctionMode):
    """Records the calls of one operator from Python."""

    def __init__(self, packet: OpOverloadPacket) -> None:
        super().__init__()
        self.packet = packet
        self.calls: list[Called] = []

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Record the call, and make it."""
        named = kwargs or {}
        if packet_of(func) is self.packet:
            self.calls.append((_resolved(func, args, named), *_before(args, named)))
        return func(*args, **named)


class DispatchedCalls(TorchDispatchMode):
    """Records the calls of one operator from C++."""

    def __init__(self, packet: OpOverloadPacket) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own
        self.packet = packet
        self.calls: list[Called] = []

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Record the call, and make it."""
        named = kwargs or {}
        if packet_of(func) is self.packet:
            self.calls.append((func, *_before(args, named)))
        return func(*args, **named)


def _before(args: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Copies of the arguments from before the call, which may write to them."""

    def copied(value: Any) -> Any:
        return value.detach().clone() if isinstance(value, Tensor) else value

    return tuple(map(copied, args)), {name: copied(value) for name, value in named.items()}


def _resolved(func: Any, args: tuple[Any, ...], named: dict[str, Any]) -> OpOverload:
    if isinstance(func, OpOverload):
        return func
    names = func.overloads()
    if len(names) == 1:
        return getattr(func, names[0])  # type: ignore[no-any-return]  # an overload of the packet
    chosen = torch._C._jit_resolve_packet(func._qualified_op_name, *args, **named)  # noqa: SLF001 (how torch itself chooses)
    return getattr(func, chosen)  # type: ignore[no-any-return]  # an overload of the packet


def written_arguments(overload: OpOverload) -> frozenset[str]:
    """The names of the arguments that the schema marks as written."""
    schema = overload._schema  # noqa: SLF001 (it has no public name)
    return frozenset(
        argument.name
        for argument in schema.arguments
        if argument.alias_info is not None and argument.alias_info.is_write
    )


def argument_names(overload: OpOverload) -> list[str]:
    """The names of the arguments in their order."""
    return [argument.name for argument in overload._schema.arguments]  # noqa: SLF001 (it has no public name)
