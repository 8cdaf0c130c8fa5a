"""settings: the settings of a project's clusters, read on access.

Modules, in reading order: ``keys`` (declares every key of Q_CLUSTER), ``layers`` (the sources of values, and
their errors), ``cluster`` (the values for one cluster).
"""
