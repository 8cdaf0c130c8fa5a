"""Settings: all declarations.

Comes from:  the modules of the topics.
Goes to:     `resolved.Settings`, which has the values; the documentation, the checks and `qworker config`.
Thread:      built once at import, immutable.

Names are Celery's if Celery has the setting. Durations are float seconds; sizes are bytes unless the
description says KiB.
"""

from qworker.conf.broker import BrokerSettings
from qworker.conf.results import ResultSettings
from qworker.conf.schedules import ScheduleSettings
from qworker.conf.setting import Setting, collect
from qworker.conf.spooler import SpoolerSettings
from qworker.conf.tasks import TaskSettings
from qworker.conf.workers import WorkerSettings

SETTINGS: dict[str, Setting] = collect(
    BrokerSettings, TaskSettings, ResultSettings, WorkerSettings, ScheduleSettings, SpoolerSettings
)
