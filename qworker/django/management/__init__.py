"""management: the commands of manage.py for clusters.

Modules: ``commands`` (one module each), ``serving`` (runs qcluster), ``watching`` (shared by the others).
"""
