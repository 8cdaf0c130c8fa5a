"""migrations: the tables, under either label of the application.

Under ``django_q`` the first one replaces all of django-q2's, so that a database with those is adopted as it
is.

Modules, in reading order: ``0001_tables`` (as in django-q2 1.11), ``0002_keys_and_indexes``, ``0003_store``
(the broker's tables), ``0004_queue`` (its view, instead of django-q2's table), ``0005_parts`` (ended calls of
iterables), ``0006_package`` (a task's package).
"""
