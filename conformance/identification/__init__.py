"""Identification: the point of ``Semantics``, the masks and the options that a black box shows.

It may import ``diagnosis`` and what lies below it.
"""
