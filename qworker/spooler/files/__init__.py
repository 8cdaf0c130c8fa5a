"""Spool files: their bytes and names, and how they are written and claimed.

Modules, in reading order: ``packet`` (bytes and names), ``place`` (the directory), ``writing``, ``sweeping``,
``locks``, ``attempts`` (and files that are set aside), ``claiming``.
"""
