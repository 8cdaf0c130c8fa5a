"""management: what manage.py can do with clusters.

Modules: ``commands``, one for each; ``loading`` and ``serving`` (how qcluster starts, and what it does then),
``watching`` (what the others share).
"""
