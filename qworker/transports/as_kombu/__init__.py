"""Our brokers as a kombu transport: Celery, and other users of kombu, share their queues with qworker.

Modules, in reading order: ``envelopes``, ``exchanges`` (which queues get a message), ``shared_state`` (of
channels and the consumer thread), ``consumer_thread``, ``channel``, ``transport`` (and the settings of a
connection's broker); ``entry`` registers it with kombu.
"""
