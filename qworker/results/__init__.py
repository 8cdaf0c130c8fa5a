"""Results: the handle of a call, and all ways to wait for what becomes of it.

Modules, in reading order: ``result`` (``AsyncResult``), ``waiting`` (``get``), ``awaiting`` (``await``),
``callbacks`` (``then``), ``tree`` (a result with those of the calls its task made), ``dependencies`` (these
as a graph). Of many calls: ``several`` (``ResultSet``), ``group_result`` (``GroupResult``), ``gathering``
(waiting for all of them at once), ``graph_result`` (``GraphResult``, those of the nodes of a graph). All that
hangs together: ``outline`` (which calls a workflow is made of), ``workflow`` (what is known of them).
"""
