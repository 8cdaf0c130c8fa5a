"""Administration: spool directories for operators.

Modules, in reading order: ``counts`` (of jobs), ``admin`` (lists, shows, removes, retries and moves jobs).
"""
