"""Running: a worker takes spool files, and its children run them.

Modules, in reading order: ``jobs`` (in a child), ``job_messages`` (files as messages), ``consumer`` and
``dispatch`` (in the worker), ``combined`` (with the app's own broker), ``runner`` (attaches all to an app).
"""
