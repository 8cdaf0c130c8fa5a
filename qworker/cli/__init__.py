"""The command line: one module per command, imported when the command is called.

Comes from:  users and init systems.
Goes to:     the client and the worker, through their public interfaces.
Thread:      main.

Modules, in reading order: ``main`` (the table of commands) with ``groups``, ``options``, ``discovery``
(finding the app), ``names`` (suggestions), ``output`` and ``watching`` (refreshed output); the worker:
``start`` with ``worker_process``, ``process``, ``reload`` and ``celery_options``;
clients: ``call``, ``result``, ``graph``, ``revoke``, ``shell``; the broker: ``queues``,
``workers``, ``tasks``, ``purge``, ``letters`` (dead letters and failed tasks), ``delayed``, ``move``;
``config``, ``health``, ``report``, ``servers`` (facts about servers); ``completion`` (for the
shell).
Packages: ``beat``, ``doctor``, ``init``, ``spool``, ``demo``.
"""
