"""Running: a worker finds spool files, and its children claim and run them.

Modules, in reading order: ``jobs`` (in a child), ``job_messages`` (files as messages), ``consumer`` and
``dispatch`` (in the worker), ``combined`` (with the app's own broker), ``runner`` (attaches all to an app).
"""
