"""What the migrations make in the project's databases, beside the models.

Modules, in reading order: ``operations`` (steps that may be repeated), ``store`` (the broker's tables),
``predecessor`` (django-q2), ``adoption`` (what that had in its queue), ``migrated`` (whether all tables are
there).
"""
