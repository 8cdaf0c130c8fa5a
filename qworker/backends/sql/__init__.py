"""Results in SQL databases, in Celery's tables, and in the embedded SQLite file.

Modules, in reading order: ``tables`` (Celery's layout), ``database`` (its connections), ``joins`` (for
servers and the file), ``backend`` (results as rows, notifications of PostgreSQL, locks and counters);
``sqlite`` for the embedded broker's file.
"""
