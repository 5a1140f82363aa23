"""ONNX's attention operators, each as functions of heads: a graph of one node is made and run.

The standard ``Attention`` on onnxruntime's kernel, in ``onnx.reference`` and by its own function
body, and onnxruntime's ``MultiHeadAttention`` and ``GroupQueryAttention``.
"""

__conformance__ = ["on_onnxruntime", "on_contrib", "on_reference", "function_body"]
