"""Results as messages to the process that called, as Celery's ``rpc://`` sends them.

Modules, in reading order: ``backend`` (sends them), ``replies`` (receives them).
"""
