"""Keys: prefixes of keys in key-value result stores. Those of tasks and groups are Celery's.

Comes from:  nothing.
Goes to:     the result stores.
Thread:      any; constants.
"""

from __future__ import annotations

TASK_PREFIX = "celery-task-meta-"
GROUP_PREFIX = "celery-taskset-meta-"
LOCK_PREFIX = "qworker-lock-"
