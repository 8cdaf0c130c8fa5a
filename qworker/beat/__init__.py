"""beat: periodic tasks. Each due time is called once, however many schedulers run.

Modules, in reading order. When: ``schedule`` (the interface), ``fields``, ``wall_clock``, ``crontab``,
``schedules`` (intervals and single instants), ``rules``, ``solar``, ``words``, ``kinds`` (reading any of
them). What: ``entry``, ``serialization`` (as plain data), ``catalog`` (all entries of an app). Where:
``store`` (the interface), ``store_sql`` with ``server_database``, ``store_redis``, ``stores`` (the store of
an app, which may be its memory), ``sealed`` (signed edits). The scheduler: ``leadership`` (one of several
processes), ``agenda`` (what is due), ``overlap`` (has the previous call ended), ``calls`` (messages),
``caution`` (isolating failing entries), ``service``. And ``api``, which is ``app.schedules``.
"""

from qworker.beat.crontab import crontab
from qworker.beat.kinds import maybe_schedule
from qworker.beat.rules import rrule
from qworker.beat.schedule import Schedule
from qworker.beat.schedules import clocked, schedule
from qworker.beat.solar import solar

__all__ = ["Schedule", "clocked", "crontab", "maybe_schedule", "rrule", "schedule", "solar"]
