"""`qworker spool`: spool directories, and workers for them.

Modules, in reading order: ``commands``, ``job`` (options of a new job), ``shown`` (jobs as text and JSON),
``watch``, ``spooler_options`` (uWSGI's options and ours), ``spooling`` (preparing an app for spool
directories).
"""
