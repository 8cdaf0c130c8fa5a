"""waiting: finds and waits for ended tasks and groups.

Modules, in reading order: ``watcher`` (polls for all waiting callers), ``fetching`` (the functions, and
django-q2's names for those of the cache).
"""
