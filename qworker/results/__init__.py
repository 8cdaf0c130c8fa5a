"""Results: the handle of a call, and all ways to wait for its result.

Modules, in reading order: ``result`` (``AsyncResult``), ``waiting`` (``get``), ``awaiting`` (``await``),
``callbacks`` (``then``), ``tree`` (a result with those of its task's calls), ``dependencies`` (the same as a
graph). Of many calls: ``several`` (``ResultSet``), ``group_result`` (``GroupResult``), ``gathering`` (waiting
for several at once), ``graph_result`` (``GraphResult``). Of workflows: ``outline`` (their structure),
``workflow`` (their progress).
"""
