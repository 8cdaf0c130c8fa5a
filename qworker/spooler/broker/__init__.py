"""A spool directory as the broker of an app.

Modules, in reading order: ``message_files``, ``spool_broker``.
"""
