"""What a project says of its clusters, read when it is asked for.

Modules, in reading order: ``keys`` (every key of Q_CLUSTER, declared once),
``layers`` (where values come from, and what is wrong there),
``cluster`` (the values of one cluster, live).
"""
