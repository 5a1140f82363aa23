"""The program of a graph's process: opens one model file and runs it once per request.

Started by :mod:`.process`, it talks over the socket on standard input and ends with the socket.
Module level stays light: onnxruntime is imported at the first run, onnx for a request of an inner
tensor, torch never.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import math
import mmap
import os
import re
import select
import socket
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np

from .protocol import MEMORY, Arrays, GraphRefused, Head, bfloat16, receive, send, sentence

if sys.platform != "win32":
    import resource


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of one child: bytes of address space, seconds of CPU and of wall time a run.

    answer
        Bytes of all outputs of one run together.
    """

    memory: int = MEMORY
    cpu_seconds: float = 20.0
    wall_seconds: float = 10.0
    answer: int = 1 << 30


def confine(memory: int) -> None:
    """Limit the address space of this process (0: no limit), and leave no core files behind.

    Where the system has no such limits nothing happens: only the time on the wall is limited.
    """
    if sys.platform == "win32":
        return
    _lower(resource.RLIMIT_CORE, 0)
    if memory:
        _lower(resource.RLIMIT_AS, memory)
    # When memory runs short, the system shall end this process, not its parent.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def _lower(which: int, limit: int) -> None:
    """Lower a limit permanently, but never raise it."""
    soft, hard = resource.getrlimit(which)
    limit = min(
        [limit, *(current for current in (soft, hard) if current != resource.RLIM_INFINITY)]
    )
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(which, (limit, limit))


def grant_cpu(seconds: float) -> None:
    """Let this process use some more seconds of CPU; then the system ends it with SIGXCPU."""
    if sys.platform == "win32":
        return
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    soft = math.ceil(time.process_time() + seconds)
    if hard != resource.RLIM_INFINITY:
        soft = min(soft, hard)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))


CPU: Final = "CPUExecutionProvider"
# This provider sends graphs to a service and computes nothing itself.
_REMOTE: Final = "AzureExecutionProvider"
_KEPT: Final = 16
_FATAL: Final = 4
_LEVELS: Final = {
    "disabled": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "all": "ORT_ENABLE_ALL",
}
_BFLOAT16: Final = "tensor(bfloat16)"
_BFLOAT16_CODE: Final = 16  # onnx.TensorProto.BFLOAT16
# Byte patterns of operators on 8-bit integers in a file: DynamicQuantizeLinear …
_INTEGERS: Final = re.compile(rb"MatMulInteger|uantizeLinear|QAttention|DynamicQuantizeMatMul")
_UNSIGNED: Final = "session.x64quantprecision"  # as .saturation, for what onnxruntime fuses itself
_FOLDER: Final = "session.model_external_initializers_file_folder_path"
# Bytes of weights nudged at most: the smallest come first, and each layer has small ones.
_NUDGED: Final = 1 << 26
# From this many bytes of weights on, sessions share large weights, and nudge fewer.
_LARGE: Final = 1 << 26
_SHARED: Final = 1 << 16
_NUDGED_OF_LARGE: Final = 1 << 23
_UNPACKED: Final = "session.disable_prepacking"
OUT_OF_MEMORY: Final = 86  # the exit status that says so
_LARGEST_FEEDS: Final = 1 << 40  # the parent knows what it sends
_OUT_OF_MEMORY_WORDS: Final = ("bad_alloc", "bad allocation", "Failed to allocate memory")


# The seed of changed weights, 0 for the file's own, and the relative change of each.
Nudge = tuple[int, float]


class Session:
    """A session of onnxruntime with the names and types of its inputs and outputs.

    ``kept`` are weights in place of the file's own, which have to live as long as the session.
    """

    def __init__(self, runtime: Any, session: Any, kept: Sequence[Any] = ()) -> None:
        inputs, outputs = session.get_inputs(), session.get_outputs()
        self._values = runtime.OrtValue
        self._session = session
        self._kept = kept
        self.outputs = [port.name for port in outputs]
        self.types = {port.name: str(port.type) for port in (*inputs, *outputs)}

    def run(self, feeds: Arrays) -> list[Any]:
        """The outputs in order; by onnxruntime's own values where numpy lacks a type."""
        if _BFLOAT16 not in self.types.values():
            outputs: list[Any] = self._session.run(self.outputs, feeds)
            return outputs
        values = {name: self._value(array, self.types.get(name)) for name, array in feeds.items()}
        return [
            _bfloat16(value) if value.data_type() == _BFLOAT16 else value.numpy()
            for value in self._session.run_with_ort_values(self.outputs, values)
        ]

    def _value(self, array: Any, kind: str | None) -> Any:
        if kind != _BFLOAT16:
            return self._values.ortvalue_from_numpy(array)
        bits = array.view(np.uint16)
        return self._values.ortvalue_from_numpy_with_onnx_type(bits, _BFLOAT16_CODE)


def _bfloat16(value: Any) -> Any:
    data = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes())
    return np.frombuffer(data, bfloat16()).reshape(value.shape())


def weights_size(path: Path) -> int:
    """Return the bytes of a model's file and of neighbouring files named after it."""
    with contextlib.suppress(OSError):
        files = (file for file in path.parent.iterdir() if file.name.startswith(path.stem))
        return sum(file.stat().st_size for file in files if file.is_file())
    return 0


class _Server:
    """Answers requests about one model file; keeps sessions by level, provider and taps."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._kept: OrderedDict[tuple[Any, ...], Session] = OrderedDict()
        self._model: Any = None
        self._large = weights_size(path) >= _LARGE
        self._weights: dict[str, Any] = {}

    def answer(self, request: Head, feeds: Arrays) -> tuple[Head, Arrays]:
        """Answer one message; raises the libraries' exceptions."""
        do = request["do"]
        if do == "import":
            importlib.import_module(request["library"])
        elif do == "run":
            return {}, self._run(request, feeds)
        elif do == "providers":
            return {"providers": self._providers()}, {}
        elif do == "open":
            self._open(request)
        elif do == "saturates":
            return {"saturates": self._saturates}, {}
        else:
            from . import parsing  # noqa: PLC0415 (imports onnx, as few processes need)

            inspect = parsing.header if do == "header" else parsing.defects
            return {"result": inspect(self._path)}, {}
        return {}, {}

    @cached_property
    def _runtime(self) -> Any:
        runtime = importlib.import_module("onnxruntime")
        runtime.set_default_logger_severity(_FATAL)
        return runtime

    @cached_property
    def _saturates(self) -> bool:
        """Tell whether this machine saturates products of 8-bit integers the graph may hold."""
        try:
            with (
                self._path.open("rb") as file,
                mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as held,
            ):
                multiplies = _INTEGERS.search(held) is not None
        except (OSError, ValueError):  # no file or an empty one: onnxruntime says so
            return False
        if not multiplies:
            return False
        from . import saturation  # noqa: PLC0415 (imports onnx, as few processes need)

        return saturation.saturates(self._runtime)

    def _providers(self) -> list[str]:
        return [name for name in self._runtime.get_available_providers() if name != _REMOTE]

    def _run(self, request: Head, feeds: Arrays) -> Arrays:
        session = self._open(request)
        answer = dict(zip(session.outputs, session.run(feeds), strict=True))
        for name, array in answer.items():
            if not isinstance(array, np.ndarray) or array.dtype.kind in "OUS":
                msg = f"the output {name!r} ({session.types[name]}) is no tensor of numbers"
                raise GraphRefused(msg)
        size = sum(array.nbytes for array in answer.values())
        if size > request["answer"]:
            msg = f"its outputs have {size} bytes, more than the {request['answer']} it may answer"
            raise GraphRefused(msg)
        return answer

    def _open(self, request: Head) -> Session:
        """Return the session of a setting and taps; the latest few are kept."""
        taps = tuple(sorted(set(request["taps"])))
        nudge = (request["nudge"], request.get("nudge_size", 0.0))
        key = (request["level"], request["provider"], taps, nudge)
        if key not in self._kept:
            self._kept[key] = self._opened(*key)
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]

    def _opened(self, level: str, provider: str, taps: Sequence[str], nudge: Nudge) -> Session:
        runtime = self._runtime
        options = runtime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = _FATAL
        options.graph_optimization_level = getattr(runtime.GraphOptimizationLevel, _LEVELS[level])
        if provider not in self._providers():
            msg = f"the provider {provider} is not there: {', '.join(self._providers())}"
            raise GraphRefused(msg)
        source: str | bytes = str(self._path)
        if self._saturates:
            options.add_session_config_entry(_UNSIGNED, "1")
        nudged = {} if nudge[0] == 0 else self._nudged(*nudge)
        if taps or self._saturates or self._large or nudged:
            source = self._with_outputs(taps, nudged)
            options.add_session_config_entry(_FOLDER, str(self._path.resolve().parent))
        held = {name: value for name, value in self._shared.items() if name not in nudged}
        for name, weights in held.items():
            options.add_initializer(name, weights)
        if self._shared:  # no session makes weights of its own of them
            options.add_session_config_entry(_UNPACKED, "1")
            options.enable_cpu_mem_arena = False
        providers = [provider] if provider == CPU else [provider, CPU]
        try:
            session = runtime.InferenceSession(source, options, providers=providers)
        except _errors_of(runtime):
            if not self._saturates:
                raise
            # onnxruntime 1.31 opens some files of steps for each channel without this option alone.
            options.add_session_config_entry(_UNSIGNED, "0")
            session = runtime.InferenceSession(source, options, providers=providers)
        if provider not in session.get_providers():
            msg = f"the provider {provider} does not start here"
            raise GraphRefused(msg)
        return Session(runtime, session, list(held.values()))

    @cached_property
    def _shared(self) -> dict[str, Any]:
        """Return a large model's weights, shared by all its sessions."""
        if not self._large:
            return {}
        self._read()
        make = self._runtime.OrtValue.ortvalue_from_numpy
        return {name: make(value) for name, value in self._weights.items()}

    def _nudged(self, seed: int, size: float) -> dict[str, Any]:
        """Return the weights, each number changed by a part of itself, up or down at random.

        With size 0 by one unit in the last place; else the steps of integers are changed, too.
        """
        from . import parsing  # noqa: PLC0415 (imports onnx, as few processes need)

        generator = np.random.default_rng(seed)
        most = _NUDGED_OF_LARGE if self._large else _NUDGED
        every = parsing.float_weights(
            self._read(), self._path, most, self._weights, numbers=size > 0
        )
        nudged = {}
        for name, array in every:
            signs = generator.choice([-1, 1], array.shape)
            step = np.asarray(1 + signs * (size or np.finfo(array.dtype).eps), array.dtype)
            nudged[name] = np.asarray(array * step)
        return nudged

    def _read(self) -> Any:
        """Return the model without external data, with weights whose products do not saturate."""
        if self._model is None:
            from . import parsing  # noqa: PLC0415 (imports onnx, as few processes need)

            self._model = parsing.read_model(self._path)
            if self._saturates:
                from . import saturation  # noqa: PLC0415 (as above)

                saturation.widen(self._model, self._path.parent)
            if self._large:
                self._weights = parsing.mapped(self._model, self._path, _SHARED)
                # Parts removed from a message are freed with the message only.
                self._model = type(self._model).FromString(self._model.SerializeToString())
            parsing.relocate(parsing.all_tensors(self._model), self._path)
        return self._model

    def _with_outputs(self, taps: Sequence[str], nudged: Mapping[str, Any]) -> bytes:
        """Serialise the model with inner tensors as further outputs, and with nudged weights.

        Weights handed to onnxruntime separately would not reach folded constants.
        """
        model = self._read()
        if nudged:
            from onnx import numpy_helper  # noqa: PLC0415 (as few processes need)

            own, model = model, type(model)()
            model.CopyFrom(own)
            for tensor in model.graph.initializer:
                if tensor.name in nudged:
                    tensor.CopyFrom(numpy_helper.from_array(nudged[tensor.name], tensor.name))
        outputs = model.graph.output
        before = len(outputs)
        present = {output.name for output in outputs}
        try:
            for name in taps:
                if name not in present:
                    outputs.add().name = name
            return bytes(model.SerializeToString())
        finally:
            del outputs[before:]


def main(path: str, memory: str, cpu_seconds: str) -> None:
    """Serve one model file until the parent goes away."""
    confine(int(memory))
    parent = socket.socket(fileno=0)
    threading.Thread(target=_follow_parent, args=(parent,), daemon=True).start()
    model = Path(path)
    os.chdir(model.parent)  # onnxruntime looks for external data from there
    try:
        _serve(parent, _Server(model), float(cpu_seconds))
    except MemoryError:
        os._exit(OUT_OF_MEMORY)
    except (EOFError, OSError):
        os._exit(0)  # the parent is gone


def _follow_parent(parent: socket.socket) -> None:
    """End this process with its parent, even during an endless run."""
    if hasattr(select, "poll"):
        watch = select.poll()
        watch.register(parent, getattr(select, "POLLRDHUP", 0))  # a hang-up is always reported
        watch.poll()
        os._exit(0)


def _serve(parent: socket.socket, server: _Server, cpu_seconds: float) -> None:
    while True:
        request, feeds = receive(parent, most=_LARGEST_FEEDS)
        grant_cpu(cpu_seconds)
        try:
            head, arrays = server.answer(request, feeds)
            send(parent, head, arrays)
        except (EOFError, OSError):
            raise
        except Exception as error:  # whatever onnx or onnxruntime say of a graph
            if _out_of_memory(error):
                raise MemoryError from error
            send(parent, {"refused": sentence(error), "error": type(error).__name__}, {})


def _errors_of(runtime: Any) -> tuple[type[Exception], ...]:
    """Return the exceptions of onnxruntime's own, which have no common base."""
    kinds = vars(runtime.capi.onnxruntime_pybind11_state).values()
    return tuple(kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Exception))


def _out_of_memory(error: Exception) -> bool:
    text = str(error)
    return isinstance(error, MemoryError) or any(word in text for word in _OUT_OF_MEMORY_WORDS)
