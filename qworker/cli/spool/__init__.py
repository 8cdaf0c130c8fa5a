"""`qworker spool`: spool directories, and workers of them.

Modules, in reading order: ``commands``, ``job`` (options of a new job), ``send`` (over the network),
``shown`` (jobs as text and JSON), ``watch``, ``spooler_options`` (uWSGI's options and ours), ``spooling`` (an
app made ready for spool directories), ``run``.
"""
