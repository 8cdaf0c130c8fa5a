"""Our brokers as a kombu transport: Celery, and other users of kombu, share their queues with qworker.

Modules, in reading order: ``envelopes``, ``exchanges`` (which queues get a message), ``desk`` (state shared
by channels and the courier), ``courier`` (the consumer thread), ``channel``, ``transport`` (and the settings
of a connection's broker); ``entry`` registers it with kombu.
"""
