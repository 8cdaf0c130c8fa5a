"""Our brokers as a transport of kombu's: Celery, and whatever else speaks kombu, shares their queues with
qworker.

Modules, in reading order: ``options`` (which broker a connection means), ``envelopes``, ``exchanges`` (who
gets what is published), ``desk`` (where channels meet the courier), ``courier`` (the thread that has
the leases), ``channel``, ``transport``; ``entry`` makes it known to kombu.
"""
