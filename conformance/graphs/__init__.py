"""ONNX files: their header, their process, the roles of their inputs, their weights.

May import ``base``.
"""
