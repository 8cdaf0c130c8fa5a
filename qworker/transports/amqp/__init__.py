"""RabbitMQ: quorum queues, publisher confirms, and acks written directly to the worker's connection.

Modules, in reading order: ``link`` (a connection), ``codec`` and ``table`` (a message as frames), ``queues``,
``delays`` and ``delay_queues`` (declarations), ``server`` (shared settings), ``outgoing`` and ``publisher``
(out), ``inbox`` and ``subscription`` (in), ``settled`` (settled messages that are delivered again),
``letters`` (dead letters and failed tasks), ``revocations``, ``workers`` (live workers), and the interfaces
``consumer`` and ``admin``, combined in ``broker``.
"""
