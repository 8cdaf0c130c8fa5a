"""Settings: one typed declaration for each, with its default, its kind, its bounds and its description.

Comes from:  the modules of the topics.
Goes to:     `resolved.Settings`, which inherits the names and types and holds the values; the documentation,
          the checks and `qworker config`.
Thread:      built once at import, immutable. Names are Celery's wherever Celery has one. Durations are float
             seconds, sizes are bytes unless the description says KiB.
"""

from qworker.conf.broker import BrokerSettings
from qworker.conf.results import ResultSettings
from qworker.conf.schedules import ScheduleSettings
from qworker.conf.setting import Setting
from qworker.conf.spooler import SpoolerSettings
from qworker.conf.tasks import TaskSettings
from qworker.conf.workers import WorkerSettings


def _collect(*topics: type) -> dict[str, Setting]:
    """Remove the declarations from the classes, so that instances hold plain attributes."""
    settings = {}
    for topic in topics:
        for name in topic.__annotations__:
            kind, default, doc, bounds = getattr(topic, name)
            settings[name] = Setting(name, kind, default, doc, **bounds)
            delattr(topic, name)
    return settings


SETTINGS: dict[str, Setting] = _collect(
    BrokerSettings, TaskSettings, ResultSettings, WorkerSettings, ScheduleSettings, SpoolerSettings
)
