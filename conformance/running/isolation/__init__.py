"""Candidates in a process that cannot reach the judge's process.

``zygote`` starts processes, ``sandbox`` confines them, ``served`` runs inside. ``remote`` is the
judge's end, ``proxies`` are the candidates called by the judge, ``wire`` is the protocol.
"""
