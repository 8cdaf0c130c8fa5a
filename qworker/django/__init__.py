"""django: Django-Q's interface, on this engine.

A project names this package in its INSTALLED_APPS, migrates its database, and runs its command qcluster.

Modules, in reading order: ``apps`` (how it is installed, under one of two labels). The settings: ``kinds``
(what values may be), ``keys`` (every key of Q_CLUSTER, declared once), ``masking`` (what people see of
values), ``layers`` (where values come from, and what is wrong there), ``broker_choice`` (which broker they
mean), ``cluster_conf`` (the values of a cluster), ``conf`` (what the rest imports of it), ``checks`` (what
Django's check says). What is kept: ``models``, ``recurrence`` (when a schedule is due next), ``literals``
(arguments as people write them), ``migrations``, ``store_tables`` (the broker's tables in the project's
database), ``predecessor`` (django-q2), ``adoption`` (what that had in its queue). A task as a message:
``humanhash`` (names of tasks), ``signing``, ``packages``, ``signals`` (what happens to a task), ``databases``
and ``broker_urls`` (as URLs), ``telling`` (that tasks have ended), ``redis_channel``, ``task_rows``,
``transport``, ``brokers``. A task runs: ``running``, ``cached``, ``endings``, ``calls``, ``work``,
``results``, ``engine``, ``project`` (the app of a project), ``reporters`` (who is told of errors). A cluster:
``scheduling``, ``retention``, ``announcing`` (to the cache, where the broker cannot), ``status``,
``affinity``, ``cluster_log``, ``cluster``, ``migrated`` (whether the tables are there), ``management``. Those
who watch it: ``overview`` (what is counted), ``process_memory``, ``screen`` (how it is drawn), ``monitor``.
What callers use: ``lookout`` (who waits for all), ``fetching``, ``several``, ``tasks``. What people see:
``admin``, ``exposure`` (which functions they may schedule).
"""
