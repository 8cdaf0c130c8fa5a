"""Where the broker of a project is, as qworker's transports take it, and what they are given to keep.

Modules, in reading order: ``packages`` (a task as a message), ``databases`` (as URLs), ``mongo_url``,
``redis_cache`` and ``urls`` (of other servers), ``redis_channel`` and ``notifications`` (how those who wait
hear that tasks have ended), ``task_rows`` (how what has ended is written), ``task_table`` (in the transaction
of the ack), ``opening``.
"""
