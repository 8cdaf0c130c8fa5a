"""The settings of a project's clusters, read on access.

Modules, in reading order: ``keys`` (every key of Q_CLUSTER, declared once), ``layers`` (the sources of
values, and their errors), ``cluster`` (the values of one cluster, live).
"""
