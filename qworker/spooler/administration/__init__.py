"""Administration: spool directories for operators.

Modules, in reading order: ``census`` (counts), ``admin`` (lists, shows, removes, retries and moves jobs).
"""
