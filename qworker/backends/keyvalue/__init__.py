"""Result stores that map keys to bytes, under Celery's keys.

Modules, in reading order: ``keys`` (their names), ``backend`` (the shared code), ``joins``; ``filesystem``,
``memcached``, ``memory``.
"""
