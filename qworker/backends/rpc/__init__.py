"""Results as messages to the calling process, like Celery's ``rpc://``.

Modules, in reading order: ``backend`` (sends them), ``replies`` (receives them).
"""
