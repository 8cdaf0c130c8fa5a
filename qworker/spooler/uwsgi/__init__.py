"""uWSGI's API for applications, outside uWSGI.

Modules, in reading order: ``enqueueing`` (``uwsgi.spool()``), ``runtime`` (the processes of a directory),
``job_context`` (the job that runs), ``introspection`` (the jobs that wait); signals: ``signal_table``,
``timers`` (which are due), ``signal_socket`` (those of other processes).
"""
