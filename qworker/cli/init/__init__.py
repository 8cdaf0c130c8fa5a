"""`qworker init`: files that run a project.

Modules, in reading order: ``commands``, ``deployment`` (values for the app's broker), ``templates``.
"""
