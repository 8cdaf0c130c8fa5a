"""management: what manage.py can do with clusters.

Modules: ``watching`` (what some of them share), ``commands``, one for each.
"""
