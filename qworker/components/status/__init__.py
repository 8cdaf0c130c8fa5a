"""Status: what a worker tells of itself, from snapshots.

Modules, in reading order: ``counters``, ``queue_depths``, ``health`` (alive, ready), ``metrics`` (Prometheus'
text), ``http_status`` (over HTTP).
"""
