"""ONNX files: their header, the process that runs them, the roles of their inputs, their weights.

It may import ``base``.
"""
