"""RabbitMQ: quorum queues, confirms, and acks that the worker's one connection writes itself.

Modules, in reading order: ``link`` (a connection), ``codec`` and ``table`` (a message as frames), ``queues``,
``delays`` and ``delay_queues`` (what is declared), ``server`` (what the rest shares), ``outgoing`` and
``publisher`` (out), ``inbox`` and ``subscription`` (in), ``finished`` (what is known of a
message delivered again), ``letters`` (dead letters and failed tasks),
``revocations``, ``workers`` (who lives), and what is asked of them: ``consumer``, ``admin``,
joined by ``broker``.
"""
