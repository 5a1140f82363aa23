"""Constructs an instance of a class: parameter names tell the sizes to give its constructor.

Several values are tried for a name without a size until a call answers. A settings parameter gets
an instance of its annotated class, or an object with the fields that the constructor reads.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import copy
import dataclasses
import inspect
import itertools
import math
import re
import textwrap
import time
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Final

import torch
from torch import nn

from ..base.parameter_names import role_of, words_of
from ..base.printable_text import raised_text
from ..errors import ConstructionError, DeclarationError, lacks_import
from .calling import ways_to_call
from .packing import HEAD_NAMES, KV_HEAD_NAMES
from .trial import Trial, duplicate, with_plain_weights

WIDTH: Final = 24
HEADS: Final = 3
HEAD_SIZE: Final = WIDTH // HEADS
# With shared key-value heads: makes the group size differ from every other size.
GROUPED_HEADS: Final = 6
# For widths that HEADS does not divide.
_OTHER_HEADS: Final = 4
# Longer than the sequences of every clause; a boolean triangle of this side takes 1.6 MB.
LONGEST: Final = 1280

_HEADS: Final = frozenset("head heads nhead nheads".split())
_SHARED: Final = frozenset("kv key value groups group query".split())
_SIZES: Final = frozenset("dim dims size width d channels features".split())
_WIDTHS: Final = frozenset(
    "dim dims model embed embd emb embeddings embedding hidden hiddens channels features width "
    "size input output inputs in out state feat units spacial spatial planes e d kdim vdim "
    "qdim ff ffn intermediate inner".split()
)
_LENGTHS: Final = frozenset(
    "len length lengths seq sequence block context ctx positions position maxlen window tokens "
    "patches".split()
)
_DROPOUTS: Final = frozenset("dropout drop p pdrop rate prob".split())
# Modules are judged in eval mode: dropout that still acts must show.
_DROPPED: Final = 0.1
_BIASES: Final = frozenset("bias biases".split())
_COUNTS: Final = frozenset("n num number".split())
_LAYER_NAMES: Final = frozenset("layers blocks depth".split())
# Whose depth is a width: that of a model counts layers.
_DEEP: Final = _SHARED | {"input", "output"}
_HEAD_SIZE_NAMES: Final = frozenset("d_k d_v d_q dim_k dim_v qk_size v_size d_key d_value".split())
_VALUES: Final = (
    (frozenset({"device"}), "cpu"),
    (frozenset({"dtype"}), torch.float32),
    (frozenset("eps epsilon".split()), 1e-6),
    (frozenset("theta base".split()), 10000.0),
    (frozenset("init std range".split()), 0.02),
    (frozenset({"temperature"}), HEAD_SIZE**0.5),
    (frozenset("idx index id".split()), 0),
    (frozenset({"layer"}), 0),
)
_WINDOW: Final = 4
# Replaces a default number that its own constructor refuses.
_FEW: Final = 2
# Words for sizes with two sides.
_PICTURES: Final = frozenset("image img picture grid map resolution patch".split())
_LARGE_HEAD: Final = 32
# Two layers, since the second may differ from the first.
_LAYERS: Final = 2
# Batch size of stored caches: more items than any problem has.
_BATCH: Final = 64
# Norms of groups and kernels want widths divisible by small powers of two.
_USUAL_DIVISOR: Final = 64
_MOST_DIVISOR: Final = 256
# Parameters of a large module.
_MANY_NUMBERS: Final = 2**24
# Constructions tried for one class.
_MOST_TRIED: Final = 40
_MOST_SWITCHES: Final = 3
# Classes of the same file tried as a part of a module.
_MOST_PARTS: Final = 4
# Modules whose classes hold no settings.
_NO_SETTINGS: Final = ("builtins", "torch")
# Attempts to find the settings that a constructor reads.
_MOST_SETTINGS: Final = 100
# Processor seconds to fill the further parameters of one way of calling an instance.
_SECONDS: Final = 0.5
# Processor seconds for further constructions of a class after the first.
_SECONDS_FOR_ALL: Final = 3.0
_NAMED: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_UNKNOWN: Final = object()
# A name that is called, and no attribute.
_CALLED: Final = re.compile(r"(?<![\w.])([^\W\d]\w*)\(")


def instance_of(kind: type[nn.Module], num_heads: int | None) -> tuple[nn.Module, str]:
    """An instance of a class and the text of its construction; raises ConstructionError.

    Keys and values get fewer heads than queries where the constructor asks for their number. A
    refused width is replaced by multiples of the numbers in the refusal. An instance that answers
    no call is rebuilt with the widths of its fixed matrices, a number of heads from its class's
    file, or all heads' width where a name says a head's.
    """
    try:
        built, how = _instance_of(kind, num_heads, 1)
    except ConstructionError as error:
        for number in _divisors_named(error.why):
            with contextlib.suppress(ConstructionError):
                built, how = _instance_of(kind, num_heads, number)
                break
        else:
            if (made := _of_parts(kind, num_heads)) is None:
                raise
            return made
    others: list[tuple[int | None, int | None, bool]]
    others = [(num_heads, width, False) for width in _fixed_widths(built)]
    others += [(heads, None, False) for heads in _said_heads(kind) if num_heads is None]
    if any(map(Sizes(num_heads, []).is_of_a_head, inspect.signature(kind).parameters)):
        others.append((num_heads, None, True))
    if others and answering(built) is None:
        for heads, width, of_all in others:
            with contextlib.suppress(ConstructionError):
                other, how_other = _instance_of(kind, heads, 1, width, of_all=of_all)
                if answering(other) is not None:
                    return other, how_other
    return _of_parts(kind, num_heads, built) or (materialised(built), how)


def _said_heads(kind: type[nn.Module]) -> list[int]:
    """Numbers of heads among a constructor's defaults and the global names of its class's file.

    A default number of heads may leave each head of a small width an odd size.
    """
    parameters = inspect.signature(kind).parameters.values()
    named = [(parameter.name, parameter.default) for parameter in parameters]
    named += getattr(kind.forward, "__globals__", {}).items()
    said = [value for name, value in named if name.lower() in HEAD_NAMES]
    return [value for value in said if type(value) is int and 0 < value <= _LARGE_HEAD]


def _fixed_widths(built: nn.Module) -> list[int]:
    """Input widths of matrices that no size given to the constructor explains."""
    matrices = [
        one for one in built.parameters() if not nn.parameter.is_lazy(one) and one.dim() > 1
    ]
    sizes = dict.fromkeys(one.shape[-1] for one in matrices)
    return [size for size in sizes if size != HEAD_SIZE and size % WIDTH]


def _divisors_named(why: str) -> list[int]:
    """Possible divisors of a width: the numbers in a refusal, and a usual power of two."""
    said = re.findall(r"\d+", why.partition("raised")[2])
    numbers = dict.fromkeys(int(number) for number in said if len(number) <= len("100"))
    return [*(number for number in numbers if 1 < number <= _MOST_DIVISOR), _USUAL_DIVISOR]


def materialised(built: nn.Module) -> nn.Module:
    """The module itself, or a copy with lazy parameters sized by a first call.

    Weights computed from other parameters become plain parameters of a copy.
    """
    built = with_plain_weights(built)
    trial = answering(built) if _is_lazy(built) else None
    if trial is None or _is_lazy(trial.module):
        return built
    made = duplicate(built)
    made.load_state_dict(trial.module.state_dict())
    return made


def _is_lazy(module: nn.Module) -> bool:
    return any(map(nn.parameter.is_lazy, module.parameters()))


def _instance_of(
    kind: type[nn.Module],
    num_heads: int | None,
    divisor: int,
    width: int | None = None,
    *,
    of_all: bool = False,
) -> tuple[nn.Module, str]:
    named = [one for one in inspect.signature(kind).parameters.values() if one.kind in _NAMED]
    required = [one.name for one in named if one.default is inspect.Parameter.empty]
    names = [*required, *_further_keywords(kind, required, num_heads)]
    sizes = Sizes(num_heads, names, divisor, width)
    sizes.named_size = sizes.width if of_all else sizes.head_size
    small = _smaller_defaults(kind, named, sizes, num_heads, divisor)
    projections = {
        name: (sizes.projection(name),)
        for name in required
        if role_of(name)[1] and _annotation(kind, name) in (nn.Module, nn.Linear)
    }
    unknown = [n for n in names if sizes.value(n) is _UNKNOWN and n not in projections]
    objects = {
        name: _annotated(kind, name, num_heads, divisor) or _texts_compared(kind, name)
        for name in unknown
    }
    first: tuple[nn.Module, str] | None = None
    made_for = {**objects, **projections}
    choices = {name: made_for.get(name) or sizes.choices(name) for name in names}
    wanted = [n for n in unknown if n in required and not objects[n] and not _is_number(kind, n)]
    given = {name: values[0] for name, values in choices.items()}
    configured = _of_one_settings(kind, wanted, given, named, num_heads, divisor)
    if isinstance(configured, tuple):
        return configured
    failure = configured
    ends = time.process_time() + _SECONDS_FOR_ALL
    for values in itertools.islice(itertools.product(*choices.values()), _MOST_TRIED):
        if time.process_time() > ends and (first or failure):
            break
        arguments = dict(zip(names, values, strict=True))
        try:
            made = _of_likely_sizes(kind, arguments, small)
        except ConstructionError as error:
            # What lacks is what to say first, however the other values fail.
            failure = error if failure is None or lacks_import(error) else failure
            continue
        if not unknown or ((first is None or not _is_large(made[0])) and _responds(made[0])):
            return made
        first = first or made
    first = first or _of_read_settings(kind, objects, num_heads, divisor, choices)
    first = first or _of_sizes_left_out(kind, named, sizes, choices)
    if first is not None:
        return first
    if unknown and failure is not None and not lacks_import(failure):
        why = (
            f"{kind.__name__} needs {', '.join(unknown)} to be constructed, and those names say no "
            f"size: {failure.why}"
        )
        raise ConstructionError(why, failure.call, unknown)
    raise failure or ConstructionError(f"{kind.__name__} cannot be constructed")


def _of_one_settings(
    kind: type[nn.Module],
    wanted: Iterable[str],
    given: Mapping[str, Any],
    named: Iterable[inspect.Parameter],
    num_heads: int | None,
    divisor: int,
) -> tuple[nn.Module, str] | ConstructionError | None:
    """An instance with settings for one of the names, else the error of an import, if any.

    The error of a parameter that is the only one is raised.
    """
    failure: ConstructionError | None = None
    # Some constructors demand one of several switches.
    switches = [one.name for one in named if one.default is False] if len(given) > 1 else []
    further = [{}, *({switch: True} for switch in switches[:_MOST_SWITCHES])]
    for name, more in itertools.product(wanted, further):
        try:
            return _of_settings(kind, name, num_heads, divisor, {**given, **more})
        except ConstructionError as error:
            if len(given) == 1:
                raise
            failure = error if lacks_import(error) else failure
    return failure


def _of_likely_sizes(
    kind: type[nn.Module], arguments: Mapping[str, Any], small: Mapping[str, Any]
) -> tuple[nn.Module, str]:
    """An instance of ``small`` sizes if it responds, else one of default sizes.

    If neither responds and the default sizes are large, the small one, whose further trial calls
    cost less. Raises ConstructionError.
    """
    if not small:
        return _constructed(kind, arguments)
    try:
        made = _constructed(kind, {**arguments, **small})
    except ConstructionError:
        return _constructed(kind, arguments)
    if _responds(made[0]):
        return made
    whole = _constructed(kind, arguments)
    return whole if not _is_large(whole[0]) or _responds(whole[0]) else made


def _is_large(built: nn.Module) -> bool:
    """Whether trial calls of a module take a tenth of a second and more."""
    made = (one for one in built.parameters() if not nn.parameter.is_lazy(one))
    return sum(one.numel() for one in made) >= _MANY_NUMBERS


def _responds(built: nn.Module) -> bool:
    return answering(built) is not None or _takes_ids(built)


def _further_keywords(
    kind: type[nn.Module], required: Sequence[str], num_heads: int | None
) -> list[str]:
    """Keywords that a constructor demands from ``**kwargs``, by the errors of trial calls."""
    kinds = [one.kind for one in inspect.signature(kind).parameters.values()]
    names = list(required)
    for _ in range(_MOST_SETTINGS * (inspect.Parameter.VAR_KEYWORD in kinds)):
        sizes = Sizes(num_heads, names)
        try:
            kind(**{name: sizes.choices(name)[0] for name in names})
        except (KeyError, TypeError) as error:
            said = str(error)  # a key in quotes, or arguments in quotes that are missing
            said = said if isinstance(error, KeyError) else said.partition("missing")[2]
            lacked = [one for one in re.findall(r"'([^\W\d]\w*)'", said) if one not in names]
            if not lacked:
                break
            names += lacked
        except Exception:  # noqa: BLE001 (a user's constructor may raise anything)
            break
        else:
            break
    return names[len(required) :]


def _smaller_defaults(
    kind: type[nn.Module],
    named: list[inspect.Parameter],
    sizes: Sizes,
    num_heads: int | None,
    divisor: int,
) -> dict[str, Any]:
    """Small sizes for heads, widths and layers whose defaults are large.

    Large modules take longer and reveal no more mistakes. Optional settings are instances of their
    annotated class, or of the class of their default.
    """
    numbers = {one.name: one.default for one in named if type(one.default) is int}
    heads = next((numbers[name] for name in numbers if name.lower() in HEAD_NAMES), sizes.heads)
    small: dict[str, Any] = {}
    # As many channels as heads would make the root of all heads' width the size of one.
    own = sizes.head_size + HEAD_SIZE // 2 * (heads == sizes.head_size)
    for name, number in numbers.items():
        if number >= _LARGE_HEAD and sizes.is_of_a_head(name):
            small[name] = own
        elif number >= _LARGE_HEAD * heads and sizes.value(name) == sizes.width:
            small[name] = heads * own
        elif number > _LAYERS and sizes.counts_layers(name):
            small[name] = _LAYERS
    for one in named:
        if one.default is None or type(one.default).__module__ == kind.__module__:
            settings = _annotated(kind, one.name, num_heads, divisor)
            is_part = settings and isinstance(settings[0].value, nn.Module)  # such as a cache
            small |= {one.name: settings[0]} if settings and not is_part else {}
    return small


def _takes_ids(built: nn.Module) -> bool:
    """Whether a module with an embedding table answers one row of token ids."""
    if not any(isinstance(part, nn.Embedding) for part in built.modules()):
        return False
    try:
        with torch.no_grad():
            copy.deepcopy(built).eval()(torch.tensor([[0, 1, 0, 1, 1]]))
    except Exception:  # noqa: BLE001 (the user's module may raise anything)
        return False
    return True


def _constructed(kind: type[nn.Module], arguments: Mapping[str, Any]) -> tuple[nn.Module, str]:
    text = _call_text(kind, arguments)
    own = {n: one.value if isinstance(one, _Written) else one for n, one in arguments.items()}
    try:
        made = kind(**own)
    except Exception as error:  # a user's constructor may raise anything
        why = f"{text} {raised_text(error)}"
        raise ConstructionError(why, text) from error
    return made, f"constructed as {text}"


@dataclasses.dataclass(frozen=True)
class _Written:
    """An object with the Python text of its construction."""

    value: Any
    text: str


def _call_text(called: type, arguments: Mapping[str, Any]) -> str:
    given = ", ".join(f"{name}={_shown(value)}" for name, value in arguments.items())
    return f"{called.__name__}({given})"


def _shown(value: Any) -> str:
    if isinstance(value, _Written):
        return value.text
    if isinstance(value, SimpleNamespace):
        return f"SimpleNamespace({', '.join(f'{k}={_shown(v)}' for k, v in vars(value).items())})"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{k!r}: {_shown(v)}' for k, v in value.items())}}}"
    if type(value) is nn.Linear:
        return f"torch.nn.Linear({value.in_features}, {value.out_features})"
    text = repr(value)
    if isinstance(value, nn.Module) or " object at 0x" in text or "\n" in text:
        return f"{type(value).__name__}(…)"
    return text


def _is_number(kind: type[nn.Module], name: str) -> bool:
    annotation = inspect.signature(kind).parameters[name].annotation
    return annotation in (int, float, bool, "int", "float", "bool")


def _annotated(
    kind: type[nn.Module], name: str, num_heads: int | None, divisor: int
) -> tuple[_Written, ...]:
    """Settings of the class that a parameter's annotation names, else ().

    First with sizes by the names of fields, then with defaults.
    """
    hint = _annotation(kind, name)
    if hint is None or hint.__module__.partition(".")[0] in _NO_SETTINGS:
        return ()
    return _sized_settings(hint, num_heads, divisor)


def _annotation(kind: type[nn.Module], name: str) -> type | None:
    """The class that a parameter's annotation names, or the class of its default, else None."""
    try:
        default = inspect.signature(kind).parameters[name].default
        by_default = None if default in (None, inspect.Parameter.empty) else type(default)
        hint = typing.get_type_hints(kind.__init__).get(name, by_default)
    except Exception:  # noqa: BLE001 (whatever names in the user's annotations raise)
        return None
    several = [one for one in typing.get_args(hint) if one is not type(None)]
    hint = several[0] if len(several) == 1 else hint
    return hint if isinstance(hint, type) else None


def _sized_settings(settings: type, num_heads: int | None, divisor: int) -> tuple[_Written, ...]:
    """Settings of a class: first with sizes by the names of fields, then with defaults.

    A class with ``**kwargs`` has the fields of its default instance.
    """
    try:
        taken = list(inspect.signature(settings).parameters.values())
        given = {one.name: one.default for one in taken if one.kind in _NAMED}
        if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in taken):
            given |= {name: own for name, own in vars(settings()).items() if name not in given}
    except Exception:  # noqa: BLE001 (a user's class may raise anything)
        return ()
    sizes = Sizes(num_heads, list(given), divisor)
    said = {
        name: sizes.value(name)
        for name, default in given.items()
        if default is inspect.Parameter.empty or type(default) is int or sizes.is_shared(name)
    }
    sized = {name: value for name, value in said.items() if value is not _UNKNOWN}
    needed = {name: value for name, value in sized.items() if given[name] is not None}
    made: list[_Written] = []
    for arguments in (sized, needed, {}) if given else ():
        if arguments is needed and made:
            continue
        with contextlib.suppress(Exception):  # a user's class may raise anything
            made.append(_Written(settings(**arguments), _call_text(settings, arguments)))
    return tuple(made)


def _settings_beside(
    kind: type[nn.Module], read: Collection[str], num_heads: int | None, divisor: int
) -> list[_Written]:
    """Settings, by classes that a class's file names, with every field that a constructor reads."""
    package = kind.__module__.partition(".")[0]
    return [
        made[0]
        for one in getattr(kind.__init__, "__globals__", {}).values()
        if isinstance(one, type) and one.__module__.partition(".")[0] == package
        if not issubclass(one, nn.Module) and (made := _sized_settings(one, num_heads, divisor))
        if all(hasattr(made[0].value, name) for name in read)
    ]


def _of_parts(
    kind: type[nn.Module], num_heads: int | None, built: nn.Module | None = None
) -> tuple[nn.Module, str] | None:
    """An instance that answers, with modules of its file for parameters whose names tell no size.

    An example is a layer whose constructor takes the attention. None where ``built`` answers.
    """
    required = [
        name
        for name, one in inspect.signature(kind).parameters.items()
        if one.kind in _NAMED and one.default is inspect.Parameter.empty
    ]
    sizes = Sizes(num_heads, required)
    unknown = {name for name in required if sizes.value(name) is _UNKNOWN}
    if not unknown or (built is not None and answering(built) is not None):
        return None
    choices = [
        _parts_beside(kind, name, num_heads) if name in unknown else [sizes.value(name)]
        for name in required
    ]
    for values in itertools.islice(itertools.product(*choices), _MOST_TRIED):
        with contextlib.suppress(ConstructionError):
            made = _constructed(kind, dict(zip(required, values, strict=True)))
            if answering(made[0]) is not None:
                return made
    return None


def _parts_beside(kind: type[nn.Module], name: str, num_heads: int | None) -> list[nn.Module]:
    """Instances of other modules in a class's file, sorted by likeness to a parameter's name."""
    beside = [
        one
        for one in getattr(kind.__init__, "__globals__", {}).values()
        if isinstance(one, type)
        and issubclass(one, nn.Module)
        and one.__module__ == kind.__module__
        and not issubclass(one, kind)
    ]
    said = [word[:4] for word in words_of(name)]
    beside.sort(key=lambda one: -sum(word in one.__name__.lower() for word in said))
    made = []
    for one in beside[:_MOST_PARTS]:
        with contextlib.suppress(ConstructionError):
            made += [_instance_of(one, num_heads, 1)[0]]
    return made


def _texts_compared(kind: type[nn.Module], name: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text for names, text in _compared(kind) if name in names))


def _compared(kind: type) -> Iterator[tuple[set[str], str]]:
    """The names and texts in each comparison or dict lookup of a class's constructors."""
    for one in itertools.takewhile(lambda one: one is not nn.Module, kind.__mro__):
        try:
            source = ast.parse(textwrap.dedent(inspect.getsource(vars(one)["__init__"])))
        except (KeyError, OSError, TypeError, SyntaxError):
            continue
        for node in ast.walk(source):
            sides: list[ast.expr | None] = []
            if isinstance(node, ast.Compare):
                sides = [node.left, *node.comparators]
            elif isinstance(node, ast.Subscript) and isinstance(node.value, ast.Dict):
                sides = [node.slice, *node.value.keys]
            names = {side.id for side in sides if isinstance(side, ast.Name)}
            names |= {side.attr for side in sides if isinstance(side, ast.Attribute)}
            for leaf in (leaf for side in sides if side is not None for leaf in ast.walk(side)):
                if isinstance(leaf, ast.Constant) and isinstance(leaf.value, str):
                    yield names, leaf.value


def answering(built: nn.Module, *, batched: bool = True) -> Trial | None:
    """A Trial with an answer to tokens of width WIDTH or of the module's matrices, else None."""
    try:
        ways = ways_to_call("it", built.forward, None, None)
    except DeclarationError:
        return None
    made = [one for one in built.parameters() if not nn.parameter.is_lazy(one) and one.dim() > 1]
    widths = {WIDTH, *(one.shape[-1] for one in made)}
    for way in ways[:3]:
        try:
            trial = Trial(built, way, batched=batched, names=(), seconds=_SECONDS)
        except DeclarationError:
            return None
        trial.settle([(width,) * 3 for width in sorted(widths)[:3]], (HEAD_SIZE,))
        if any(trial.answer((width,) * 3) is not None for width in sorted(widths)):
            return trial if trial.plausible else None
    return None


class Sizes:
    """Values for the parameters of a constructor, chosen by the words in their names."""

    def __init__(
        self, num_heads: int | None, names: list[str], divisor: int = 1, width: int | None = None
    ) -> None:
        # Local heads beside all heads are those of keys and values.
        self.of_all = any(name.lower() in HEAD_NAMES for name in names)
        self.shared = any(map(self.is_shared, names))
        self.heads = num_heads or (GROUPED_HEADS if self.shared else HEADS)
        if width is not None and width % self.heads:
            self.heads = math.gcd(width, _OTHER_HEADS)
        divisors = [count for count in range(1, self.heads) if self.heads % count == 0] or [1]
        self.kv_heads = divisors[len(divisors) // 2]
        self.width = width or math.lcm(self.heads * HEAD_SIZE, divisor)
        self.head_size = self.width // self.heads
        # What a name that says the size of a head gets: some count all heads together.
        self.named_size = self.head_size

    def choices(self, name: str) -> tuple[Any, ...]:
        """The values to try for a parameter name, the likeliest first."""
        value = self.value(name)
        if value is _UNKNOWN:
            return (self.width, self.heads, 1, self.head_size, 0.0, None, False)
        words, pair = set(words_of(name)), (_WINDOW, _WINDOW)
        if "window" in words:
            return _WINDOW, pair, LONGEST
        return (value, pair) if words & _PICTURES else (value,)

    def projection(self, name: str) -> nn.Linear:
        """The matrix for a parameter that holds the projection of a role, or of several."""
        counts = {"q": self.heads, "o": self.heads} if self.shared else {}
        others = self.kv_heads if self.shared else self.heads
        heads = sum(counts.get(role, others) for role in role_of(name)[0])
        return nn.Linear(self.width, heads * self.head_size)

    def is_shared(self, name: str) -> bool:
        """Whether a name counts key-value heads, or the groups of queries that share them."""
        words = set(words_of(name))
        if name.lower() in KV_HEAD_NAMES:
            return True
        of_keys = {"kv", "value", *(["local"] if self.of_all else [])}
        counted = words & {"num", "n", "number"} and words & {"groups", "kv"}
        return bool(not words & _SIZES and ((words & _HEADS and words & of_keys) or counted))

    def is_of_a_head(self, name: str) -> bool:
        """Whether a parameter name means the size of a head."""
        words = set(words_of(name))
        of_a_head = bool(words & (_HEADS | {"kv", "qk"}) and words & _SIZES)
        return name.lower() in _HEAD_SIZE_NAMES or of_a_head

    def counts_layers(self, name: str) -> bool:
        """Whether a parameter name means the number of layers."""
        words = set(words_of(name))
        counted = bool(words & _LAYER_NAMES) or ("layer" in words and bool(words & _COUNTS))
        is_width = "depth" in words and bool(words & _DEEP)
        return counted and not is_width and not words & _SIZES

    def value(self, name: str) -> Any:
        """The value that a parameter name suggests, or ``_UNKNOWN``."""
        words, lowered = set(words_of(name)), name.lower()
        sized = bool(words & _SIZES)
        said = (
            (self.is_shared(name), self.kv_heads),
            (lowered in HEAD_NAMES, self.heads),
            ("batch" in words, _BATCH),
            (self.is_of_a_head(name), self.named_size),
            (bool(words & _HEADS), self.heads),
            (bool(words & _DROPOUTS), _DROPPED),
            (bool(words & {"idx", "index"}), 0),
            (bool(words & _LENGTHS), LONGEST),
            (self.counts_layers(name), 1),
            *((bool(words & some) and not sized, number) for some, number in _VALUES),
            (bool(words & _BIASES), True),
            ("depth" in words, self.width),
            (bool(words & _WIDTHS) and not words & {"max", "use"}, self.width),
        )
        return next((value for says, value in said if says), _UNKNOWN)


_Reading = tuple[dict[str, Any], str, Any]


class _Settings:
    """Settings that answer a constructor's reads with guessed values, and record the values.

    ``guesses`` maps names to values; a dictionary as a guess stands for nested settings with
    guesses of their own. ``log`` receives each reading: guesses, name and value.
    """

    def __init__(self, sizes: Sizes, guesses: dict[str, Any], log: list[_Reading]) -> None:
        self.__dict__["_own"] = _Kept(sizes, guesses, log)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._read(name, AttributeError)

    def __getitem__(self, name: str) -> Any:
        if not isinstance(name, str):  # as of a tuple
            raise TypeError(name)
        self.__dict__["_own"].by_key = True
        return self._read(name, KeyError)

    def get(self, name: str, default: Any = None) -> Any:
        """Read a name like ``dict.get``."""
        try:
            return self[name]
        except KeyError:
            return default

    def _read(self, name: str, error: type[Exception]) -> Any:
        own: _Kept = self.__dict__["_own"]
        if name in own.read:
            own.log.append((own.guesses, name, own.read[name]))
            return own.read[name]
        value = own.guesses[name] if name in own.guesses else own.sizes.value(name)
        own.log.append((own.guesses, name, value))
        if value is _UNKNOWN:
            raise error(name)
        if isinstance(value, dict):
            value = _FurtherSettings(own.sizes, value, own.log)
        own.read[name] = value
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        self.__dict__["_own"].read[name] = value

    def __deepcopy__(self, _memo: Any) -> _Settings:
        """The settings themselves: they record what calls of a copied module read, too."""
        return self


class _Called:
    """A method of settings that answers a number, shown as Python."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __call__(self, *_: Any, **__: Any) -> int:
        return self.number

    def __repr__(self) -> str:
        return f"lambda *_, **__: {self.number}"


class _FurtherSettings(_Settings):
    """Nested settings: false, so that an unread object counts as False."""

    def __bool__(self) -> bool:
        return False


@dataclasses.dataclass
class _Kept:
    sizes: Sizes
    guesses: dict[str, Any]
    log: list[_Reading]
    read: dict[str, Any] = dataclasses.field(default_factory=dict)
    by_key: bool = False

    def names(self) -> Iterator[str]:
        """Every name that was read, including the names of nested settings."""
        for name, value in self.read.items():
            yield name
            if isinstance(value, _Settings):
                yield from vars(value)["_own"].names()

    def values(self) -> Any:
        """The values read, as a SimpleNamespace, or a dict if a key was read."""
        values = {name: _written(value) for name, value in self.read.items()}
        return values if self.by_key else SimpleNamespace(**values)


def _written(value: Any) -> Any:
    if not isinstance(value, _Settings):
        return value
    own: _Kept = vars(value)["_own"]
    return own.values() if own.read else False


def _of_settings(
    kind: type[nn.Module],
    name: str,
    num_heads: int | None,
    divisor: int,
    others: Mapping[str, Any],
) -> tuple[nn.Module, str]:
    """An instance of a class with a parameter for a settings object or dict.

    Its fields are guessed if no class of settings that the file names has them.
    """
    guesses: dict[str, Any] = {}
    seen: list[str] = []
    first = _Settings(Sizes(num_heads, seen, divisor), guesses, [])
    with contextlib.suppress(Exception):  # a user's constructor may raise anything
        kind(**{**others, name: first})
    read = vars(first)["_own"].read
    if (made := _of_class_beside(kind, name, read, num_heads, divisor, others)) is not None:
        return made
    words = sorted({text for _, text in _compared(kind) if text.isidentifier()})
    failure: Exception | None = None
    for _ in range(_MOST_SETTINGS):
        log: list[_Reading] = []
        settings = _Settings(Sizes(num_heads, seen, divisor), guesses, log)
        own: _Kept = vars(settings)["_own"]
        failure, answered = _answered(kind, {**others, name: settings})
        # Names read only now may tell of shared heads or of methods.
        if set(own.names()) - set(seen) or _settle_method(log, failure):
            seen = list(dict.fromkeys((*seen, *own.names())))
            continue
        lacked = [(held, one) for held, one, value in log if value is _UNKNOWN and one not in held]
        if not answered and lacked:  # a call reads it
            lacked[0][0][lacked[0][1]] = {}
            continue
        read = {*seen, *_settled(guesses)}
        if failure is not None and _guess(log, failure, [one for one in words if one not in read]):
            continue
        if not own.read:
            break
        made = _of_class_beside(kind, name, own.read, num_heads, divisor, others)
        if made is not None:
            return made
        try:
            return _constructed(kind, {**others, name: own.values()})
        except ConstructionError as error:
            if failure is not None or not _settle(log, [False, 1]):
                raise ConstructionError(error.why, error.call, list(_settled(guesses))) from error
    why = f"{kind.__name__} needs {name} to be constructed, and that name says no size"
    raise ConstructionError(why, f"{kind.__name__}({name}=None)", [name]) from failure


def _answered(kind: type[nn.Module], arguments: Mapping[str, Any]) -> tuple[Exception | None, bool]:
    """What a constructor raises, and whether the instance answers a call."""
    try:
        return None, answering(kind(**arguments)) is not None
    except Exception as error:  # noqa: BLE001 (a user's constructor may raise anything)
        return error, True


def _of_class_beside(
    kind: type[nn.Module],
    name: str,
    read: Collection[str],
    num_heads: int | None,
    divisor: int,
    others: Mapping[str, Any],
) -> tuple[nn.Module, str] | None:
    beside = _settings_beside(kind, read, num_heads, divisor) if read else []
    return _answering_of(kind, [{**others, name: one} for one in beside])


def _guess(log: list[_Reading], failure: Exception, words: list[str]) -> bool:
    """Replace a guess after a failed construction; False when no further guess exists."""
    missing = [one for one in log if one[2] is _UNKNOWN]
    held, word, value = [*log[-1:], *missing[-1:]][-1] if log else ({}, "", None)
    if log and word not in held and (missing or _is_of_int(failure)):
        held[word] = {} if missing else (value, value)
        return True
    return _settle(log, [{}, False, 1, *words])


def _of_sizes_left_out(
    kind: type[nn.Module],
    named: Sequence[inspect.Parameter],
    sizes: Sizes,
    choices: Mapping[str, Sequence[Any]],
) -> tuple[nn.Module, str] | None:
    """An instance with other values for optional parameters, where the defaults are refused.

    Tries the width for parameters that default to None, then a small number for each int.
    """
    given = {name: values[0] for name, values in choices.items()}
    said = {one.name: sizes.value(one.name) for one in named if one.default is None}
    further = {name: value for name, value in said.items() if value == sizes.width}
    numbers = [one.name for one in named if type(one.default) is int and one.name not in given]
    for more in (further, *({name: _FEW} for name in numbers)):
        with contextlib.suppress(ConstructionError):
            if more:
                return _constructed(kind, {**given, **more})
    return None


def _answering_of(
    kind: type[nn.Module], choices: Sequence[Mapping[str, Any]]
) -> tuple[nn.Module, str] | None:
    """The first instance, among several choices of arguments, that answers a call."""
    for arguments in choices:
        with contextlib.suppress(ConstructionError):
            made = _constructed(kind, arguments)
            if answering(made[0]) is not None or _takes_ids(made[0]):
                return made
    return None


def _of_read_settings(
    kind: type[nn.Module],
    objects: Mapping[str, Sequence[Any]],
    num_heads: int | None,
    divisor: int,
    choices: Mapping[str, Sequence[Any]],
) -> tuple[nn.Module, str] | None:
    """An instance from guessed settings, where settings of the annotated class failed."""
    given = {name: values[0] for name, values in choices.items()}
    for name in (name for name, made in objects.items() if made):
        with contextlib.suppress(ConstructionError):
            return _of_settings(kind, name, num_heads, divisor, given)
    return None


def _settle_method(log: list[_Reading], failure: Exception | None) -> bool:
    """Whether the last value read was called as a method; its guess is then a function."""
    called = bool(log) and "not callable" in str(failure) and not isinstance(log[-1][2], _Called)
    if called:
        guesses, name, number = log[-1]
        guesses[name] = _Called(number if type(number) is int else 1)
    return called


def _is_of_int(failure: Exception) -> bool:
    """Whether the failure is an attribute or item access on a number."""
    return isinstance(failure, (TypeError, AttributeError)) and "'int' object" in str(failure)


def _settle(log: list[_Reading], chain: list[Any]) -> bool:
    """Replace the last replaceable guess by its successor in ``chain``; False if none is left."""
    for guesses, name, _ in reversed(log):
        value = guesses.get(name, _UNKNOWN)
        places = [place for place, one in enumerate(chain) if repr(one) == repr(value)]
        following = chain[places[0] + 1 :] if places else chain if type(value) is tuple else []
        if following:
            guesses[name] = copy.copy(following[0])
            return True
    return False


def _settled(guesses: Mapping[str, Any]) -> Iterator[str]:
    for name, value in guesses.items():
        if isinstance(value, dict) and value:
            yield from _settled(value)
        else:
            yield name


def lines_needed(text: str, load: Callable[[str], str]) -> Iterator[str]:
    """The lines that a construction text needs: imports, and ``load`` of each class of settings."""
    if "SimpleNamespace(" in text:
        yield "from types import SimpleNamespace"
    if "torch." in text:
        yield "import torch"
    called = dict.fromkeys(_CALLED.findall(text.partition("(")[2]))
    yield from (load(name) for name in called if name not in ("SimpleNamespace", *vars(builtins)))
