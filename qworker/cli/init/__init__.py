"""`qworker init`: files that run a project.

Modules, in reading order: ``commands`` (with values for the app's broker), ``templates``.
"""
