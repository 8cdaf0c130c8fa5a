"""Results on Redis or Valkey, under Celery's keys.

Modules, in reading order: ``joins`` (in qworker's format and in Celery's), ``backend``.
"""
