"""The command line: one module a command, each imported when it is called.

Comes from:  people and init systems.
Goes to:     the client and the worker, by the same doors that code uses.
Thread:      main.

Modules, in reading order: ``main`` (which commands there are) with ``groups``, ``options``, ``discovery``
(finds the app), ``names`` (with a slip in them), ``output`` and ``watching`` (it again and again); the
worker: ``start`` with ``worker_process``, ``process``, ``reload`` and ``celery_options``; what clients do:
``call``, ``result``, ``graph`` with ``drawing``, ``revoke``, ``shell``; the broker: ``queues``, ``workers``,
``tasks``, ``purge``, ``failed``, ``dead``, ``delayed``, ``move``; spool directories: ``spool`` with
``spool_shown``, ``spool_job``, ``spool_send``, ``spool_watch`` and ``spool_run``, and ``spooling`` with
``spooler_options``; what is right and wrong: ``config`` with ``suitability``, ``health``, ``doctor`` with
``examinations``, ``servers`` and ``return_types``, ``report``; ``init`` with ``deployment`` and ``templates``
(files to run a project with); schedules: ``beat`` with ``beat_options``, ``beat_shown``, ``beat_process`` and
``beat_examined``; ``completion`` (names for the shell). Packages: ``demo``.
"""
