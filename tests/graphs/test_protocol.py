"""The libraries' messages in one line for readers, and what is no message of a child."""

from __future__ import annotations

import socket

import pytest

from conformance.graphs.protocol import ProtocolError, packed, receive, sentence

SOURCE = "/onnxruntime_src/onnxruntime/core/graph/graph.cc:1587 void onnxruntime::Graph::Load() "
LONG = (
    "/onnxruntime_src/onnxruntime/core/graph/model_load_utils.h:46 void onnxruntime::Validate("
    "const std::unordered_map<std::__cxx11::basic_string<char>, int>&, bool) "
)
RUNNING = (
    "[ONNXRuntimeError] : 1 : FAIL : Non-zero status code returned while running Mod node. "
    "Name:'rest' Status Message: element_wise_ops.cc:2256 operator() Integer modulo by zero"
)
BUILDING = (
    "[ONNXRuntimeError] : 10 : INVALID_GRAPH : Load model from m.onnx failed:This is an invalid "
    'model. In Node, ("scores", QAttention, "com.microsoft", -1) : ("q": tensor(uint8),"",) -> '
    '("y": tensor(float),) , Error Unrecognized attribute: is_causal'
)
UNNAMED = (
    'This is an invalid model. In Node, ("", Attention, "", -1) : ("x": tensor(float),) -> ("y": '
    "tensor(float),) , Error No Op registered for Attention with domain_version of 18"
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("[ONNXRuntimeError] : 1 : FAIL : plain words", "plain words"),
        (f"[ONNXRuntimeError] : 1 : FAIL : {SOURCE}It is gone.\n", "It is gone."),
        (f"Load model from /tmp/a b.onnx failed:{LONG}Opset 27", "Opset 27"),
        ("tensorprotoutils.cc:461 ValidatePath Data are missing", "Data are missing"),
        (RUNNING, "Mod 'rest': Integer modulo by zero"),
        (BUILDING, "QAttention 'scores': Unrecognized attribute: is_causal"),
        (UNNAMED, "Attention: No Op registered for Attention with domain_version of 18"),
        ("\n\nInference failed:\n  Reshape: rank 3\nmore", "Inference failed: Reshape: rank 3"),
        ("wrong\n\n==> Context: node 3", "wrong (node 3)"),
        ("", ""),
    ],
)
def test_sentences(text: str, shown: str) -> None:
    """Codes, places in foreign sources and paths go; nodes and reasons stay."""
    assert sentence(ValueError(text)) == shown


def test_long_messages_are_cut() -> None:
    """No message fills a screen."""
    assert len(sentence(ValueError("word " * 1000))) <= 400


@pytest.mark.parametrize("shape", [[0, 1 << 62, 1 << 62], [1.5], ["2"], [-1]])
def test_arrays_that_cannot_be_are_no_message(shape: list[object]) -> None:
    """A child that was taken over may describe any; numpy's own errors would be ours."""
    own, theirs = socket.socketpair()
    with own, theirs:
        theirs.sendall(packed({"head": {}, "arrays": [["x", "float32", shape]]}))
        with pytest.raises(ProtocolError):
            receive(own, most=1 << 20)
