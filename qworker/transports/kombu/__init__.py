"""Any broker that kombu has a transport for.

Modules, in reading order: ``queue`` (one queue, message by message), ``server`` (connecting), ``broker``.
"""
