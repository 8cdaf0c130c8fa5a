"""Tasks and groups that have ended are found, and waited for.

Modules, in reading order: ``watcher`` (who looks for all that wait), ``fetching`` (what the functions do),
``cached_calls`` (django-q2's names for the cache alone).
"""
