"""Results in SQL databases, in Celery's tables, and in the embedded SQLite file.

Modules, in reading order: ``tables`` (Celery's layout), ``columns`` (a result as a row), ``database`` (its
connections), ``keys`` (locks and counters), ``listen`` (notifications of PostgreSQL), ``joins`` (for servers
and the file), ``backend``; ``sqlite`` for the embedded broker's file.
"""
