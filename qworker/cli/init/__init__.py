"""`qworker init`: files that run a project.

Modules, in reading order: ``commands``, ``deployment`` (what the app's broker needs), ``templates``.
"""
