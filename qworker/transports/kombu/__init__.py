"""Any broker that kombu has a transport for.

Modules, in reading order: ``server`` (connecting, and one queue, message by message), ``broker``.
"""
