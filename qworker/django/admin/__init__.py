"""admin: the pages in Django's admin.

Modules, in reading order: ``pickles`` (displays a pickle without importing its classes), ``columns``
(displays large columns and times), ``results`` (tasks that succeeded or failed, and resubmitting them),
``schedules`` (also which functions users may schedule), ``queue`` (waiting tasks, if the database is the
broker).
"""

from contextlib import suppress

from django.contrib import admin

from qworker.django.admin.queue import QueueAdmin
from qworker.django.admin.results import FailAdmin, TaskAdmin
from qworker.django.admin.schedules import ScheduleAdmin
from qworker.django.conf import conf
from qworker.django.models import Failure, OrmQ, Schedule, Success
from qworker.errors import ConfigurationError

__all__ = ["FailAdmin", "QueueAdmin", "ScheduleAdmin", "TaskAdmin"]

admin.site.register(Success, TaskAdmin)
admin.site.register(Failure, FailAdmin)
admin.site.register(Schedule, ScheduleAdmin)
with suppress(ConfigurationError):  # the checks report it
    if conf.broker == "orm":
        admin.site.register(OrmQ, QueueAdmin)
