"""The broker of a project as a qworker transport, with its messages and results.

Modules, in reading order: ``packages`` (a task as a message), ``databases`` (as URLs), ``mongo_url``,
``redis_cache`` and ``urls`` (of other servers), ``redis_channel`` and ``notifications`` (notifications of
ended tasks), ``task_rows`` (how ended tasks are written), ``task_table`` (in the transaction of the ack),
``opening``.
"""
