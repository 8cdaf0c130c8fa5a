"""RabbitMQ: quorum queues, publisher confirms, and acks written directly to the worker's connection.

Modules, in reading order: ``link`` (a connection), ``codec`` and ``table`` (a message as frames), ``queues``,
``delays`` (where delayed messages wait), ``server`` (shared settings), ``outgoing`` and ``publisher`` (out),
``inbox``, ``subscription`` and ``consumer`` (in), ``letters`` (dead letters and failed tasks),
``revocations``, ``workers`` (live workers), and ``broker`` (with its administration).
"""
