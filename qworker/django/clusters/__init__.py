"""clusters: the parts that make a worker of qworker the cluster of a project.

Modules, in reading order: ``engine`` (the project's app), ``scheduling`` (sends due schedules), ``retention``
(deletes old results), ``log`` (log lines), ``announcing`` (publishes the status if the broker cannot store
it), ``ending`` (ends the cluster with its parent), ``affinity`` (processors of a process).
"""
