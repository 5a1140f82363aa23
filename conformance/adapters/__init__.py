"""What turns a torch module, a bare function or an ONNX graph into a candidate."""
