"""management: what manage.py can do with clusters.

Modules: ``commands``, one for each; ``serving`` (the work of qcluster), ``watching`` (shared by the
others).
"""
