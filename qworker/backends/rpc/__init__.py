"""Results as messages to the calling process, like Celery's ``rpc://``.

Modules: ``backend`` (sends them, and receives them in a thread).
"""
