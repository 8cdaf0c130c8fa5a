"""Status: what a worker tells of itself, from snapshots.

Modules, in reading order: ``counters``, ``queue_depths``, ``health`` (alive, ready, held up), ``metrics``
(Prometheus' text), ``http_status`` (over HTTP).
"""
