"""models: the tables in the project's database.

Modules, in reading order: ``task`` (ended tasks, and ended calls of iterables), ``recurrence`` (when a
schedule is due next), ``literals`` (arguments as text), ``schedule`` (periodic calls), ``queue`` (waiting
messages, if the database is the broker).
"""

from qworker.django.models.queue import OrmQ, QueueOwner
from qworker.django.models.schedule import Schedule, validate_cron, validate_kwarg
from qworker.django.models.task import Failure, FailureManager, Part, Success, SuccessManager, Task

__all__ = [
    "Failure",
    "FailureManager",
    "OrmQ",
    "Part",
    "QueueOwner",
    "Schedule",
    "Success",
    "SuccessManager",
    "Task",
    "validate_cron",
    "validate_kwarg",
]
