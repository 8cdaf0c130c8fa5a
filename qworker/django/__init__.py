"""django: Django-Q's interface, on this engine.

A project names this package in its INSTALLED_APPS, migrates its database, and runs its command qcluster.

Modules, in reading order: ``kinds`` (what values of Q_CLUSTER may be), ``keys`` (all of its keys),
``masking`` (what people see of values), ``layers`` (where they come from, and what is wrong there),
``broker_choice`` (which broker they mean), ``cluster_conf`` (the values of a cluster), ``conf`` (what the
rest imports of it), ``humanhash`` (names of tasks), ``signing`` (packages), ``signals`` (what is told of
a task), ``reporters`` (who is told of errors), ``checks`` (what Django's check says).
"""
