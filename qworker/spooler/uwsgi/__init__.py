"""uWSGI's API for applications, outside uWSGI.

Modules, in reading order: ``enqueueing`` (``uwsgi.spool()``), ``runtime`` (the processes of a directory),
``job_context`` (the running job), ``introspection`` (waiting jobs); signals: ``signal_table``, ``timers``
(due signals), ``signal_socket`` (signals of other processes).
"""
