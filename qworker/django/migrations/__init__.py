"""migrations: the tables, under either label of the application.

Under ``django_q`` the first one stands for all of django-q2's, so that a database which has those is adopted
as it is.

Modules, in reading order: ``0001_tables`` (as django-q2 1.11 has them), ``0002_keys_and_indexes``,
``0003_store`` (the broker's tables), ``0004_queue`` (its view, in place of django-q2's table),
``0005_parts`` (what iterables wait with), ``0006_package`` (what a task was sent as).
"""
