"""ONNX graphs: what a file says of itself, how it runs in a child process, what it computes."""
