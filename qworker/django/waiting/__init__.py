"""Tasks and groups that have ended are found, and waited for.

Modules, in reading order: ``watcher`` (polls for all waiting callers), ``fetching`` (the functions,
and django-q2's names for the cache alone).
"""
