"""What a project says of its clusters, read when it is asked for.

Modules, in reading order: ``kinds`` (what values may be), ``keys`` (every key of Q_CLUSTER, declared once),
``masking`` (what people see of values), ``layers`` (where values come from, and what is wrong there),
``broker`` (which broker they mean), ``cluster`` (the values of one cluster, live).
"""
