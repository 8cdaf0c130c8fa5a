"""The command line: one module a command, each imported when it is called.

Comes from:  people and init systems.
Goes to:     the client and the worker, by the same doors that code uses.
Thread:      main.

Modules, in reading order: ``main`` (which commands there are) with ``groups``, ``options``, ``discovery``
(finds the app), ``names`` (suggestions for misspelt ones), ``output`` and ``watching`` (output that is
refreshed); the worker: ``start`` with ``worker_process``, ``process``, ``reload`` and ``celery_options``;
clients: ``call``, ``result``, ``graph`` with ``drawing``, ``revoke``, ``shell``; the broker: ``queues``,
``workers``, ``tasks``, ``purge``, ``letters`` (dead letters and failed tasks), ``delayed``, ``move``;
``config``, ``health``, ``report``, ``servers`` (what servers say of themselves); ``completion`` (for the
shell).
Packages: ``beat``, ``doctor``, ``init``, ``spool``, ``demo``.
"""
