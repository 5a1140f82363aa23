"""The program of a graph's process: opens one model file and runs it as often as it is asked.

It is started by :mod:`.child`, talks over the socket that is its standard input and ends with it.
Module level stays light: onnxruntime is imported with the first run, onnx when a tensor inside the
graph is asked for, torch never.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import select
import socket
import sys
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime

from .limits import confine, grant_cpu
from .parsing import sentence
from .protocol import Arrays, GraphRefused, Head, bfloat16, receive, send

CPU: Final = "CPUExecutionProvider"
# It sends graphs to a service and computes nothing itself.
_REMOTE: Final = "AzureExecutionProvider"
_KEPT: Final = 16
_FATAL: Final = 4
_BFLOAT16: Final = "tensor(bfloat16)"
_BFLOAT16_CODE: Final = 16  # onnx.TensorProto.BFLOAT16
_FOLDER: Final = "session.model_external_initializers_file_folder_path"


class Opened:
    """A session with the names and types of what goes in and comes out."""

    def __init__(self, session: Any) -> None:
        inputs, outputs = session.get_inputs(), session.get_outputs()
        self.session = session
        self.outputs = [port.name for port in outputs]
        self.kinds = {port.name: str(port.type) for port in (*inputs, *outputs)}
        self._by_value = _BFLOAT16 in self.kinds.values()

    def run(self, feeds: Arrays) -> list[Any]:
        """The outputs in order; by onnxruntime's own values where numpy knows no such type."""
        if not self._by_value:
            outputs: list[Any] = self.session.run(self.outputs, feeds)
            return outputs
        given = {name: _value(array, self.kinds.get(name, "")) for name, array in feeds.items()}
        found = self.session.run_with_ort_values(self.outputs, given)
        return [
            _bfloat16(value) if value.data_type() == _BFLOAT16 else value.numpy() for value in found
        ]


class Sessions:
    """Sessions by level, provider and the tensors inside the graph that are asked for."""

    def __init__(self, path: Path) -> None:
        onnxruntime.set_default_logger_severity(_FATAL)
        self._path = path
        self._kept: OrderedDict[tuple[Any, ...], Opened] = OrderedDict()
        self._model: Any = None

    def providers(self) -> list[str]:
        """What can compute here; the CPU's is always among it."""
        return [name for name in onnxruntime.get_available_providers() if name != _REMOTE]

    def run(self, asked: Head, feeds: Arrays) -> Arrays:
        """The outputs and taps by name."""
        opened = self.open(asked)
        answer = dict(zip(opened.outputs, opened.run(feeds), strict=True))
        for name, array in answer.items():
            if not isinstance(array, np.ndarray) or array.dtype.kind in "OUS":
                msg = f"the output {name!r} ({opened.kinds[name]}) is no tensor of numbers"
                raise GraphRefused(msg)
        size = sum(array.nbytes for array in answer.values())
        if size > asked["answer"]:
            msg = f"its outputs have {size} bytes, more than the {asked['answer']} it may answer"
            raise GraphRefused(msg)
        return answer

    def open(self, asked: Head) -> Opened:
        """The session of a level, a provider and taps; the latest few are kept."""
        taps = tuple(sorted(set(asked["taps"])))
        key = (asked["level"], asked["provider"], taps)
        session = self._kept.get(key)
        if session is None:
            session = Opened(self._opened(asked["level"], asked["provider"], taps))
            self._kept[key] = session
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return session

    def _opened(self, level: str, provider: str, taps: Sequence[str]) -> Any:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = _FATAL
        options.graph_optimization_level = _levels()[level]
        if provider not in self.providers():
            msg = f"the provider {provider} is not there: {', '.join(self.providers())}"
            raise GraphRefused(msg)
        source: str | bytes = str(self._path)
        if taps:
            source = self._with_outputs(taps)
            options.add_session_config_entry(_FOLDER, str(self._path.resolve().parent))
        given = [provider] if provider == CPU else [provider, CPU]
        session = onnxruntime.InferenceSession(source, options, providers=given)
        if provider not in session.get_providers():
            msg = f"the provider {provider} does not start here"
            raise GraphRefused(msg)
        return session

    def _with_outputs(self, taps: Sequence[str]) -> bytes:
        """The model with tensors inside the graph as more outputs."""
        if self._model is None:
            from .external import relocate  # noqa: PLC0415 (imports onnx, as few processes need)
            from .parsing import all_tensors, read_model  # noqa: PLC0415

            self._model = read_model(self._path)
            relocate(all_tensors(self._model), self._path)
        outputs = self._model.graph.output
        before = len(outputs)
        known = {output.name for output in outputs}
        try:
            for name in taps:
                if name not in known:
                    outputs.add().name = name
            return bytes(self._model.SerializeToString())
        finally:
            del outputs[before:]


def _levels() -> dict[str, Any]:
    levels = onnxruntime.GraphOptimizationLevel
    return {
        "disabled": levels.ORT_DISABLE_ALL,
        "basic": levels.ORT_ENABLE_BASIC,
        "extended": levels.ORT_ENABLE_EXTENDED,
        "all": levels.ORT_ENABLE_ALL,
    }


def _value(array: Any, kind: str) -> Any:
    if kind != _BFLOAT16:
        return onnxruntime.OrtValue.ortvalue_from_numpy(array)
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(
        array.view(np.uint16), _BFLOAT16_CODE
    )


def _bfloat16(value: Any) -> Any:
    held = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes())
    return np.frombuffer(held, bfloat16()).reshape(value.shape())


OUT_OF_MEMORY: Final = 86  # the exit status that says so
_LARGEST_FEEDS: Final = 1 << 40  # the parent knows what it sends
_OUT_OF_MEMORY_WORDS: Final = ("bad_alloc", "bad allocation", "Failed to allocate memory")


def main(path: str, memory: str, cpu_seconds: str) -> None:
    """Serve one model file until the parent goes away."""
    confine(int(memory))
    parent = socket.socket(fileno=0)
    threading.Thread(target=_follow_parent, args=(parent,), daemon=True).start()
    model = Path(path)
    os.chdir(model.parent)  # external data are found from there, whatever onnxruntime is given
    try:
        _serve(parent, _Server(model), float(cpu_seconds))
    except MemoryError:
        os._exit(OUT_OF_MEMORY)
    except (EOFError, OSError):
        os._exit(0)  # the parent is gone


def _follow_parent(parent: socket.socket) -> None:
    """End this process with its parent, even amid a run that never ends."""
    if hasattr(select, "poll"):
        watch = select.poll()
        watch.register(parent, getattr(select, "POLLRDHUP", 0))  # a hang-up is always told
        watch.poll()
        os._exit(0)


def _serve(parent: socket.socket, server: _Server, cpu_seconds: float) -> None:
    while True:
        asked, feeds = receive(parent, most=_LARGEST_FEEDS)
        grant_cpu(cpu_seconds)
        try:
            head, arrays = server.answer(asked, feeds)
            send(parent, head, arrays)
        except (EOFError, OSError):
            raise
        except Exception as error:  # whatever onnx or onnxruntime say of a graph
            if _out_of_memory(error):
                raise MemoryError from error
            send(parent, {"refused": sentence(error), "error": type(error).__name__}, {})


class _Server:
    """What one process knows of its model file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._sessions: Any = None

    def answer(self, asked: Head, feeds: Arrays) -> tuple[Head, Arrays]:
        """The answer to one message; raises whatever the libraries raise."""
        do = asked["do"]
        if do == "import":
            importlib.import_module(asked["library"])
            return {}, {}
        if do == "run":
            return {}, self._opened().run(asked, feeds)
        if do == "providers":
            return {"providers": self._opened().providers()}, {}
        if do == "open":
            self._opened().open(asked)
            return {}, {}
        return {"found": _inspected(do, self._path)}, {}

    def _opened(self) -> Any:
        if self._sessions is None:
            self._sessions = Sessions(self._path)
        return self._sessions


def _inspected(do: str, path: Path) -> Any:
    """What onnx says of the file; it is imported here only."""
    if do == "header":
        from .parsing import header  # noqa: PLC0415

        return header(path)
    from .parsing import defects  # noqa: PLC0415

    return defects(path)


def _out_of_memory(error: Exception) -> bool:
    text = str(error)
    return isinstance(error, MemoryError) or any(word in text for word in _OUT_OF_MEMORY_WORDS)


if __name__ == "__main__":
    main(*sys.argv[1:])
