"""Detects and undoes replacements of the judge's parts by a candidate's call.

In one process all code can replace everything. Watched are the foundations of a verdict: the names
of torch, ``math``, ``random``, ``time``, ``builtins`` and the harness, and interceptors of calls
(modes, traces, kernels, subnormal numbers). docs/judge.md says which gaps only a separate process
closes.
"""

from __future__ import annotations

import builtins
import contextlib
import gc
import math
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from functools import cache, lru_cache
from itertools import chain
from operator import attrgetter, is_, itemgetter
from types import FunctionType
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from .._golden import golden
from ..targets.loading import replaced_builtins

# Kernels registered from Python for these keys would compute the golden, too.
_HOST_KEYS: Final = ("CPU", "CompositeImplicitAutograd", "CompositeExplicitAutograd", "AutogradCPU")
_SUBNORMAL: Final = sys.float_info.min / 2.0  # zero once a process takes such numbers for zero


def interceptors() -> tuple[Any, ...]:
    """What intercepts calls without a name being replaced."""
    return (
        torch._C._len_torch_function_stack(),  # noqa: SLF001 (no public way to ask)
        torch._C._len_torch_dispatch_stack(),  # noqa: SLF001
        sys.gettrace(),
        sys.getprofile(),
        _SUBNORMAL * 1.0 == 0.0,
        len(torch.library._impls),  # noqa: SLF001
    )


def taken_back(before: tuple[Any, ...], kernels: frozenset[str]) -> list[str]:
    """End interceptors begun since ``before`` and name them; ``kernels``: registered before."""
    now, changes = interceptors(), []
    for _ in range(now[0] - before[0]):
        torch._C._pop_torch_function_stack()  # noqa: SLF001
    for _ in range(now[1] - before[1]):
        torch._C._pop_torch_dispatch_stack(None)  # noqa: SLF001
    if now[:2] != before[:2]:
        changes.append("a mode of torch that sees every call")
    if now[2] is not before[2]:
        sys.settrace(before[2])
        changes.append("the trace function of Python")
    if now[3] is not before[3]:
        sys.setprofile(before[3])
        changes.append("the profile function of Python")
    if now[4] != before[4]:
        torch.set_flush_denormal(before[4])  # a setting, which state.settings judges
    return changes + (_kernels(kernels) if now[5] != before[5] else [])


def _kernels(before: frozenset[str]) -> list[str]:
    """Take back kernels registered for torch's CPU operators, and name them."""
    new = {
        entry
        for entry in torch.library._impls - before  # noqa: SLF001
        if entry.startswith("aten/") and entry.endswith(_HOST_KEYS)
    }
    if new:
        gc.unfreeze()  # what was loaded may have been set aside, and is searched as well
    for entry in gc.get_objects() if new else ():
        if type(entry) is torch.library.Library and not new.isdisjoint(entry._op_impls):  # noqa: SLF001
            entry._destroy()  # noqa: SLF001 (what the object does when it is collected)
    return [f"the kernel of {entry}" for entry in sorted(new)]


def registered() -> frozenset[str]:
    """Return the kernels registered from Python, for any operator and device."""
    return frozenset(torch.library._impls)  # noqa: SLF001


# Packages of the harness on which neither a verdict nor a diagnosis depends.
_ONLOOKERS: Final = frozenset("adapters cli graphs pytest_plugin tools views".split())
_HARNESS: Final = str(__package__).partition(".")[0]
_GOLDEN: Final = "_attention_conformance_reference"
# Modules in which the harness looks up foreign names.
_OUTSIDE: Final = (torch, torch.linalg, math, random, time, builtins)
_code = attrgetter("__code__")
_BASE: Final = torch._C.TensorBase  # noqa: SLF001 (what Tensor inherits; nobody can replace it there)
_GONE: Final = object()
_REPLACED_BY_TORCH: Final = frozenset({"manual_seed"})  # when its compiler is first imported
# Modules every verdict uses: checked after each call; the rest if a clause requires it.
_CORE: Final = frozenset(
    f"{_HARNESS}.{name}"
    for name in (
        *("oracle.comparison", "oracle.oracle", "oracle.yardstick", "calls.calling"),
        "clauses.judging",
        *("tolerance.attention_bound", "tolerance.model"),
    )
) | {"torch", "torch._tensor", "torch.linalg", "math", "builtins"}


# Operations attentions consist of: a replacement by one candidate would reach another.
_OF_ATTENTION: Final = frozenset("softmax matmul bmm einsum".split())


class _Names(NamedTuple):
    """Names of a module or class with their objects."""

    owner: Any
    names: tuple[str, ...]
    pick: Callable[[Any], tuple[Any, ...]]
    values: tuple[Any, ...]
    closed: bool

    def as_before(self) -> bool:
        """Tell whether the names stand for identical objects; equality would call the new ones."""
        entries = vars(self.owner)
        if self.closed and len(entries) != len(self.names):
            return False
        try:
            return all(map(is_, self.pick(entries), self.values))
        except KeyError:
            return False

    def changed(self) -> dict[str, Any]:
        """Return changed names with their new objects; ``_GONE`` for deleted names.

        A new name of ``Tensor`` counts only if it hides a name of torch.
        """
        entries, before = dict(vars(self.owner)), dict(zip(self.names, self.values, strict=True))
        other = {name: entries.get(name, _GONE) for name in self.names}
        other = {name: entry for name, entry in other.items() if entry is not before[name]}
        added = sorted(entries.keys() - before.keys()) if self.closed else []
        return other | {name: entries[name] for name in added if hasattr(_BASE, name)}

    def put_back(self) -> list[str]:
        """Restore the names' objects; returns the changed names in words."""
        before, changed = dict(zip(self.names, self.values, strict=True)), self.changed()
        for name in changed:
            _put(self.owner, name, before.get(name, _GONE))
        return [f"{_shown(self.owner)}.{name}" for name in changed]


class _Part(NamedTuple):
    """Names with their objects, functions with their code, tables with their entries.

    Immutable, even for a call. ``looks`` holds the name lookups of all owners, ``values`` their
    results in a row; likewise ``entries`` those of tables, keys included.
    """

    names: tuple[_Names, ...]
    functions: tuple[FunctionType, ...]
    codes: tuple[Any, ...]
    tables: tuple[tuple[str, dict[Any, Any], tuple[tuple[Any, Any], ...]], ...]
    looks: tuple[tuple[Callable[[Any], tuple[Any, ...]], Any], ...]
    values: tuple[Any, ...]
    lengths: tuple[int, ...]
    entries: tuple[Any, ...]

    def names_as_before(self) -> bool:
        """Compare all names with their objects in one pass, after each call."""
        found = chain.from_iterable([pick(entries) for pick, entries in self.looks])
        try:
            return all(map(is_, found, self.values)) and all(
                held.as_before() for held in self.names if held.closed
            )
        except KeyError:
            return False

    def tables_as_before(self) -> bool:
        tables = [table for _, table, _ in self.tables]
        found = chain.from_iterable(chain.from_iterable([table.items() for table in tables]))
        return tuple(map(len, tables)) == self.lengths and all(map(is_, found, self.entries))

    def put_back(self) -> list[str]:
        """Restore every change and return the changes in words."""
        changes: list[str] = []
        if not self.names_as_before():
            changes += [n for held in self.names if not held.as_before() for n in held.put_back()]
        if tuple(map(_code, self.functions)) != self.codes:  # code has an equality of its own
            for function, code in zip(self.functions, self.codes, strict=True):
                if function.__code__ is not code:
                    function.__code__ = code
                    changes.append(f"the code of {function.__module__}.{function.__qualname__}")
        for name, table, before in () if self.tables_as_before() else self.tables:
            entries, known = (chain.from_iterable(each) for each in (table.items(), before))
            if len(table) != len(before) or not all(map(is_, entries, known)):
                table.clear()
                table.update(before)
                changes.append(name)
        return changes


class Seal(NamedTuple):
    """The judge's parts at one moment; ``core`` is the part used by every verdict."""

    whole: _Part
    core: _Part
    interceptors: tuple[Any, ...]
    kernels: frozenset[str]

    def broken(self, *, everywhere: bool = True) -> list[str]:
        """Return the changes to the judge's parts in words, and undo them as far as possible.

        Without ``everywhere`` only the parts used by every verdict are examined.
        """
        changes = (self.whole if everywhere else self.core).put_back()
        if self.interceptors == interceptors():
            return changes
        return changes + taken_back(self.interceptors, self.kernels)


def seal(*, everywhere: bool = True) -> Seal:
    """Record what the judge is made of now.

    Without ``everywhere`` only what every verdict goes through: the rest costs the most.
    """
    judges = _judges()
    layouts = [_layout_of(module) for module in judges if everywhere or _is_core(_home(module))]
    tables = [(n, table, tuple(table.items())) for layout in layouts for n, table in layout.tables]
    tensors = _names_of(Tensor, (), closed=True)
    core_functions, core_names = _core_of(judges)
    core_tables = [entry for entry in tables if _is_core(entry[0].rpartition(".")[0])]
    core = _part((tensors, *core_names), core_functions, core_tables)
    if not everywhere:
        return Seal(core, core, interceptors(), registered())
    functions = tuple(chain.from_iterable(layout.functions for layout in layouts))
    outside = [tensors, *(_names_of(module, _public(module)) for module in _OUTSIDE)]
    names = (*outside, *chain.from_iterable(layout.names for layout in layouts))
    return Seal(_part(names, functions, tables), core, interceptors(), registered())


def _part(
    names: tuple[_Watched, ...], functions: tuple[FunctionType, ...], tables: Iterable[Any]
) -> _Part:
    held = _held(names)
    looks = tuple((each.pick, vars(each.owner)) for each in held)
    values = tuple(chain.from_iterable(each.values for each in held))
    functions, tables = tuple(dict.fromkeys(functions)), tuple(tables)
    lengths = tuple(len(before) for _, _, before in tables)
    entries = tuple(chain.from_iterable(chain.from_iterable(before for _, _, before in tables)))
    codes = tuple(map(_code, functions))
    return _Part(held, functions, codes, tables, looks, values, lengths, entries)


@lru_cache(maxsize=1)
def _core_of(
    judges: tuple[Any, ...],
) -> tuple[tuple[FunctionType, ...], tuple[_Watched, ...]]:
    """Return the functions every verdict uses, and the names used in them."""
    layouts = [_layout_of(module) for module in judges if _is_core(_home(module))]
    functions = tuple(chain.from_iterable(layout.functions for layout in layouts))
    used = _OF_ATTENTION.union(*(f.__code__.co_names for f in functions))
    outside = [_names_of(module, _public(module)) for module in _OUTSIDE]
    core = (
        _names_of(owner, tuple(name for name in names if name in used or owner is time))
        for owner, names, *_ in (*outside, *chain.from_iterable(one.names for one in layouts))
    )
    return functions, tuple(one for one in core if one.names)


def _home(owner: Any) -> str:
    return str(owner.__module__ if isinstance(owner, type) else owner.__name__)


def _shown(owner: Any) -> str:
    home = _home(owner).replace(_GOLDEN, "the golden reference")
    return owner.__qualname__ if isinstance(owner, type) else home


def _is_core(module: str) -> bool:
    return module in _CORE or module.startswith(_GOLDEN)


class _Watched(NamedTuple):
    """Watched names of a module or class with their lookup; all names if ``closed``."""

    owner: Any
    names: tuple[str, ...]
    pick: Callable[[Any], tuple[Any, ...]]
    closed: bool


def _names_of(owner: Any, names: tuple[str, ...], *, closed: bool = False) -> _Watched:
    entries = vars(owner)
    kept = tuple(entries) if closed else tuple(name for name in names if name in entries)
    kept *= 2 if len(kept) == 1 else 1  # of one name it would give no tuple
    pick = itemgetter(*kept or ("",))
    return _Watched(owner, kept, pick, closed)


def _held(watched: tuple[_Watched, ...]) -> tuple[_Names, ...]:
    held = []
    for owner, names, pick, closed in (each for each in watched if each.names):
        try:
            held.append(_Names(owner, names, pick, pick(vars(owner)), closed))
        except KeyError:  # one of them is gone
            now = _names_of(owner, names, closed=closed)
            held.append(_Names(*now[:3], now.pick(vars(owner)), closed))
    return tuple(held)


class _Layout(NamedTuple):
    """The watched parts of a module: names, functions with their code, constant tables."""

    names: tuple[_Watched, ...]
    functions: tuple[FunctionType, ...]
    tables: tuple[tuple[str, dict[Any, Any]], ...]


def _layout_of(module: Any) -> _Layout:
    """Return the watched parts of a module; cached once its import is complete."""
    is_loading = getattr(module.__spec__, "_initializing", False)  # as its own import says
    layout: _Layout = _layout.__wrapped__(module) if is_loading else _layout(module)
    return layout


@cache  # one for each module of the harness, which live as long
def _layout(module: Any) -> _Layout:
    own = {name: entry for name, entry in vars(module).items() if not name.startswith("__")}
    made = [entry for entry in vars(module).values() if _made_by(entry, module.__name__)]
    classes = [entry for entry in made if isinstance(entry, type)]
    functions = [rule for entry in own.values() for rule in _rules_of(entry)]
    for owner in (module, *classes):
        entries = (_function_of(entry) for entry in vars(owner).values())
        functions += [f for f in entries if f is not None and _made_by(f, module.__name__)]
    tables = (
        (f"{module.__name__}.{name}", entry)
        for name, entry in own.items()
        if name.isupper() and isinstance(entry, dict)
    )
    names = [_names_of(module, tuple(own)), *(_names_of(one, _methods(one)) for one in classes)]
    return _Layout(tuple(names), tuple(functions), tuple(tables))


def _rules_of(entry: Any) -> list[FunctionType]:
    steps = entry.steps.values() if isinstance(entry, golden.Program) else ()
    return [rule for each in steps if isinstance(rule := each.rule, FunctionType)]


def _judges() -> tuple[Any, ...]:
    """Return the modules of the harness and the golden on which a verdict depends."""
    modules = []
    for name in sorted(name for name in sys.modules if name.startswith((_HARNESS, _GOLDEN))):
        module = sys.modules[name]
        package, _, rest = name.partition(".")
        is_harness = package == _HARNESS and rest.partition(".")[0] not in _ONLOOKERS
        if module is not None and (is_harness or package == _GOLDEN):
            modules.append(module)
    return tuple(modules)


def _public(module: Any) -> tuple[str, ...]:
    return tuple(
        name
        for name, entry in vars(module).items()
        if callable(entry) and not name.startswith("_") and name not in _REPLACED_BY_TORCH
    )


def _methods(owner: type) -> tuple[str, ...]:
    return tuple(
        name
        for name, entry in vars(owner).items()
        if isinstance(entry, (FunctionType, property, classmethod, staticmethod))
    )


def _function_of(entry: Any) -> FunctionType | None:
    inner = getattr(entry, "fget", None) or getattr(entry, "func", None)
    inner = inner or getattr(entry, "__func__", None) or entry
    return inner if isinstance(inner, FunctionType) else None


def _made_by(entry: Any, module: str) -> bool:
    return isinstance(entry, (FunctionType, type)) and entry.__module__ == module


_WATCH: ContextVar[tuple[Seal, list[str]] | None] = ContextVar("watch", default=None)
# Replacements at loading: of torch (their calls get them back), of the harness (reported).
_THEIRS: Final[list[tuple[Any, str, Any]]] = []
_AT_LOAD: Final[list[str]] = []
# The judge's modules when candidates were loaded, with their seal.
_AS_LOADED: Final[list[tuple[tuple[Any, ...], Seal]]] = []
# The last watch, whose seal is compared after calls outside of any watch.
_LAST: Final[list[tuple[Seal, list[str]]]] = []


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Load candidates; report replaced names of the harness and keep their names of torch apart.

    A library may replace functions of torch: its replacements are in force during its calls.
    """
    # A warm process has made the seal, and no call has been watched since.
    before, judges = seal() if _LAST else seal_as_loaded(), _judges()
    _AS_LOADED.clear()
    try:
        yield
    finally:
        _THEIRS.extend((builtins, *replaced) for replaced in replaced_builtins())
        for held in before.whole.names:
            if held.owner in (Tensor, *_OUTSIDE) and not held.as_before():
                _THEIRS.extend((held.owner, name, new) for name, new in held.changed().items())
                held.put_back()
        _AT_LOAD.extend(name for name in before.broken() if name not in _AT_LOAD)
        if before.whole.names_as_before():
            before = before._replace(interceptors=interceptors(), kernels=registered())
            _AS_LOADED.append((judges, before))


def seal_as_loaded() -> Seal:
    """Return the seal made when candidates were loaded, if no module was added since."""
    same = [sealed for judges, sealed in _AS_LOADED if judges == _judges()]
    return same[0] if same else seal()


def tampered_at_load() -> list[str]:
    """Return the harness's names replaced by candidates during loading."""
    return list(_AT_LOAD)


@contextlib.contextmanager
def watching(sealed: Seal, changes: list[str]) -> Iterator[None]:
    """Compare the judge with a seal after each call; what was changed is added to ``changes``."""
    token = _WATCH.set((sealed, changes))
    _LAST[:] = [(sealed, changes)]
    try:
        yield
    finally:
        _WATCH.reset(token)


@contextlib.contextmanager
def watching_calls() -> Iterator[None]:
    """Compare the judge with one seal after each of many calls: making seals is slow."""
    with watching(seal(everywhere=False), []):
        yield


def before_call(*kept: list[Any]) -> tuple[Any, ...]:
    """Prepare the arguments of ``after_call``, protecting the lists ``kept``."""
    watch = _WATCH.get()
    sealed, changes = watch or next(iter(_LAST), None) or (seal_as_loaded(), [])
    originals = [(owner, name, vars(owner).get(name, _GONE)) for owner, name, _ in _THEIRS]
    for patched in _THEIRS:
        _put(*patched)
    own = [pick(entries) for _, entries, _, pick, _ in _OWN[1]]
    codes = tuple(map(_code, _OWN[0]))
    watched: list[list[Any]] = [_LAST, _AS_LOADED, _THEIRS, *kept]
    lists = [(held, tuple(held)) for held in watched]
    return (_OWN, own, codes, lists, watch, _TOOLS), sealed, changes, originals


def after_call(  # noqa: C901 (whatever it called could have been exchanged)
    own: tuple[Any, ...], sealed: Seal, changes: list[str], originals: Any
) -> None:
    """Restore the judge's changed parts, first of all the code detecting changes.

    The function uses no name the call could have replaced. The caller ensures that this function's
    own code is unchanged.
    """
    (functions, names), values, codes, lists, watch, tools = own
    every, each, same, pairs, put, code_of, missing = tools
    if not every(each(same, each(code_of, functions), codes)):
        for function, code in pairs(functions, codes):
            if function.__code__ is not code:
                function.__code__ = code
                changes.append(f"the code of {function.__module__}.{function.__qualname__}")
    for (owner, entries, known, pick, shown), before in pairs(names, values):
        try:
            if every(each(same, pick(entries), before)):
                continue
        except missing:  # one of them is gone
            pass
        for name, entry in pairs(known, before):
            if name not in entries or entries[name] is not entry:
                put(owner, name, entry)
                changes.append(f"{shown}.{name}")
    if _WATCH.get() is not watch:
        _WATCH.set(watch)
        changes.append("which watch is on")
    for held, records in lists:
        if tuple(held) != records:
            held[:] = records
            changes.append("the records of what is watched")
    for original in originals:
        _put(*original)
    changes.extend(sealed.broken(everywhere=False))


def _put(owner: Any, name: str, entry: Any) -> None:
    if entry is not _GONE:
        setattr(owner, name, entry)
    elif name in vars(owner):
        delattr(owner, name)


def _own() -> tuple[tuple[FunctionType, ...], tuple[Any, ...]]:
    """Return the detecting functions, and the names of this and further modules they use.

    The names come with their owner, its entries, their lookup, and the owner in words.
    """
    layout = _layout.__wrapped__(sys.modules[__name__])
    used = tuple(dict.fromkeys(chain.from_iterable(f.__code__.co_names for f in layout.functions)))
    others = (_names_of(owner, used) for owner in (builtins, sys, gc, torch._C, torch.library))  # noqa: SLF001 (no public way to ask)
    names = (
        (held.owner, vars(held.owner), held.names, held.pick, _shown(held.owner))
        for held in (*layout.names, *others)
        if held.names
    )
    return layout.functions, tuple(names)


_TOOLS: Final = (all, map, is_, zip, setattr, _code, KeyError)
_OWN: Final = _own()
