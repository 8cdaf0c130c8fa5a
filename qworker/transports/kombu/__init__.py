"""Any broker that kombu has a transport for.

Modules, in reading order: ``messages``, ``server`` (connecting), ``sender``, ``holdings`` (what was got),
``settling``, ``consumer``, ``admin``, ``broker``.
"""
