"""Results: the handle of a call, and all ways to wait for what becomes of it.

Modules, in reading order: ``result`` (``AsyncResult``), ``waiting`` (``get``), ``awaiting`` (``await``),
``callbacks`` (``then``), ``tree`` (a result with those of the calls its task made).
"""
