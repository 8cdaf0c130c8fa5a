"""django: Django-Q's interface, on this engine.

A project names this package in its INSTALLED_APPS, migrates its database, and runs its command qcluster.
The modules here are those that the manual names, and the app's own; the rest is in the packages behind
them.

Modules and packages, in reading order: ``apps`` (how it is installed, under one of two labels),
``labels`` (what is named after them). The settings: ``settings``, ``conf`` (what the rest imports of
them), ``checks`` (what Django's check says). What is kept: ``models``, ``migrations``, ``tables``. A task
as a message: ``humanhash`` (names of tasks), ``function_names``, ``signing``, ``signals`` (what happens
to a task), ``transports``, ``brokers``. A task runs: ``execution``, ``project`` (the app of a project). A
cluster: ``clusters``, ``status``, ``cluster``, ``management``. Those who watch it: ``monitoring``,
``monitor``. What callers use: ``waiting``, ``several``, ``tasks``. What people see: ``admin``.
"""
