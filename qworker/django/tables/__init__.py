"""tables: the parts of the migrations other than the models.

Modules, in reading order: ``operations`` (repeatable steps), ``store`` (the broker's tables), ``predecessor``
(django-q2), ``adoption`` (django-q2's queue), ``migrated`` (checks that all tables exist).
"""
