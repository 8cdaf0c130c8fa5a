"""Administration: spool directories for operators.

Modules, in reading order: ``counts`` (of jobs), ``admin`` (listing, showing, removing, retrying and moving
jobs).
"""
