"""The parts of the migrations beside the models.

Modules, in reading order: ``operations`` (steps that may be repeated), ``store`` (the broker's tables),
``predecessor`` (django-q2), ``adoption`` (django-q2's queue), ``migrated`` (checks that all tables exist).
"""
