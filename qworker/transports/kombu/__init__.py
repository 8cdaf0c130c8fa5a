"""Any broker that kombu has a transport for; and the embedded broker as a transport of kombu's.

Modules, in reading order: ``messages``, ``broker`` (what any thread asks), ``consumer`` (what a worker asks);
``channel`` lets kombu, and so Celery, use ``sqlite:///path``.
"""
