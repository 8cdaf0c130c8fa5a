"""Status: reports about a worker, from snapshots.

Modules, in reading order: ``counters``, ``queue_depths``, ``health`` (alive, ready, blocked), ``metrics``
(Prometheus' text format), ``http_status`` (over HTTP).
"""
