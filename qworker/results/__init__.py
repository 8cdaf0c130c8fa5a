"""Results: handles of calls, and the ways to wait for results.

Modules, in reading order: ``result`` (``AsyncResult``), ``waiting`` (``get``), ``awaiting`` (``await``),
``callbacks`` (``then``), ``tree`` (a result with those of its task's calls), ``dependencies`` (the same as a
graph). For several calls: ``several`` (``ResultSet``), ``group_result`` (``GroupResult``), ``gathering``
(waits for several at once), ``graph_result`` (``GraphResult``). For workflows: ``outline`` (their structure),
``workflow`` (their progress).
"""
