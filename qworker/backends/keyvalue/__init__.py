"""Result stores that are a map of keys to bytes, under Celery's keys.

Modules, in reading order: ``keys`` (their names), ``backend`` (what the stores share), ``joins``;
``filesystem``, ``memcached``, ``memory``.
"""
