"""django: Django-Q's interface, on this engine.

A project names this package in its INSTALLED_APPS, migrates its database, and runs its command qcluster.

Modules, in reading order: ``keys`` (every key of Q_CLUSTER, declared once), ``masking`` (what people see of
values), ``layers`` (where values come from, and what is wrong there), ``broker_choice`` (which broker they
mean), ``cluster_conf`` (the values of a cluster), ``conf`` (what the rest imports of it), ``checks`` (what
Django's check says), ``humanhash`` (names of tasks), ``signing`` (packages), ``signals`` (what happens to
a task), ``reporters`` (who is told of errors).
"""
