"""Any broker that kombu has a transport for; and the embedded broker as a transport of kombu's.

Modules, in reading order: ``messages``, ``server`` (connecting), ``sender``, ``holdings`` (what was got),
``settling``, ``consumer``, ``admin``, ``broker``; ``channel`` lets kombu, and so Celery, use
``sqlite:///path``.
"""
