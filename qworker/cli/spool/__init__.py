"""`qworker spool`: spool directories, and workers for them.

Modules, in reading order: ``commands``, ``job`` (options of a new job), ``send`` (over the network),
``shown`` (jobs as text and JSON), ``watch``, ``spooler_options`` (uWSGI's options and ours), ``spooling``
(preparing an app for spool directories), ``run``.
"""
