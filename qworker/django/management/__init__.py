"""management: what manage.py can do with clusters.

Modules: ``commands``, one for each; ``loading`` and ``serving`` (how qcluster starts, and its work),
``watching`` (shared by the others).
"""
