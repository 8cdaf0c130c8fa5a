"""The parts that make a worker of qworker the cluster of a project.

Modules, in reading order: ``engine`` (the app, whose worker it is), ``scheduling`` (sends due schedules),
``retention`` (deletes old results), ``log`` (its log lines), ``announcing`` (its status for other processes,
where the broker cannot store it), ``ending`` (ends it with its parent).
"""
