"""django: Django-Q's interface, on this engine.

A project adds this package to INSTALLED_APPS, migrates its database, and runs the command qcluster. This
directory has the modules that Django-Q's manual names and those of the app; packages have the rest.

Modules and packages, in reading order: ``apps`` (how it is installed, under one of two labels), ``labels``
(names derived from them). The settings: ``settings``, ``conf`` (for other modules), ``checks`` (Django's
system checks). Stored data: ``models``, ``migrations``, ``tables``. A task as a message: ``humanhash`` (names
of tasks), ``function_names``, ``signing``, ``signals`` (the events of a task), ``transports``, ``brokers``.
Execution: ``execution``, ``project`` (the app of a project). A
cluster: ``clusters``, ``status``, ``cluster``, ``management``. Monitoring: ``monitoring``, ``monitor``. For
callers: ``waiting``, ``several``, ``tasks``. For people: ``admin``.
"""
