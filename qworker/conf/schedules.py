"""Settings of schedules.

Comes from:  nothing; see `settings`.
Goes to:     `settings`, which collects them.
Thread:      built once at import, immutable.
"""

from typing import Any

from qworker.conf import kinds
from qworker.conf.setting import declare


class ScheduleSettings:
    """Declarations: each setting with its type, default and text. `settings.SETTINGS` has all by name."""

    beat_schedule: dict[str, Any] = declare(
        kinds.MAPPING,
        {},
        "The periodic tasks: entries by name, each with `task`, `schedule` and further fields; see the "
        "guide to periodic tasks.",
        nullable=True,
    )
    beat_store: str | None = declare(
        kinds.TEXT,
        None,
        "Where schedules are stored: `sqlite:///path`, `postgresql://…`, `mysql://…`, `redis://…`, or "
        "`memory://` (not stored). None: with the messages if the broker is one of these; else with the "
        "results; else not stored.",
    )
    beat_scope: str | None = declare(
        kinds.TEXT,
        None,
        "Separates the schedules of several projects in one store. None: the app's name.",
    )
    beat_history_expires: float = declare(
        kinds.DURATION,
        3 * 86400.0,
        "How long it is remembered which due times were called. If a clock is set back further, an entry "
        "could be called twice.",
        minimum=3600.0,
    )
