"""Candidates in a process that cannot reach the one that judges them.

``zygote`` starts processes, ``sandbox`` shuts them in, ``served`` is what runs there. ``remote`` is
the judge's end, ``proxies`` the candidates that the judge calls, ``wire`` what goes between them.
"""
