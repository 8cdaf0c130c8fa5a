"""django: Django-Q's interface, on this engine.

A project names this package in its INSTALLED_APPS, migrates its database, and runs its command qcluster.

Modules, in reading order: ``apps`` (how it is installed, under one of two labels), ``conf``, ``checks``. What
is kept: ``models``, ``recurrence`` (when a schedule is due next), ``literals`` (arguments as people write
them), ``signing``, ``packages``, ``migrations``, ``store_tables`` (the broker's tables in the project's
database), ``predecessor`` (django-q2), ``adoption`` (what that had in its queue). What people see: ``admin``,
``exposure`` (which functions they may schedule). What callers use: ``tasks``.
"""
