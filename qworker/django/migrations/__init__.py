"""migrations: the tables, under either label of the application.

With the label ``django_q``, the first one replaces all of django-q2's: a database that has those is adopted.

Modules, in reading order: ``0001_tables`` (as in django-q2 1.11), ``0002_keys_and_indexes``, ``0003_store``
(the broker's tables), ``0004_queue`` (its view, which replaces django-q2's table), ``0005_parts`` (ended
calls of iterables), ``0006_package`` (a task's package).
"""
