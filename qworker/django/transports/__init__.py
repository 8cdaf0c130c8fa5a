"""transports: the project's broker as a qworker transport, with its messages and results.

Modules, in reading order: ``packages`` (a task as a message), ``databases`` (URLs of databases),
``mongo_url``, ``redis_cache`` and ``urls`` (URLs of other servers), ``redis_channel`` and ``notifications``
(notifications of ended tasks), ``task_rows`` (stores ended tasks), ``task_table`` (stores them with the ack),
``opening`` (opens the broker).
"""
