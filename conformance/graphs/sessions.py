"""The sessions that onnxruntime keeps for one model file, inside the graph's process."""

from __future__ import annotations

import ctypes
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime

from .lost import GraphRefused
from .protocol import Arrays, Head, bfloat16

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
