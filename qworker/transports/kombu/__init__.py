"""Any broker that kombu has a transport for.

Modules, in reading order: ``messages``, ``server`` (connecting), ``sender``, ``holdings`` (what was got),
``consumer``, ``admin``, ``broker``.
"""
