"""Results on Redis or Valkey, under Celery's keys.

Modules, in reading order: ``joins`` (in our layout and in Celery's), ``backend``.
"""
