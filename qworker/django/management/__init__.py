"""management: what manage.py can do with clusters.

Modules: ``commands``, one for each.
"""
