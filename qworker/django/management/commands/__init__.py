"""commands: one module for each command of manage.py.

Modules: ``qcluster``, ``qmonitor``, ``qinfo``, ``qmemory``.
"""
